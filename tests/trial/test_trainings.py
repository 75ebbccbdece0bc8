"""What a real training achieved, by the sums that it has reported."""

from pathlib import Path

import msgspec
import pytest

from autotune.trainee.pace import Pace
from autotune.trial.pace_files import PaceReader
from autotune.trial.trainings import achieved_by


def trained(folder: Path, epoch: int, *, steps: int = 4000, gap_s: float = 1.0) -> list:  # type: ignore[type-arg]
    """Train with steps of 0.01 s and 8 samples, and a gap after each epoch; return what was reported."""
    pace, t_s = Pace(str(folder), "observer"), 100.0
    for number in range(steps):
        t_s += 0.01
        if number and number % epoch == 0:
            pace.mark("epoch_end")
            t_s += gap_s
        pace.step(t_s, samples=8)
    pace.flush()
    return PaceReader(folder).poll()


def test_ends_of_epochs_are_pauses_beside_the_steps(tmp_path: Path) -> None:
    """Their time and number, and the speed of the steps without them."""
    done = achieved_by(trained(tmp_path, 500), None)
    assert done is not None
    assert done.samples_per_s == pytest.approx(800.0)
    assert done.pauses is not None
    assert (done.pauses.epoch_ends, done.pauses.time_s) == (7, pytest.approx(7.0))
    assert done.overall_samples_per_s == pytest.approx(8 * 4000 / 47.0, rel=0.01)


def test_ends_of_short_epochs_are_part_of_the_window(tmp_path: Path) -> None:
    """There are too many to be left out: as in a trial, the speed holds them, and the time of a sample does not."""
    done = achieved_by(trained(tmp_path, 10, gap_s=0.02), None)
    assert done is not None
    assert done.pauses is not None
    assert (done.pauses.epoch_ends, done.pauses.in_window_s) == (399, pytest.approx(399 * 0.02))
    assert done.samples_per_s == pytest.approx(8 / 0.012, rel=0.01)
    assert 1.0 / done.sample_s == pytest.approx(800.0)
    assert done.overall_samples_per_s == pytest.approx(8 / 0.012, rel=0.01)


def test_a_line_of_a_pause_alone_hides_no_samples(tmp_path: Path) -> None:
    """Between two lines nothing but a checkpoint may have been: samples are counted all the same."""
    windows = trained(tmp_path, 500)
    pause = msgspec.structs.replace(
        windows[0], steps=0, train_s=0.0, samples=None, pauses=1, pause_s=12.0, checkpoints=1, ln_sum=0.0
    )
    done = achieved_by([*windows, pause], None)
    assert done is not None
    assert done.samples_per_s == pytest.approx(800.0)
    assert done.pauses is not None
    assert done.pauses.checkpoints == 1


def test_too_little_tells_nothing(tmp_path: Path) -> None:
    """Half a minute of steps is asked for; where steps do not say their samples, the config does."""
    assert achieved_by(trained(tmp_path, 500, steps=2900), None) is None
    assert achieved_by([], 8.0) is None
