"""Watched trainings: what is told of them, once, from the files that they write."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.daemon.drift import MachineState
from autotune.daemon.trainings import TrainingEvent, Trainings, WatchedTraining
from autotune.trial import trainings
from autotune.trial.process_identity import this_process
from autotune.trial.trainings import prune_trainings
from tests.daemon.web.busy_daemon import CONFIRMED, HEADER, Training, quiet

_NAME = "20300101T000000Z-%d-0123abcd"


def _training(trainings: Path, number: int = 1, **header: object) -> Training:
    return Training(trainings / (_NAME % number), VirtualClock(1000.0), replace(HEADER, **header))  # type: ignore[arg-type]


def _busy(_training: WatchedTraining) -> MachineState:
    return MachineState(foreign_cores=2.5, cores=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of all trainings."""
    return tmp_path / "trainings"


@pytest.fixture
def ended() -> dict[str, object]:
    """Identity of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = {**this_process(), "pid": process.pid}
        identity["started_s"] = os.stat(f"/proc/{process.pid}").st_ctime
    return identity


def _kinds(events: list[TrainingEvent]) -> list[str]:
    return [event["event"] for event in events]


def _poll(trainings: Trainings, clock: VirtualClock, machine_state: object = quiet) -> list[TrainingEvent]:
    clock.wait(10.0)
    return trainings.poll(machine_state)  # type: ignore[arg-type]


def test_a_slowdown_is_told_with_its_cause_and_so_is_the_recovery(folder: Path) -> None:
    """Files are read as they grow; what the machine did at the time is the cause."""
    training, clock = _training(folder), VirtualClock()
    trainings = Trainings(folder, clock)
    events: list[TrainingEvent] = []
    for number in range(180):
        training.trains(5, 60.0 if 80 <= number < 120 else 100.0)
        clock.wait(40.0)
        events += _poll(trainings, clock, _busy if 80 <= number < 120 else quiet)
    assert _kinds(events) == ["training_started", "slower", "recovered"]
    slower = events[1]
    assert slower["cause"]["kind"] == "neighbour on the CPU"
    assert "at 60 % of its usual speed" in slower["message"]
    assert "2.5 of 4 cores busy, before 0.1" in slower["message"]
    assert slower["since_utc"] < slower["utc"]
    assert "has recovered to" in events[2]["message"]
    assert all(json.dumps(event) for event in events)


def test_a_slow_start_is_told_against_what_was_confirmed(folder: Path) -> None:
    """Both numbers and the interval are in the sentence."""
    training, clock = _training(folder, confirmed=CONFIRMED), VirtualClock()
    training.trains(60, 81.0)
    clock.wait(600.0)
    events = _poll(Trainings(folder, clock), clock)
    assert _kinds(events) == ["training_started", "slower_than_confirmed"]
    assert "at 81 % of the measured speed, interval 93-107 %" in events[1]["message"]


def test_each_event_is_told_once_whatever_becomes_of_the_daemon(folder: Path) -> None:
    """A second daemon reads the same files, and has nothing new to tell."""
    training, clock = _training(folder, confirmed=CONFIRMED), VirtualClock()
    training.trains(60, 81.0)
    assert len(_poll(Trainings(folder, clock), clock)) == 2
    again = Trainings(folder, clock)
    assert _poll(again, clock) == []
    assert again.alive[0].progress.steps == 3000
    training.trains(1)
    assert _poll(again, clock) == []


def test_an_end_is_told_and_what_ended_before_anybody_watched_is_not(folder: Path, ended: dict[str, object]) -> None:
    """The process is looked at, not the folder; a daemon that starts late is quiet about the past."""
    training, clock = _training(folder), VirtualClock()
    training.trains(3)
    trainings = Trainings(folder, clock)
    assert _kinds(_poll(trainings, clock)) == ["training_started"]
    training.trains(2)
    replace(HEADER, owner=ended).write(training.file.parent)
    later = Trainings(folder, clock)
    (event,) = _poll(later, clock)
    assert event["message"] == "python train.py has ended after 250 steps in 50s."
    assert later.alive == ()
    unseen = _training(folder, 2, owner=ended)
    unseen.trains(3)
    assert _poll(Trainings(folder, clock), clock) == []


def test_a_config_is_in_use_as_long_as_its_training_goes_on(
    folder: Path, tmp_path: Path, ended: dict[str, object]
) -> None:
    """By whatever name it is reached, and from the moment that the folder is there."""
    config, link = tmp_path / "config.yaml", tmp_path / "link.yaml"
    config.write_text("a: 1\n")
    link.symlink_to(config)
    trainings = Trainings(folder, VirtualClock())
    assert not trainings.uses(config)
    training = _training(folder, config=str(config))
    assert trainings.uses(config)
    assert trainings.uses(link)
    assert not trainings.uses(tmp_path / "other.yaml")
    replace(HEADER, config=str(config), owner=ended).write(training.file.parent)
    assert not Trainings(folder, VirtualClock()).uses(config)


def test_garbage_and_torn_lines_are_passed_over(folder: Path) -> None:
    """Nothing that a process writes there stops the watch."""
    training, clock = _training(folder), VirtualClock()
    training.trains(2)
    with training.file.open("ab") as file:
        file.write(
            b"\xff\x00{\n[1]\n" + b"x" * 100_000 + b'\n{"k": "pace", "t0_s": "a"}\n{"k": "pace", "t0_s": 1e400}\n'
        )
    training.trains(1)
    with training.file.open("a") as file:
        file.write('{"k": "pace", "t0_s": 1030.0, "t1')
    (training.file.parent / "pace.3.0.0.jsonl").mkdir()
    (folder / (_NAME % 5)).symlink_to(training.file.parent)
    (folder / (_NAME % 6)).mkdir()
    (folder / (_NAME % 6) / "training.json").write_text('{"format": 1, "argv": 3}')
    trainings = Trainings(folder, clock)
    assert _kinds(_poll(trainings, clock)) == ["training_started"]
    assert [one.progress.steps for one in trainings.alive] == [150]
    with training.file.open("a") as file:
        file.write('_s": 1040.0, "steps": 50, "train_s": 10.0}\n')
    _poll(trainings, clock)
    assert [one.progress.steps for one in trainings.alive] == [200]


def test_the_last_ended_trainings_are_kept(
    folder: Path, ended: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones are deleted; those that go on, and folders of other names, never."""
    monkeypatch.setattr(trainings, "KEPT", 2)
    for number in range(1, 6):
        _training(folder, number, **({} if number == 1 else {"owner": ended}))
    (folder / "notes").mkdir()
    prune_trainings(folder, VirtualClock().utc())
    assert sorted(path.name for path in folder.iterdir()) == [*(_NAME % number for number in (1, 4, 5)), "notes"]


