"""Cost of the record: what a trial takes to be written, and a study to be opened, in each storage.

It is measured on an empty study, and on one of many trials, searches of 13 knobs on one GPU, with which it is filled at
once (`study_filling`). A trial is written in two parts: before it starts it is claimed and gets its parameters
(*begin*), after its end it gets what it showed (*finish*). A study is opened as by a search; its *answer* is what
``autotune status`` reads: the record, opened and summarized. Each opening is in a process of its own, which has
imported everything and opened an empty study before; the memory is what the large one adds at its peak.
"""

import argparse
import math
import os
import resource
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar

from autotune.clock import SystemClock
from autotune.measure.score import EFFECTIVE_UTILIZATION
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from autotune.study.storage.address import (
    GivenAddress,
    StorageAddress,
    StorageKind,
    address_in_environment,
    parse_address,
)
from autotune.study.storage.journal import open_storage
from autotune.study.storage.storage import Storage
from autotune.study.summary import latest_search, summarize
from autotune.trial.process_identity import is_gone, this_process
from scripts.bench.overhead.filling import SPACE, begin, clear, fill, finish, made_up_trials
from scripts.bench.results import Commands, markdown_table

_TIMED = 30
_OPENINGS = 3
_OTHER_SEED = 1

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """Costs of writing trials.

    Attributes:
        bytes_each: Growth of the storage's file for each; None where there is no file.
    """

    begin_ms: Sequence[float]
    finish_ms: Sequence[float]
    bytes_each: float | None


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """Costs of opening a study: its time, and the memory that it adds at most."""

    seconds: float
    added_bytes: int


def measure_storages(addresses: Sequence[StorageAddress], *, trials: int) -> str:
    """Measure what the record costs in some storages.

    Args:
        addresses: The storages. What is written there is deleted in the end.

    Returns:
        The result, as Markdown.

    Raises:
        StudyError: A storage cannot be used.
    """
    stem = f"bench-{uuid.uuid4().hex[:8]}"
    empty, large = f"{stem}-empty", f"{stem}-large"
    try:
        _in_fresh_process(_fill, addresses, large, trials)
        rows = [row for address in addresses for row in _rows(address, empty, large, trials)]
    finally:
        for address in addresses:
            for name in (empty, large):
                clear(_storage(address), name)
    heads = ["storage", "trials", "begin, ms", "finish, ms", "on disk, each", "opening", "memory", "answer"]
    return f"{markdown_table(heads, rows)}\n\nTimes are medians, in brackets the 90th percentile of {_TIMED} trials."


def temporary_addresses(folder: Path) -> list[StorageAddress]:
    """Return addresses of a journal and of an SQLite database in a folder."""
    return [
        StorageAddress(kind=StorageKind.JOURNAL, shown="journal", path=folder / "studies"),
        StorageAddress(kind=StorageKind.SQLITE, shown="sqlite", path=folder / "studies.db"),
    ]


def _rows(address: StorageAddress, empty: str, large: str, trials: int) -> list[list[str]]:
    rows = []
    for name, count in ((empty, 0), (large, trials)):
        print(f"{address.kind.value}, {count} trials", file=sys.stderr)
        openings = [_in_fresh_process(_open, address, empty, name) for _ in range(_OPENINGS)]
        answers_s = [_in_fresh_process(_answer, address, empty, name) for _ in range(_OPENINGS)]
        writing = _in_fresh_process(_write, address, name)
        rows.append(
            [
                address.kind.value,
                f"{count:,}",
                _times(writing.begin_ms),
                _times(writing.finish_ms),
                "" if writing.bytes_each is None else f"{writing.bytes_each / 1e3:.1f} kB",
                f"{median(opening.seconds for opening in openings):.2f} s",
                f"{median(opening.added_bytes for opening in openings) / 1e6:.0f} MB",
                f"{median(answers_s):.2f} s",
            ]
        )
    return rows


def _times(times_ms: Sequence[float]) -> str:
    return f"{median(times_ms):.0f} ({sorted(times_ms)[math.ceil(0.9 * len(times_ms)) - 1]:.0f})"


def _in_fresh_process(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


# In a process of their own


def _fill(addresses: Sequence[StorageAddress], name: str, trials: int) -> None:
    for count in fill([_storage(address) for address in addresses], name, trials):
        if count % 1000 == 0 or count == trials:
            print(f"filled with {count} trials", file=sys.stderr)


def _write(address: StorageAddress, name: str) -> _Writing:
    clock, size = SystemClock(), _bytes(address, name)
    study = _opened(address, name)
    begin_ms, finish_ms = [], []
    for trial in made_up_trials(_TIMED, seed=_OTHER_SEED):
        began_s = clock.now_s()
        claim = begin(study, trial)
        begun_s = clock.now_s()
        finish(study, claim, trial)
        begin_ms.append(1e3 * (begun_s - began_s))
        finish_ms.append(1e3 * (clock.now_s() - begun_s))
    study.close()
    size_after = _bytes(address, name)
    grown = None if size is None or size_after is None else (size_after - size) / _TIMED
    return _Writing(begin_ms=begin_ms, finish_ms=finish_ms, bytes_each=grown)


def _open(address: StorageAddress, empty: str, name: str) -> _Opening:
    clock = SystemClock()
    _opened(address, empty).close()
    before, began_s = _peak_bytes(), clock.now_s()
    study = _opened(address, name)
    opening = _Opening(seconds=clock.now_s() - began_s, added_bytes=_peak_bytes() - before)
    study.close()
    return opening


def _answer(address: StorageAddress, empty: str, name: str) -> float:
    clock = SystemClock()
    _opened(address, empty).close()
    began_s = clock.now_s()
    study = StudyRecord(name, _storage(address))
    records = study.records()
    search = latest_search(records, EFFECTIVE_UTILIZATION)
    if search is not None:
        summarize(records, search, SPACE, objective=EFFECTIVE_UTILIZATION)
    study.close()
    return clock.now_s() - began_s


def _opened(address: StorageAddress, name: str) -> StudyRecord:
    owner = Owner(about=this_process(), is_gone=is_gone, clock=SystemClock())
    study = StudyRecord(name, _storage(address), owner=owner)
    study.close_abandoned()
    return study


def _storage(address: StorageAddress) -> Storage:
    return open_storage(address, Path())


def _bytes(address: StorageAddress, name: str) -> int | None:
    if address.path is None:
        return None
    path = address.path / f"{name}.journal" if address.kind is StorageKind.JOURNAL else address.path
    return path.stat().st_size if path.exists() else 0


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def add_storage(commands: Commands) -> None:
    """Add the parser of ``storage``."""
    parser = commands.add_parser("storage", help="measure what the record of a study costs, by storage")
    parser.add_argument("--trials", type=int, default=1000, help="of a large study (default: 1000)")
    parser.add_argument(
        "--storage",
        nargs="+",
        metavar="ADDRESS",
        help="e.g. sqlite:studies.db (default: a journal and SQLite in a temporary folder, and what AUTOTUNE_STORAGE "
        "says). What is written there is deleted in the end.",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    said = [GivenAddress(text=text, where="--storage", folder=Path.cwd()) for text in arguments.storage or ()]
    if by_environment := address_in_environment(os.environ, Path.cwd()):
        said.append(by_environment)
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder:
        addresses = [] if arguments.storage else temporary_addresses(Path(folder))
        print(measure_storages([*addresses, *map(parse_address, said)], trials=arguments.trials))
