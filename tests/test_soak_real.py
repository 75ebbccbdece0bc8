"""Table of real trainers and the reading of their logs; the searches themselves are `python -m tests.soak real`."""

import re
import sys
from pathlib import Path

import pytest

from tests.real_trainers.litter import differing
from tests.real_trainers.outcome import Outcome
from tests.real_trainers.own_log import OwnLog, Progress
from tests.real_trainers.table import TRAINERS
from tests.real_trainers.watching import Point, Watch
from tests.soak_real import main

CARRIAGE_RETURN = OwnLog(pattern=r"\|\s*(?P<n>\d+)/\d+ \[", micro=False)


def test_names_are_unique() -> None:
    """A row can be asked for by its name."""
    assert len({trainer.name for trainer in TRAINERS}) == len(TRAINERS) >= 14


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_rows_are_sound(trainer) -> None:
    """Each has the form of its progress lines, and a repository that a reader can clone."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", trainer.repository)
    assert re.compile(trainer.log.pattern).groupindex.keys() <= {"n"}
    assert trainer.command.startswith("python ")
    assert trainer.needs
    assert (
        isinstance(trainer.batch, int)
        or trainer.batch.rpartition(".")[2] in trainer.command.replace("-", "_")
        or trainer.init != ("--from-flags",)
    )


def test_missing_checkouts_are_skipped_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the repository that it is of."""
    names = [trainer.name for trainer in TRAINERS if trainer.package is None]
    assert main([str(tmp_path), "--python", sys.executable, "--only", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert all(" skipped: " in line and "/" in line.rpartition(" of ")[2] for line in lines)


def test_a_progress_bar_is_read() -> None:
    """Updates of the optimizer, also where the bar goes back with a carriage return, and cut anywhere."""
    progress = Progress(log=CARRIAGE_RETURN)
    for piece in ("  0%|   | 0/90 [00:00<?]\r 1%|   | 1/9", "0 [00:01<1]\r", " 3%| | 3/90 [00:02]\r\n"):
        progress.feed(piece)
    assert progress.done == 3
    assert CARRIAGE_RETURN.samples(progress.done, batch=8, accumulation=4) == 96


def test_a_bar_counts_as_soon_as_it_is_drawn() -> None:
    """Its carriage return comes with the next one, perhaps several updates later; it is counted once."""
    progress = Progress(log=CARRIAGE_RETURN)
    assert progress.feed("\r 5%|   | 5/90 [00:01<1]")
    assert progress.done == 5
    assert not progress.feed("\r")
    assert progress.done == 5


def test_counters_that_start_anew_are_added_up() -> None:
    """With each epoch; an evaluation in between is not counted."""
    log = OwnLog(pattern=r"step (?P<n>\d+)", starts_at=0, ignore="val")
    progress = Progress(log=log)
    assert progress.feed("step 0\nstep 1\nstep 2\nval step 0\nstep 0\nstep 1\n")
    assert progress.done == 5


def test_counters_of_samples() -> None:
    """They are no steps, whatever the batch."""
    progress = Progress(log=OwnLog(pattern=r"\[(?P<n>\d+)/600", counts_samples=True))
    assert progress.feed("[0/600\n[64/600\n[128/600\n")
    assert progress.log.samples(progress.done, batch=64) == 128


def test_samples_are_compared_over_one_stretch_of_time(tmp_path: Path) -> None:
    """Anything before the first line seen, or after the last step, is left out on both sides; accumulation counts."""
    trial = tmp_path / ".autotune" / "trials" / "study" / "0"
    trial.mkdir(parents=True)
    (trial / "config.yaml").write_text("per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n")
    times = "".join(f'{{"k": "step", "t_s": {t_s}, "samples": 8}}\n' for t_s in range(1, 1001))
    (trial / "steps.1.0.jsonl").write_text(times + '{"k": "st')
    trainer = next(each for each in TRAINERS if each.name == "trl-sft-accumulating")
    outcome, watch = Outcome(name="", framework=""), Watch(tmp_path, trainer.log)
    points = [Point(t_s=t_s, done=t_s) for t_s in range(100, 2000, 100)]
    watch.points = lambda folder: points
    outcome.take_counts(trainer, tmp_path / ".autotune", watch)
    assert (outcome.steps, outcome.own_samples, outcome.is_right) == (1000, 900 * 32, False)
    assert outcome.counted == pytest.approx(0.25)


def test_the_trial_with_the_most_updates_is_compared(tmp_path: Path) -> None:
    """Of 30 large updates one is 3 %: a trial of many small ones tells a right count from a wrong one."""
    trainer = next(each for each in TRAINERS if each.name == "trl-sft-accumulating")
    outcome, watch, points = Outcome(name="", framework=""), Watch(tmp_path, trainer.log), {}
    for batch, updates in ((64, 30), (4, 200)):
        trial = tmp_path / ".autotune" / "trials" / "study" / str(batch)
        trial.mkdir(parents=True)
        (trial / "config.yaml").write_text(f"per_device_train_batch_size: {batch}\ngradient_accumulation_steps: 1\n")
        (trial / "steps.1.0.jsonl").write_text(
            "".join(f'{{"k": "step", "t_s": {number}, "samples": {batch}}}\n' for number in range(1, updates + 1))
        )
        points[trial] = [Point(t_s=number, done=number) for number in range(updates + 1)]
    watch.points = points.__getitem__
    outcome.take_counts(trainer, tmp_path / ".autotune", watch)
    assert (outcome.own_samples, outcome.counted) == (800, 1.0)


def test_starts_are_cold_if_the_search_said_so() -> None:
    """A warm start that takes as long as the first one is no cold one."""
    outcome = Outcome(name="", framework="", first_step_s=[4.0, 5.0, 3.0])
    assert outcome.start == "warm 4.0s then 4.0s"
    outcome.remarks.append("warm starts are off: the import of x failed")
    assert outcome.start == "cold 4.0s then 4.0s"


def test_a_trial_without_numbers_is_not_compared(tmp_path: Path) -> None:
    """Samples of a step are those of the trial's numbers."""
    trainer = next(each for each in TRAINERS if each.name == "tf-cnn-benchmarks")
    outcome, watch = Outcome(name="", framework=""), Watch(tmp_path, trainer.log)
    trial = tmp_path / ".autotune" / "trials" / "study" / "0"
    trial.mkdir(parents=True)
    (trial / "config.yaml").write_text("batch_size: 8\n")
    (trial / "result.json").write_text('{"measurement": null}')
    (trial / "steps.1.0.jsonl").write_text("".join(f'{{"k": "step", "t_s": {t_s}}}\n' for t_s in range(1, 101)))
    watch.points = lambda folder: [Point(t_s=t_s, done=t_s) for t_s in range(101)]
    outcome.take_counts(trainer, tmp_path / ".autotune", watch)
    assert (outcome.steps, outcome.counted, outcome.is_right) == (100, None, None)


@pytest.mark.parametrize("is_todays", [True, False])
def test_the_batch_of_a_hydra_trainer_is_read(is_todays: bool, tmp_path: Path) -> None:
    """Its trials have no config of their own, but overrides of what differs from today's."""
    trainer = next(each for each in TRAINERS if each.name == "lightning-hydra")
    today = {"data.num_workers": 0, "data.batch_size": 16 if is_todays else 8}
    outcome, watch = Outcome(name="", framework="", today=today), Watch(tmp_path, trainer.log)
    trial = tmp_path / ".autotune" / "trials" / "study" / "0"
    trial.mkdir(parents=True)
    batch_override = "" if is_todays else "- 'data.batch_size=16'\n"
    (trial / "overrides.yaml").write_text(f"- 'data.num_workers=2'\n{batch_override}")
    times = "".join(f'{{"k": "step", "t_s": {t_s}, "samples": 16}}\n' for t_s in range(1, 101))
    (trial / "steps.1.0.jsonl").write_text(times)
    watch.points = lambda folder: [Point(t_s=t_s, done=t_s) for t_s in range(101)]
    outcome.take_counts(trainer, tmp_path / ".autotune", watch)
    assert (outcome.own_samples, outcome.counted) == (1600, 1.0)


def test_new_folders_stand_for_their_files() -> None:
    """Anything left in a project is named once."""
    before = {"train.py": "1", "data/a": "1"}
    after = {"train.py": "2", "data/a": "1", "data/b": "1", "out/x/y": "1", "out/z": "1"}
    assert differing(before, after) == ["+data/b", "+out/", "~train.py"]
