"""Tests of the grid of batch sizes and workers."""

import pytest

from autotune.diagnose.pipeline_profile import Cell, grid, values_of
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


@pytest.mark.parametrize(
    ("cells", "recommended", "said"),
    [
        ([cell(100.0, workers=1), cell(150.0, workers=2), cell(None, workers=4)], 2, "150 samples/s, 1.50x today's"),
        ([cell(100.0, workers=1), cell(102.0, workers=2)], 1, "Today's values stay"),
        ([cell(100.0, 0.05, workers=1), cell(112.0, 0.05, workers=2)], 1, "Today's values stay"),  # within the noise
        ([cell(50.0, workers=1), cell(149.0, workers=2), cell(150.0, workers=8)], 2, "today's"),  # nearest of equals
        ([cell(None, workers=8), cell(149.0, workers=2)], 2, "Take workers=2: 149 samples/s. One"),
    ],
)
def test_the_fastest_pair_is_recommended_where_it_is_clearly_faster(
    cells: list[Cell], recommended: int, said: str
) -> None:
    """Nobody takes more workers, or another batch, for nothing."""
    found = grid(cells)
    assert found.recommended == {"workers": recommended}
    assert said in found.sentence


def test_nothing_is_recommended_where_all_fail() -> None:
    """Trials without numbers recommend nothing."""
    assert grid([cell(None, workers=8)]).recommended is None


def test_values_near_todays_are_tried() -> None:
    """Today's value comes first, then its neighbours, and workers only as far as there are cores for them."""
    assert values_of(knob("data.batch_size", 8, 2, 4, 16, 32, kind="batch_size"), cores=2) == [8, 16, 4]
    assert values_of(knob("data.num_workers", 1, 2, 4, 8, 16, kind="workers"), cores=1) == [1, 2]
    assert values_of(knob("data.num_workers", 64, 1, 2, kind="workers"), cores=1)[0] == 64
