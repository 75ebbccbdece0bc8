"""Stream of a training process, read back the way the tuner does."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from autotune.records import TraineeEvent
from autotune.trainee import stream
from autotune.trainee.stream import announce, epoch_end, mark, step
from autotune.trial.step_files import StepReader
from tests.conftest import fill


@pytest.fixture(autouse=True)
def fresh_stream() -> Iterator[None]:
    """Each test is a process that has not reported yet."""
    stream.process_stream.forget()
    yield
    stream.process_stream.forget()


@pytest.fixture
def trial_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, as the tuner names it to the trainer."""
    folder = tmp_path / "a run's folder"
    folder.mkdir()
    monkeypatch.setenv(stream.TRIAL_DIR_VARIABLE, str(folder))
    return folder


def lines(folder: Path) -> list[dict[str, object]]:
    """The lines of the one file that was written, each valid JSON of the strict kind; those of files left out."""
    (file,) = folder.iterdir()
    read = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    return [line for line in read if line.get("k") != "files"]


def read_back(folder: Path) -> list[TraineeEvent]:
    """What the tuner reads, but for the names of files."""
    return [event for event in StepReader(folder).poll() if event.kind != "files"]


def test_the_tuner_reads_what_the_trainer_writes(trial_dir: Path) -> None:
    """Every kind of line arrives as an event, with its numbers."""
    announce("test", devices=["GPU-1"])
    step(samples=4, wait_s=0.5, work=7, loss=1.5, update=False)
    mark("sync")
    mark("checkpoint", duration_s=0.25, text='to "there"\n')
    epoch_end()
    events = read_back(trial_dir)
    assert [event.kind for event in events] == ["start", "step", "sync", "checkpoint", "epoch_end"]
    assert (events[1].samples, events[1].wait_s, events[1].work, events[1].loss) == (4.0, 0.5, 7.0, 1.5)
    assert lines(trial_dir)[0]["devices"] == ["GPU-1"]
    assert lines(trial_dir)[1]["update"] is False


def test_a_with_statement_is_one_step_stamped_at_its_end(trial_dir: Path) -> None:
    """The stamp is taken when the block ends, and what is known by then can still be set."""
    with step(samples=8) as this_step:
        within_s = time.monotonic()
        this_step.loss = 2.0
    (line,) = lines(trial_dir)[1:]
    assert line["t_s"] >= within_s - 1e-6
    assert (line["samples"], line["loss"]) == (8, 2.0)


def test_outside_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable a step makes no object and no file."""
    monkeypatch.chdir(tmp_path)
    assert step(samples=8) is step(samples=9)
    with step(samples=8) as this_step:
        this_step.loss = 1.0
    epoch_end()
    mark("eval")
    announce("test")
    assert list(tmp_path.iterdir()) == []


FORKS = """
import os
from autotune.trainee import step
step(samples=1)
if (child := os.fork()) == 0:
    step(samples=2)
    os._exit(0)
os.waitpid(child, 0)
step(samples=3)
"""


def test_a_forked_child_writes_its_own_file(trial_dir: Path) -> None:
    """A worker inherits neither the parent's file nor its place in it."""
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=60)
    by_pid: dict[int, list[float | None]] = {}
    for event in read_back(trial_dir):
        if event.kind == "step":
            by_pid.setdefault(event.pid, []).append(event.samples)
    assert sorted(by_pid.values(), key=len) == [[2.0], [1.0, 3.0]]


def test_a_folder_that_is_gone_is_no_error(trial_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The training goes on in silence."""
    trial_dir.rmdir()
    step(samples=1)
    with step(samples=2):
        pass
    epoch_end()
    mark("note", text="still here")
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def run_on_small_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder on a disk that can be filled; let go of before the disk goes."""
    monkeypatch.setenv(stream.TRIAL_DIR_VARIABLE, str(small_disk))
    yield small_disk
    stream.process_stream.forget()


def test_a_full_disk_leaves_one_torn_line_at_most(run_on_small_disk: Path) -> None:
    """The stream ends on a full disk; nothing is appended behind a torn line when there is room again."""
    step(samples=0)
    fill(run_on_small_disk)
    for number in range(200):  # more than the file's own last page still holds
        step(samples=number, wait_s=0.1, work=1)
    (run_on_small_disk / "filler").unlink()
    step(samples=1)
    (written,) = run_on_small_disk.iterdir()
    *whole, _torn = written.read_text().split("\n")
    assert all(json.loads(line) for line in whole)
    assert len(whole) < 200


def test_threads_do_not_mix_their_lines(trial_dir: Path) -> None:
    """Steps reported by several threads at once are whole lines in one file."""
    threads = [threading.Thread(target=lambda: [step(samples=8, work=1) for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.get("k", "header") for line in lines(trial_dir)].count("step") == 1200


def test_a_killed_trainer_leaves_whole_lines(trial_dir: Path) -> None:
    """All lines are there after a real SIGKILL in the midst of steps, without any flush."""
    script = (
        "from autotune.trainee import step\nimport os\nfor n in range(500): step(samples=n)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -9
    assert [event.samples for event in read_back(trial_dir)[1:]] == list(range(500))


def test_gpus_named_by_uuid_are_in_the_header(trial_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UUIDs of CUDA_VISIBLE_DEVICES are passed on; indices are not, they mean nothing to others."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a1, 0,MIG-b2")
    announce("test")
    announce("second", devices=["GPU-z"])
    (header,) = lines(trial_dir)
    assert (header["devices"], header["source"]) == (["GPU-a1", "MIG-b2"], "test")


def test_a_trainer_takes_over_from_the_observer(trial_dir: Path) -> None:
    """The file is opened by the observer; the trainer's first word adds a header, with what the trainer knows."""
    announce(stream.OBSERVER)
    assert stream.process_stream.is_observed
    announce("the trainer", devices=["GPU-1"])
    step(samples=8)
    assert not stream.process_stream.is_observed
    first, second, line = lines(trial_dir)
    assert (first["source"], second["source"], second["devices"]) == ("observer", "the trainer", ["GPU-1"])
    assert line["samples"] == 8


def test_the_trainers_own_files_are_named_before_its_first_step(
    trial_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however many they are; what is installed is left out, and nothing is imported by looking."""
    own = [str(tmp_path / f"{'m' * 100}{number}.py") for number in range(500)]
    for number, path in enumerate([*own, str(tmp_path / "site-packages" / "installed.py")]):
        module = ModuleType(f"own{number}")
        module.__file__ = path
        monkeypatch.setitem(sys.modules, module.__name__, module)

    generated = ModuleType("pytest.compiled.graph")  # as torch.compile names what it loads from its cache
    generated.__file__ = str(tmp_path / "cache" / "graph.py")
    monkeypatch.setitem(sys.modules, generated.__name__, generated)

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise ImportError("it would be loaded now")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    step()
    step()
    events = StepReader(trial_dir).poll()
    named = [path for event in events for path in event.paths]
    assert sorted(path for path in named if path in own) == sorted(own)
    assert not any("site-packages" in path or path in (json.__file__, generated.__file__) for path in named)
    assert [event.kind for event in events].count("step") == 2
