"""What a sweep ends, and above all what it does not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.folders.trial_folder import MARKER, RunFolder
from autotune.process.orphans import Swept, sweep
from tests.process.conftest import Runs

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that wait to be told to end, with these variables."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**env: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **{name: str(value) for name, value in env.items()}},
        )
        assert process.stdout is not None
        process.stdout.readline()  # only after exec does /proc show these variables
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(runs: Runs) -> RunFolder:
    """The folder of an earlier run."""
    folder = RunFolder(runs.folder)
    folder.create()
    return folder


def test_ends_what_a_run_left(runs: Runs, folder: RunFolder, start: Start) -> None:
    """A process that carries a run of this study is killed, and named."""
    left = start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=folder.path)
    assert sweep(runs.study, SystemClock()) == Swept(killed=(left.pid,))
    assert left.wait(60.0) == -9


def test_finds_a_run_by_whatever_path(runs: Runs, folder: RunFolder, start: Start, hostile: Path) -> None:
    """Links on the way to the study's folder, and odd names, make no difference."""
    (hostile / "link").symlink_to(runs.study)
    left = start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=hostile / "link" / folder.path.name)
    assert sweep(hostile / "link", SystemClock()).killed == (left.pid,)


def test_spares_other_studies(runs: Runs, folder: RunFolder, start: Start, tmp_path: Path) -> None:
    """Runs of another study belong to another search."""
    other = RunFolder(tmp_path / "runs" / "other" / "run")
    other.create()
    process = start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=other.path)
    assert sweep(runs.study, SystemClock()) == Swept()
    assert process.poll() is None


def test_spares_what_only_looks_like_a_run(runs: Runs, folder: RunFolder, start: Start) -> None:
    """Both variables are needed, and a folder that autotune made directly in the study's."""
    (runs.study / "not ours").mkdir()
    (folder.path / "deeper").mkdir()
    (folder.path / "deeper" / MARKER).touch()
    processes = [
        start(AUTOTUNE_RUN_DIR=folder.path),
        start(AUTOTUNE_RUN_ID=runs.run_id),
        start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=runs.study / "not ours"),
        start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=runs.study / "gone"),
        start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=folder.path / "deeper"),
        start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=runs.study),
    ]
    assert sweep(runs.study, SystemClock()) == Swept()
    assert [process.poll() for process in processes] == [None] * len(processes)


def test_spares_what_is_older_than_the_folder(runs: Runs, folder: RunFolder, start: Start) -> None:
    """A process cannot be of a run that was made after it."""
    process = start(AUTOTUNE_RUN_ID=runs.run_id, AUTOTUNE_RUN_DIR=folder.path)
    later_s = SystemClock().utc().timestamp() + 60.0
    os.utime(folder.path / MARKER, (later_s, later_s))
    assert sweep(runs.study, SystemClock()) == Swept()
    assert process.poll() is None


def test_spares_itself_and_those_it_came_from(runs: Runs, folder: RunFolder) -> None:
    """A sweep within a run of the study does not end the run it is in."""
    code = (
        "import subprocess, sys; from pathlib import Path; from autotune.clock import SystemClock;"
        "from autotune.process.orphans import sweep; print(sweep(Path(sys.argv[1]), SystemClock()))"
    )
    parent = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {code!r}, sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-c", parent, str(runs.study)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "AUTOTUNE_RUN_ID": runs.run_id,
            "AUTOTUNE_RUN_DIR": str(folder.path),
        },
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "Swept(killed=(), left=())\n"), done.stderr


def test_finds_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    """A study without a folder has no runs."""
    assert sweep(tmp_path / "none", SystemClock()) == Swept()
