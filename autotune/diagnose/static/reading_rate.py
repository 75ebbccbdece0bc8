"""Rate at which a sample of a dataset's files can be read, from the disk and from the kernel's page cache apart.

Nothing is thrown out of the page cache for it: a read that may not wait (``RWF_NOWAIT`` of preadv2(2)) tells whether a
file is in there, and files that are count by themselves. What was read is in the cache afterwards, so that the next
look has less to tell about the disk.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.files import open_regular

_LONGEST_S = 2.0
_MOST_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20
_MOST_FILES = 400


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Reads from one source.

    Attributes:
        files: Number of files.
        size_bytes: What was read of them.
        duration_s: Time that it took.
    """

    files: int = 0
    size_bytes: int = 0
    duration_s: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """Rate; None where nothing was read."""
        return self.size_bytes / self.duration_s if self.size_bytes and self.duration_s > 0 else None

    def plus(self, size_bytes: int, duration_s: float) -> "Reads":
        """Return them with another file."""
        return Reads(
            files=self.files + 1, size_bytes=self.size_bytes + size_bytes, duration_s=self.duration_s + duration_s
        )


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    """Reads of a sample of files.

    Attributes:
        disk: Those of files that were not in the page cache, or where that is not known.
        cache: Those of files that were.
        failed: Number of files that could not be read.
        knows_cache: Whether the file system tells what is in the page cache.
    """

    disk: Reads
    cache: Reads
    failed: int
    knows_cache: bool


def reading_rate(files: Sequence[tuple[Path, int]], clock: Clock) -> ReadingRate:
    """Read a sample of files, for at most 2 s and 256 MiB.

    Args:
        files: Files with their sizes; a sample evenly spread over them is read, in a mixed order.
        clock: The machine's clock.
    """
    disk, cache, failed, knows = Reads(), Reads(), 0, True
    deadline_s, left = clock.now_s() + _LONGEST_S, _MOST_BYTES
    for path, _ in _mixed(files):
        if clock.now_s() >= deadline_s or left <= 0:
            break
        began_s = clock.now_s()
        try:
            with open_regular(Path(os.path.realpath(path))) as file:  # links to files are usual in datasets
                is_cached = _is_cached(file.fileno())
                size = 0
                while left > 0 and clock.now_s() < deadline_s and (piece := file.read(min(_PIECE_BYTES, left))):
                    size += len(piece)
                    left -= len(piece)
        except OSError:
            failed += 1
            continue
        knows = knows and is_cached is not None
        if is_cached:
            cache = cache.plus(size, clock.now_s() - began_s)
        else:
            disk = disk.plus(size, clock.now_s() - began_s)
    return ReadingRate(disk=disk, cache=cache, failed=failed, knows_cache=knows)


def _mixed(files: Sequence[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """Return at most 400 files evenly spread over all, far ones after each other, as a shuffled epoch reads them."""
    step = max(1, len(files) // _MOST_FILES)
    chosen = list(files[::step])[:_MOST_FILES]
    return [one for start in range(7) for one in chosen[start::7]]


def _is_cached(descriptor: int) -> bool | None:
    """Return whether the beginning of a file is in the page cache; None where the file system does not tell."""
    if not hasattr(os, "preadv"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return None
