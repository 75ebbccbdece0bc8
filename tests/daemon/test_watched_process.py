"""Observation of a process from outside: real processes that start, fork and end."""

import subprocess
from collections.abc import Callable

import pytest

from autotune.daemon.monitor import WatchedProcess
from autotune.errors import AutotuneError
from tests.until import until

# Says when it is ready, and lives until its stdin is closed.
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
FORKS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAITS!r}], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""
Start = Callable[..., subprocess.Popen[str]]


def test_a_process_is_watched_until_it_ends(start: Start) -> None:
    """Also while nobody has asked how it ended."""
    process = start(WAITS)
    process.stdout.readline()
    watched = WatchedProcess(process.pid)
    assert not watched.has_ended
    process.stdin.close()
    process.stdin = None
    until(lambda: watched.has_ended)
    with pytest.raises(AutotuneError, match=f"process {process.pid} has ended"):
        WatchedProcess(process.pid)
    process.wait()
    assert watched.has_ended
    assert watched.environ() is None


def test_all_below_it_is_its_own(start: Start) -> None:
    """The processes that it started, for as long as they live."""
    process = start(FORKS)
    child = int(process.stdout.readline())
    assert WatchedProcess(process.pid).pids() == {process.pid, child}


def test_its_environment_is_that_which_it_was_started_with(start: Start) -> None:
    """It names the GPUs that it may use."""
    process = start(WAITS, CUDA_VISIBLE_DEVICES="1")
    process.stdout.readline()
    assert WatchedProcess(process.pid).environ()["CUDA_VISIBLE_DEVICES"] == "1"
