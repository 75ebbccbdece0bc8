"""Long benchmarks in pieces: run in processes, each result a line of a file, so that the same command resumes."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import ConfigError

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_MEMORY = Path("/dev/shm")  # noqa: S108 (a temporary folder is made in it, with a name of its own)


def in_processes(make: Callable[[_Piece], _Result], pieces: Sequence[_Piece], jobs: int) -> Iterator[_Result]:
    """Yield the results in the order of their completion.

    Args:
        make: Makes one piece; it is pickled.
        pieces: The pieces.
        jobs: Number of processes; 1 makes them in this one.
    """
    if jobs == 1:
        yield from map(make, pieces)
        return
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
        path: The file.
        head: Fields that each line has, with their values: the versions.

    Raises:
        ConfigError: They were made by another version.
    """
    for number, line in enumerate(kept_lines(path), start=1):
        entry: dict[str, Any] = json.loads(line)
        if {name: entry.get(name) for name in head} != head:
            raise ConfigError(
                "these are results of another version",
                where=f"{path}:{number}",
                remedy="Choose another folder with --out, or delete that one.",
            )
        yield entry


@contextmanager
def work_folder() -> Iterator[Path]:
    """Give a folder that does not exist yet, in memory where there is such a place; it is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="autotune-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name) / "work"
