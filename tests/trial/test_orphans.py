"""Orphan cleanup: the processes that it ends, and above all those that it spares."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trial.folders import MARKER, TrialFolder
from autotune.trial.launch import OrphanCleanup, end_orphans
from tests.trial.conftest import Trials
from tests.until import ended

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(start: Start) -> Start:
    """Start processes that wait to be told to end, with these variables."""

    def begin(**env: object) -> subprocess.Popen[str]:
        variables = {name: str(value) for name, value in env.items()}
        process = start("import sys; print(flush=True); sys.stdin.read()", **variables)
        process.stdout.readline()  # only after exec does /proc show these variables
        return process

    return begin


@pytest.fixture
def folder(trials: Trials) -> TrialFolder:
    """Folder of an earlier trial."""
    folder = TrialFolder(trials.folder)
    folder.create()
    return folder


def test_finds_a_trial_by_whatever_path(trials: Trials, folder: TrialFolder, start: Start, hostile: Path) -> None:
    """It is killed, and named; links on the way to the study's folder, and odd names, make no difference."""
    (hostile / "link").symlink_to(trials.study)
    left = start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=hostile / "link" / folder.path.name)
    assert end_orphans(hostile / "link", SystemClock()) == OrphanCleanup(killed=(left.pid,))
    assert left.wait(60.0) == -9


def test_spares_what_only_looks_like_a_trial(trials: Trials, folder: TrialFolder, start: Start) -> None:
    """Both variables are needed, and a folder that autotune made directly in the study's."""
    (trials.study / "not ours").mkdir()
    (folder.path / "deeper").mkdir()
    (folder.path / "deeper" / MARKER).touch()
    processes = [
        start(AUTOTUNE_TRIAL_DIR=folder.path),
        start(AUTOTUNE_TRIAL_ID=trials.trial_id),
        start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=trials.study / "not ours"),
        start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=trials.study / "gone"),
        start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=folder.path / "deeper"),
        start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=trials.study),
    ]
    assert end_orphans(trials.study, SystemClock()) == OrphanCleanup()
    assert [process.poll() for process in processes] == [None] * len(processes)


def test_spares_what_is_older_than_the_folder(trials: Trials, folder: TrialFolder, start: Start) -> None:
    """A process cannot be of a trial that was made after it."""
    process = start(AUTOTUNE_TRIAL_ID=trials.trial_id, AUTOTUNE_TRIAL_DIR=folder.path)
    later_s = SystemClock().utc().timestamp() + 60.0
    os.utime(folder.path / MARKER, (later_s, later_s))
    assert end_orphans(trials.study, SystemClock()) == OrphanCleanup()
    assert process.poll() is None


def test_spares_itself_and_those_it_came_from(trials: Trials, folder: TrialFolder) -> None:
    """An orphan cleanup within a trial of the study does not end the trial it is in."""
    code = (
        "import subprocess, sys; from pathlib import Path; from autotune.clock import SystemClock;"
        "from autotune.trial.launch import end_orphans; print(end_orphans(Path(sys.argv[1]), SystemClock()))"
    )
    parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}, sys.argv[1]]))"
    carried = {"AUTOTUNE_TRIAL_ID": trials.trial_id, "AUTOTUNE_TRIAL_DIR": str(folder.path)}
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **carried}
    done = ended(sys.executable, "-c", parent, trials.study, env=env)
    assert (done.returncode, done.stdout) == (0, "OrphanCleanup(killed=(), left=())\n"), done.stderr