def test_a_training_that_is_only_counted_is_not_watched(folder: Path) -> None:
    """Nothing is told of it; its config is in use all the same."""
    config = folder.parent / "config.yaml"
    training = _training(folder, is_watched=False, config=str(config))
    training.trains(5, 100.0)
    watching = Trainings(folder, VirtualClock())
    assert _poll(watching, VirtualClock()) == []
    assert watching.uses(config)


def test_a_process_started_anew_with_an_edited_config_is_told_so(folder: Path, tmp_path: Path) -> None:
    """A running process does not see an edit; the next one in the same training does."""
    config = tmp_path / "config.yaml"
    config.write_text("a: 1\n")
    training, clock = _training(folder, config=str(config), config_sha256="0" * 64), VirtualClock()
    trainings = Trainings(folder, clock)
    events: list[TrainingEvent] = []
    for number in range(140):
        if number == 80:
            training.file = training.file.parent / "pace.4712.0.0.jsonl"
            clock.wait(200.0)
            training.clock.wait(200.0)
        training.trains(5, 60.0 if number >= 80 else 100.0)
        clock.wait(40.0)
        events += _poll(trainings, clock)
    assert _kinds(events) == ["training_started", "slower"]
    assert events[1]["cause"]["kind"] == "config edited"


def test_a_folder_of_another_user_is_not_read(folder: Path) -> None:
    """A place that others may write to holds no trainings of ours."""
    _training(folder).trains(3)
    folder.chmod(0o777)
    trainings = Trainings(folder, VirtualClock())
    assert _poll(trainings, VirtualClock()) == []
    assert trainings.alive == ()
