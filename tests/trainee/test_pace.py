"""Sums over the steps of a watched training: what they hold, and that they never get in the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.trainee import pace
from autotune.trainee.pace import Pace


def _lines(folder: Path) -> list[dict[str, object]]:
    """Return all lines of a folder's files but the headers."""
    lines = [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    return [line for line in lines if "k" in line]


def test_a_line_holds_the_sums_of_ten_seconds(tmp_path: Path) -> None:
    """Steps, their time, samples, waits and the logarithms of their times; the first step has no time."""
    report = Pace(str(tmp_path), "observer")
    for number in range(26):
        report.step(100.0 + 0.5 * number, 0.1, 8, update=number % 2 == 0)
    (line,) = _lines(tmp_path)
    assert (line["t0_s"], line["t1_s"], line["steps"], line["updates"]) == (100.0, 110.0, 20, 10)
    assert (line["train_s"], line["samples"], line["wait_s"], line["waits"]) == (10.0, 160.0, 2.0, 20)
    assert line["ln_sum"] == pytest.approx(20 * -0.69315, abs=1e-3)
    assert "work" not in line
    report.flush()
    assert _lines(tmp_path)[-1]["steps"] == 5


def test_pauses_are_counted_and_left_out(tmp_path: Path) -> None:
    """The step that holds an evaluation, a checkpoint or the end of an epoch is no step of the sums."""
    report = Pace(str(tmp_path), "step")
    marks = {21: "epoch_end", 23: "eval", 24: "checkpoint"}
    t_s = 0.0
    for number in range(26):
        report.step(t_s)
        if number in marks:
            report.mark(marks[number])
        t_s += 1.0 if number in marks else 0.25
    report.flush()
    (line,) = _lines(tmp_path)
    assert (line["steps"], line["train_s"], line["pause_s"]) == (22, 5.5, 3.0)
    assert (line["evals"], line["checkpoints"], line["epochs"]) == (1, 1, 1)


def test_however_long_it_trains_three_parts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part stays, of the others the last two; eight processes together stay below 10 MB."""
    assert pace.MOST_PROCESSES * 3 * pace.PART_BYTES < 10e6
    monkeypatch.setattr(pace, "PART_BYTES", 4 << 10)
    report = Pace(str(tmp_path), "step")
    for number in range(400):
        report.step(10.0 * number)
    names = sorted((path.name for path in tmp_path.iterdir()), key=lambda name: int(name.split(".")[3]))
    assert names[0].endswith(".0.jsonl")
    assert len(names) == 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * pace.PART_BYTES
    assert _lines(tmp_path)[0]["t0_s"] == 0.0
    assert max(line["t1_s"] for line in _lines(tmp_path)) == 3990.0  # type: ignore[type-var]


def test_a_ninth_process_takes_the_place_of_one_that_has_ended(tmp_path: Path) -> None:
    """Processes that are there keep their files; without a free place there is no report."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for number in range(pace.MOST_PROCESSES - 1):
        (tmp_path / f"pace.{os.getppid()}.{number}.0.jsonl").touch()
    (tmp_path / f"pace.{ended.pid}.0.0.jsonl").touch()
    Pace(str(tmp_path), "step")
    assert not (tmp_path / f"pace.{ended.pid}.0.0.jsonl").exists()
    (tmp_path / f"pace.{os.getpid()}.0.0.jsonl").rename(tmp_path / f"pace.{os.getppid()}.7.0.jsonl")
    with pytest.raises(OSError, match="already report"):
        Pace(str(tmp_path), "step")


_TRAINER = """
import os, resource, sys, time
from autotune.trainee import mark, pace, step
pace.EVERY_S = 0.0
step(samples=4)
if sys.argv[1] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
for number in range(40):
    with step(samples=4, wait_s=0.0):
        time.sleep(0.0005)
mark("checkpoint")
if os.fork() == 0:
    step(samples=4)
    step(samples=4)
    os._exit(0)
os.wait()
print("trained")
"""


@pytest.mark.parametrize("disk", ["free", "full"])
def test_a_trainer_that_reports_its_steps_is_summed_up(tmp_path: Path, disk: str) -> None:
    """Steps of its own go into the sums, a fork has a file of its own, and a full disk costs it nothing."""
    env = {**os.environ, "AUTOTUNE_WATCH_DIR": str(tmp_path)}
    env.pop("AUTOTUNE_TRIAL_DIR", None)
    done = subprocess.run([sys.executable, "-c", _TRAINER, disk], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert not list(tmp_path.glob("steps.*"))
    if disk == "full":
        assert all(path.stat().st_size <= 400 for path in tmp_path.iterdir())
    else:
        assert sum(line["steps"] for line in _lines(tmp_path)) >= 40  # type: ignore[misc]
        assert len({path.name.split(".")[1] for path in tmp_path.iterdir()}) == 2


def test_a_trial_is_no_watched_training(tmp_path: Path) -> None:
    """Where both folders are named, the steps are written one by one, as the search needs them."""
    trial, watch = tmp_path / "trial", tmp_path / "watch"
    trial.mkdir()
    watch.mkdir()
    env = {**os.environ, "AUTOTUNE_WATCH_DIR": str(watch), "AUTOTUNE_TRIAL_DIR": str(trial)}
    subprocess.run([sys.executable, "-c", _TRAINER, "free"], env=env, capture_output=True, check=True)
    assert not list(watch.iterdir())
    assert len(list(trial.glob("steps.*"))) == 2
