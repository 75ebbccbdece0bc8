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


def test_new_folders_stand_for_their_files() -> None:
    """Anything left in a project is named once."""
    before = {"train.py": "1", "data/a": "1"}
    after = {"train.py": "2", "data/a": "1", "data/b": "1", "out/x/y": "1", "out/z": "1"}
    assert differing(before, after) == ["+data/b", "+out/", "~train.py"]
