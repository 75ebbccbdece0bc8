"""Check of the storage that the dataset is on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.clock import Clock
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, capitalized, counted, issue
from autotune.diagnose.subject import DatasetPlace, Subject, missing_data, place_of
from autotune.files import open_regular
from autotune.measure.gpu.driver import in_time
from autotune.measure.host import file_system, is_network, is_rotating, memory_state


def check_storage(look: Subject) -> CheckResult:
    """Look at where the dataset is, and read some of it."""
    if look.problem is None:
        why_not = "no config is given, so that it is not known where the dataset is"
        return CheckResult(check="storage", why_not=why_not)
    if look.places is None:
        return CheckResult(check="storage", issues=(_silent(),))
    issues, seen = [], []
    for key, value in missing_data(look.problem):
        missing = f"{key} names {value}, and there is nothing of that name on this machine."
        remedy = "Correct the path, or mount what is there."
        place_of_key = place_of(look.problem, key)
        issues.append(issue("storage", missing, remedy, severity=Severity.ERROR, place=place_of_key))
    if not look.places and not issues:
        return CheckResult(check="storage", why_not="the config names no dataset that is on this machine")
    for place in look.places:
        rate = None
        if place is look.places[0]:
            rate = in_time(partial(reading_rate, place.files, look.clock))
            issues += [_silent()] if rate is None else []
        seen.append(_sentence(place, rate))
        issues += _of_place(place, rate)
    return CheckResult(check="storage", issues=tuple(issues), sentence="; ".join(seen))


def _of_place(place: DatasetPlace, rate: ReadingRate | None) -> Iterator[Issue]:
    kind = file_system(place.path) or "unknown"
    on_network, rotates = is_network(kind), is_rotating(place.path)
    found = partial(issue, "storage", place=str(place.path), limit=Limit.READING)
    if on_network:
        yield found(
            f"The dataset is on another machine ({kind}): each file that is read crosses the network.",
            _copy(place),
            severity=Severity.WARNING if rate is None or _is_slow(rate) else Severity.NOTE,
        )
    elif rate is not None and _is_slow(rate):
        disk = "a disk that rotates" if rotates else f"this disk ({kind})"
        reads = rate.disk
        yield found(
            f"{capitalized(disk)} gave {_rates(rate)}, which is slow.",
            _copy(place),
            numbers={"disk_bytes_per_s": reads.bytes_per_s, "disk_files_per_s": reads.files_per_s},
        )
    small = sum(size < 256 << 10 for _, size in place.files)
    if small >= 10_000 and small * 2 > len(place.files) and (on_network or rotates):
        yield found(
            f"{small:,} of its files are smaller than 256 KiB: each costs a look-up and a seek.",
            "Pack them into a few large files once, e.g. TFRecord or tar files of 100 MB and more.",
            severity=Severity.NOTE,
        )


def _silent() -> Issue:
    """Return the issue that a file system hangs, as a network does whose server is gone."""
    return issue(
        "storage",
        "The file system of the dataset has not answered for 10 s.",
        "See with `df` whether it answers; on a network, its server may be gone.",
        severity=Severity.ERROR,
        limit=Limit.READING,
    )


def _is_slow(rate: ReadingRate) -> bool:
    # what one disk that rotates reads in sequence, and seeks in 5 to 10 ms; an SSD reads several times that
    reads = rate.disk
    return rate.knows_cache and reads.are_enough and reads.bytes_per_s < 150e6 and reads.files_per_s < 200


def _copy(place: DatasetPlace) -> str:
    # of the available memory that a dataset may take of the page cache
    if place.is_whole and place.size_bytes < 0.5 * memory_state().available_bytes:
        return (
            f"Its {place.size_bytes / 2**30:.1f} GiB fit into memory: cache it there, or copy it to a local SSD "
            "before training."
        )
    return "Copy it to a local SSD before training, or cache what is prepared of it."


def _sentence(place: DatasetPlace, rate: ReadingRate | None) -> str:
    kind = file_system(place.path)
    more, where = "" if place.is_whole else " and more", f" on {kind}" if kind else ""
    files = f"{place.key}: {counted(len(place.files), 'file')}{more}, {place.size_bytes / 2**30:.2f} GiB{where}"
    rates = _rates(rate) if rate is not None else ""
    return ", ".join((files, rates)) if rates else files


def _rates(rate: ReadingRate) -> str:
    from_disk = "from the disk" if rate.knows_cache else "read"
    return ", ".join(
        f"{reads.bytes_per_s / 1e6:,.0f} MB/s and {reads.files_per_s:,.0f} files/s {source} ({reads.files} files)"
        for reads, source in ((rate.disk, from_disk), (rate.cache, "from memory"))
        if reads.are_enough
    )


@dataclass(kw_only=True)
class Reads:
    """Reads from one source."""

    files: int = 0
    size_bytes: int = 0
    duration_s: float = 0.0

    @property
    def are_enough(self) -> bool:
        """True if a rate can be told of them."""
        return (self.files >= 8 or self.size_bytes >= 32 << 20) and self.size_bytes > 0 and self.duration_s > 0

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.duration_s

    @property
    def files_per_s(self) -> float:
        return self.files / self.duration_s


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    """Reads of a sample of files.

    Attributes:
        disk: Those of files that were not in the page cache, or where that is not known.
        knows_cache: Whether the file system tells what is in the page cache.
    """

    disk: Reads
    cache: Reads
    knows_cache: bool


def reading_rate(files: Sequence[tuple[Path, int]], clock: Clock) -> ReadingRate:
    """Read a sample of files, for at most 2 s and 256 MiB.

    Args:
        files: Files with their sizes; at most 400 evenly spread over them are read, far ones after each other, as a
            shuffled epoch reads them.
    """
    disk, cache, knows = Reads(), Reads(), True
    deadline_s, left = clock.now_s() + 2.0, 256 << 20
    chosen = list(files[:: max(1, len(files) // 400)])[:400]
    for path, _size_bytes in [one for start in range(7) for one in chosen[start::7]]:
        if clock.now_s() >= deadline_s or left <= 0:
            break
        began_s, size = clock.now_s(), 0
        try:
            with open_regular(Path(os.path.realpath(path))) as file:  # links to files are usual in datasets
                is_cached = _is_cached(file.fileno())
                while left > 0 and clock.now_s() < deadline_s and (piece := file.read(min(1 << 20, left))):
                    size += len(piece)
                    left -= len(piece)
        except OSError:
            continue
        knows = knows and is_cached is not None
        reads = cache if is_cached else disk
        reads.files += 1
        reads.size_bytes += size
        reads.duration_s += clock.now_s() - began_s
    return ReadingRate(disk=disk, cache=cache, knows_cache=knows)


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
