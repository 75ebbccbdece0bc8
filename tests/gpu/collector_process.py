"""The collector's process as tests start it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.measure.gpu import collector as gpu_process
from autotune.measure.gpu.records import Record, of_line

DEADLINE_S = 60.0


@contextmanager
def reading(file: Path, uuids: Sequence[str], *, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A collector at work; it must not have ended by itself, nor have complained."""
    command = [sys.executable, "-P", "-m", gpu_process.__name__, *uuids]
    with (
        file.open("ab") as stdout,
        subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.PIPE) as process,
    ):
        try:
            yield process
            assert process.poll() is None
        finally:
            process.kill()
        assert process.communicate()[1] == b""


def records_of(file: Path) -> list[Record]:
    """Return its records so far, whole lines only."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [record for record in map(of_line, (line for line in lines if line.endswith("\n"))) if record is not None]


def until(condition: Callable[[], bool], what: str) -> None:
    """Comes back when it holds; fails with that word if it does not come to hold."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)
