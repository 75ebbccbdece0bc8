"""Observation of a process from outside: real processes that start, fork, report and end."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.daemon.monitor import WatchedProcess
from autotune.errors import AutotuneError
from autotune.trial.folder import TrialFolder
from tests.until import until

# Says when it is ready, and lives until its stdin is closed.
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
FORKS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAITS!r}], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""
OPENS = "import sys; steps = open(sys.argv[1], 'a'); print('ready', flush=True); sys.stdin.read()"

Start = Callable[..., subprocess.Popen[str]]


def test_a_process_is_watched_until_it_ends(start: Start) -> None:
    """Also while nobody has asked how it ended."""
    process = start(WAITS)
    process.stdout.readline()
    watched = WatchedProcess(process.pid, SystemClock())
    assert not watched.has_ended
    process.stdin.close()
    process.stdin = None
    until(lambda: watched.has_ended)
    with pytest.raises(AutotuneError, match=f"process {process.pid} has ended"):
        WatchedProcess(process.pid, SystemClock())
    process.wait()
    assert watched.has_ended
    assert watched.environ() is None
    assert watched.trial_folder() is None


def test_all_below_it_is_its_own(start: Start) -> None:
    """For a while also after it has ended: its kernels of the last minute are still its own."""
    process = start(FORKS)
    child = int(process.stdout.readline())
    clock = VirtualClock()
    watched = WatchedProcess(process.pid, clock)
    assert watched.pids() == {process.pid, child}
    process.stdin.close()
    process.stdin = None
    process.wait(timeout=60)
    clock.wait(60.0)
    assert watched.pids() == {process.pid, child}
    clock.wait(120.0)
    assert watched.pids() == {process.pid}


def test_its_environment_names_the_place_of_its_steps(start: Start, tmp_path: Path) -> None:
    """As a search has set it."""
    process = start(WAITS, AUTOTUNE_TRIAL_DIR=str(tmp_path), CUDA_VISIBLE_DEVICES="1")
    process.stdout.readline()
    watched = WatchedProcess(process.pid, SystemClock())
    assert watched.environ()["CUDA_VISIBLE_DEVICES"] == "1"
    assert watched.trial_folder() == tmp_path
    plain = start(WAITS)
    plain.stdout.readline()
    assert WatchedProcess(plain.pid, SystemClock()).trial_folder() is None


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_trial_without_that_variable_is_known_by_its_open_file(start: Start, tmp_path: Path, is_ours: bool) -> None:
    """A fork of a warm interpreter; a file of that name in a folder that autotune did not make means nothing."""
    folder = TrialFolder(tmp_path / "run")
    if is_ours:
        folder.create()
    else:
        folder.path.mkdir()
    process = start(OPENS, str(folder.path / "steps.1.0.jsonl"))
    process.stdout.readline()
    assert WatchedProcess(process.pid, SystemClock()).trial_folder() == (folder.path if is_ours else None)
