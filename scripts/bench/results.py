"""Results of benchmarks: what they are asked for, kept line by line, and shown as tables in Markdown.

A long benchmark is made in pieces, in processes; each result is a line of a file, so that the same command goes on
after an interruption.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.clock import parse_duration_s
from autotune.errors import ConfigError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Parsers of all benchmarks; each adds its own."""


def parse_seeds(text: str) -> range:
    """Parse ``0-31``, both ends included, or a single seed."""
    first, dash, last = text.partition("-")
    seeds = range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"{text!r} names no seeds")
    return seeds


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse ``30,60``: numbers above 0."""
    numbers = tuple(sorted({int(number) for number in text.split(",")}))
    if numbers[0] < 1:
        raise ValueError(f"{text!r} are no numbers of trials")
    return numbers


def parse_budgets_s(text: str) -> tuple[float, ...]:
    """Parse ``5m,30m``."""
    return tuple(sorted({parse_duration_s(budget) for budget in text.split(",")}))


def add_pieces(parser: argparse.ArgumentParser, *, out: str) -> None:
    """Add the options of a benchmark that is made in pieces, whose results are kept."""
    parser.add_argument("--jobs", type=int, default=1, help="processes at work (default: 1)")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the results; gone on with")


_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_MEMORY = Path("/dev/shm")


class _Made(Protocol):
    """Result that says which piece it is of."""

    @property
    def piece(self) -> Hashable:
        """The piece."""


_MadeResult = TypeVar("_MadeResult", bound=_Made)


def make_missing(
    make: Callable[[_Piece], _MadeResult],
    wanted: Sequence[_Piece],
    *,
    path: Path,
    head: Mapping[str, Any],
    kind: type[_MadeResult],
    jobs: int,
    describe: Callable[[_MadeResult], str],
) -> list[_MadeResult]:
    """Make the pieces that are not in the file yet, each with a line on stderr.

    Args:
        make: Makes one piece; it is pickled.
        path: File of the results; made with its folder if it does not exist.
        head: As for `kept_entries`.
        describe: Returns what is said of a result that was made.

    Returns:
        A result for each piece.

    Raises:
        ConfigError: The file was made by another version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = (msgspec.convert(entry["search"], kind, str_keys=True) for entry in kept_entries(path, head))
    done: dict[Hashable, _MadeResult] = {result.piece: result for result in kept}
    missing = [piece for piece in wanted if piece not in done]
    with path.open("a", encoding="utf-8") as file:
        for number, result in enumerate(in_processes(make, missing, jobs), start=1):
            file.write(json.dumps({**head, "search": msgspec.to_builtins(result, str_keys=True)}) + "\n")
            file.flush()
            done[result.piece] = result
            print(f"{number} of {len(missing)}: {describe(result)}", file=sys.stderr)
    return [done[piece] for piece in wanted]


def in_processes(make: Callable[[_Piece], _Result], pieces: Sequence[_Piece], jobs: int) -> Iterator[_Result]:
    """Yield the results in the order of their completion.

    Args:
        make: Makes one piece; it is pickled.
        jobs: Number of processes; 1 makes them in this one.
    """
    if jobs == 1:
        yield from map(make, pieces)
        return
    # The processes share the cores: threads of their numeric libraries would wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A fork would copy the threads of the numeric libraries in an unknown state.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            waiting = [pool.submit(make, piece) for piece in pieces]
            for future in as_completed(waiting):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def kept_lines(path: Path) -> list[str]:
    """Return the lines of an earlier, interrupted benchmark; a torn last line is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rpartition(b"\n")[0] + b"\n" if b"\n" in content else b""
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.decode().splitlines()


def kept_entries(path: Path, head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of an earlier, interrupted benchmark, one object a line.

    Args:
        head: Fields that each line has, with their values: the versions.

    Raises:
        ConfigError: They were made by another version.
    """
    for number, line in enumerate(kept_lines(path), start=1):
        entry: dict[str, Any] = json.loads(line)
        if {name: entry.get(name) for name in head} != head:
            raise ConfigError(
                "these are results of another benchmark: another version, or other options",
                where=f"{path}:{number}",
                remedy="Choose another folder with --out, or delete that one.",
            )
        yield entry


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a folder that does not exist yet, in memory where there is such a place; it is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="autotune-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name) / "work"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; every row has as many cells as there are heads."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def regret_cells(regrets: Sequence[float] | NDArray[np.float64]) -> list[str]:
    """Return median, mean and 90th percentile of regrets as texts, in percent."""
    middle, high = np.percentile(regrets, (50, 90))
    return [f"{regret:.1%}" for regret in (middle, np.mean(regrets), high)]
