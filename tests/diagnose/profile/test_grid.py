"""Tests of the grid of batch sizes and workers."""

from autotune.diagnose.profile_grid import Cell, grid, values_of
from autotune.records import Scalar
from tests.runs import knob


def cell(samples_per_s: float | None, relative_sd: float = 0.001, **values: Scalar) -> Cell:
    """A trial with this throughput."""
    return Cell(
        values=values,
        samples_per_s=samples_per_s,
        waiting_fraction=None,
        variation=None,
        relative_sd=relative_sd,
        why_not=None if samples_per_s else "out of memory",
    )


def test_the_fastest_pair_is_recommended() -> None:
    """A pair that is clearly faster is taken, and its gain is said."""
    found = grid([cell(100.0, workers=1), cell(150.0, workers=2), cell(None, workers=4)])
    assert found.recommended == {"workers": 2}
    assert "150 samples/s, 1.50x today's" in found.sentence


def test_todays_values_stay_where_nothing_is_clearly_faster() -> None:
    """A gain that a short trial cannot show is none."""
    found = grid([cell(100.0, workers=1), cell(102.0, workers=2)])
    assert found.recommended == {"workers": 1}
    assert "Today's values stay" in found.sentence


def test_a_gain_within_the_noise_is_none() -> None:
    """Where trials vary a lot, twice as much has to be gained."""
    found = grid([cell(100.0, 0.05, workers=1), cell(112.0, 0.05, workers=2)])
    assert found.recommended == {"workers": 1}


def test_of_equals_the_one_nearest_to_today_is_taken() -> None:
    """Nobody takes more workers, or another batch, for nothing."""
    found = grid([cell(50.0, workers=1), cell(149.0, workers=2), cell(150.0, workers=8)])
    assert found.recommended == {"workers": 2}


def test_where_today_fails_another_pair_is_recommended() -> None:
    """Without a throughput of today's values there is no gain to be said."""
    found = grid([cell(None, workers=8), cell(149.0, workers=2)])
    assert found.recommended == {"workers": 2}
    assert "today's" not in found.sentence


def test_nothing_is_recommended_where_all_fail() -> None:
    """Trials without numbers recommend nothing."""
    assert grid([cell(None, workers=8)]).recommended is None


def test_values_near_todays_are_tried() -> None:
    """Today's value comes first, then its neighbours, and workers only as far as there are cores for them."""
    assert values_of(knob("data.batch_size", 8, 2, 4, 16, 32, kind="batch_size"), cores=2) == [8, 16, 4]
    assert values_of(knob("data.num_workers", 1, 2, 4, 8, 16, kind="workers"), cores=1) == [1, 2]
    assert values_of(knob("data.num_workers", 64, 1, 2, kind="workers"), cores=1)[0] == 64
