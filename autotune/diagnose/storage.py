"""Check of the storage that the dataset is on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.clock import Clock
from autotune.diagnose.config_keys import place_of
from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.look import DatasetPlace, Look, missing_data
from autotune.files import open_regular
from autotune.measure.gpu.devices import in_time
from autotune.measure.host import memory_state
from autotune.messages import Message, _, capitalized, listed, ngettext
from autotune.trial.mounts import file_system, is_network, is_rotating

STORAGE = "storage"
_SMALL_BYTES = 256 << 10


def check_storage(look: Look) -> CheckResult:
    """Look at where the dataset is, and read some of it."""
    if look.problem is None:
        why_not = _("no config is given, so that it is not known where the dataset is")
        return CheckResult(check=STORAGE, why_not=why_not)
    if look.places is None:
        return CheckResult(check=STORAGE, issues=(_silent(),))
    missing = [
        Issue(
            check=STORAGE,
            severity=Severity.ERROR,
            sentence=_(
                "{key} names {value}, and there is nothing of that name on this machine.",
                key=key,
                value=value,
            ),
            place=place_of(look.problem, key),
            recommendations=(Recommendation(sentence=_("Correct the path, or mount what is there.")),),
        )
        for key, value in missing_data(look.problem)
    ]
    if not look.places and not missing:
        return CheckResult(check=STORAGE, why_not=_("the config names no dataset that is on this machine"))
    issues, seen = list(missing), []
    for place in look.places:
        rate = None
        if place is look.places[0]:
            rate = in_time(partial(reading_rate, place.files, look.clock))
            issues += [_silent()] if rate is None else []
        seen.append(_sentence(place, rate))
        issues += _of_place(place, rate)
    return CheckResult(check=STORAGE, issues=tuple(issues), sentence=listed("; ", seen))


def _of_place(place: DatasetPlace, rate: ReadingRate | None) -> Iterator[Issue]:
    kind = file_system(place.path) or "unknown"
    on_network, rotates = is_network(kind), is_rotating(place.path)
    if on_network:
        local = _copy(place)
        yield _issue(
            place,
            _(
                "The dataset is on another machine ({kind}): each file that is read crosses the network.",
                kind=kind,
            ),
            local,
            severity=Severity.WARNING if rate is None or _is_slow(rate) else Severity.NOTE,
        )
    elif rate is not None and _is_slow(rate):
        this = _("this disk ({kind})", kind=kind)
        disk = _("a disk that rotates") if rotates else this
        yield _issue(
            place,
            _("{disk} gave {rates}, which is slow.", disk=capitalized(disk), rates=_rates(rate)),
            _copy(place),
            numbers={
                "disk_bytes_per_s": rate.disk.bytes_per_s or 0.0,
                "disk_files_per_s": rate.disk.files / rate.disk.duration_s,
            },
        )
    small = [size for _, size in place.files if size < _SMALL_BYTES]
    if len(small) >= 10_000 and len(small) * 2 > len(place.files) and (on_network or rotates):
        yield _issue(
            place,
            _(
                "{count:,} of its files are smaller than {size} KiB: each costs a look-up and a seek.",
                count=len(small),
                size=_SMALL_BYTES >> 10,
            ),
            _(
                "Pack them into a few large files once, e.g. TFRecord or tar files of 100 MB and more.",
            ),
            severity=Severity.NOTE,
        )
    if rate is not None and rate.failed:
        unreadable = _("{count} of the files looked at cannot be read by you.", count=rate.failed)
        yield _issue(place, unreadable, _("See their modes."))
    free = _free_bytes(place.path)
    if free is not None and free < 1 << 30:  # no trial starts below it
        full = _("{free:.0f} MiB are left on its file system.", free=free / (1 << 20))
        yield _issue(place, full, _("Make room: caches may go there."))


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _silent() -> Issue:
    """Return the issue that a file system hangs, as a network does whose server is gone."""
    return Issue(
        check=STORAGE,
        severity=Severity.ERROR,
        sentence=_("The file system of the dataset has not answered for 10 s."),
        limit=Limit.READING,
        recommendations=(
            Recommendation(sentence=_("See with `df` whether it answers; on a network, its server may be gone.")),
        ),
    )


def _is_slow(rate: ReadingRate) -> bool:
    reads = rate.disk
    if not _is_enough(reads) or reads.duration_s <= 0 or not rate.knows_cache:
        return False
    # what one disk that rotates reads in sequence, and seeks in 5 to 10 ms; an SSD reads several times that
    return (reads.bytes_per_s or 0.0) < 150e6 and reads.files / reads.duration_s < 200


def _is_enough(reads: Reads) -> bool:
    return reads.files >= 8 or reads.size_bytes >= 32 << 20  # that were read, for a rate to be told of a disk


def _copy(place: DatasetPlace) -> Message:
    # of the available memory that a dataset may take of the page cache
    if place.is_whole and place.size_bytes < 0.5 * memory_state().available_bytes:
        return _(
            "Its {size:.1f} GiB fit into memory: cache it there, or copy it to a local SSD before training.",
            size=place.size_bytes / 2**30,
        )
    return _("Copy it to a local SSD before training, or cache what is prepared of it.")


def _sentence(place: DatasetPlace, rate: ReadingRate | None) -> Message:
    kind = file_system(place.path)
    files = ngettext(
        "{key}: {count:,} file{more}, {size:.2f} GiB{where}",
        "{key}: {count:,} files{more}, {size:.2f} GiB{where}",
        len(place.files),
        key=place.key,
        more="" if place.is_whole else _(" and more"),
        size=place.size_bytes / 2**30,
        where=_(" on {kind}", kind=kind) if kind else "",
    )
    rates = _rates(rate) if rate is not None else ""
    return listed(", ", (files, rates)) if rates else files


def _rates(rate: ReadingRate) -> Message:
    """Return what was read and how fast, for people; empty for nothing."""
    parts = []
    from_disk = _("from the disk") if rate.knows_cache else _("read")
    for reads, source in ((rate.disk, from_disk), (rate.cache, _("from memory"))):
        if reads.bytes_per_s is not None and _is_enough(reads):
            parts.append(
                _(
                    "{speed:,.0f} MB/s and {files:,.0f} files/s {source} ({count} files)",
                    speed=reads.bytes_per_s / 1e6,
                    files=reads.files / reads.duration_s,
                    source=source,
                    count=reads.files,
                )
            )
    return listed(", ", parts)


def _issue(
    place: DatasetPlace,
    sentence: str,
    remedy: str,
    *,
    severity: Severity = Severity.WARNING,
    numbers: dict[str, float] | None = None,
) -> Issue:
    return Issue(
        check=STORAGE,
        severity=severity,
        sentence=sentence,
        place=str(Path(place.path)),
        numbers=numbers or {},
        limit=Limit.READING,
        recommendations=(Recommendation(sentence=remedy),),
    )


_MOST_FILES = 400


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Reads from one source."""

    files: int = 0
    size_bytes: int = 0
    duration_s: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        return self.size_bytes / self.duration_s if self.size_bytes and self.duration_s > 0 else None

    def plus(self, size_bytes: int, duration_s: float) -> Reads:
        """Return them with another file."""
        return Reads(
            files=self.files + 1, size_bytes=self.size_bytes + size_bytes, duration_s=self.duration_s + duration_s
        )


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    """Reads of a sample of files.

    Attributes:
        disk: Those of files that were not in the page cache, or where that is not known.
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
    """
    disk, cache, failed, knows = Reads(), Reads(), 0, True
    deadline_s, left = clock.now_s() + 2.0, 256 << 20
    for path, _size_bytes in _mixed(files):
        if clock.now_s() >= deadline_s or left <= 0:
            break
        began_s = clock.now_s()
        try:
            with open_regular(Path(os.path.realpath(path))) as file:  # links to files are usual in datasets
                is_cached = _is_cached(file.fileno())
                size = 0
                while left > 0 and clock.now_s() < deadline_s and (piece := file.read(min(1 << 20, left))):
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
