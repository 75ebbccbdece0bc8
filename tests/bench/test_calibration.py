"""The model behind the scenarios agrees with trainers that were measured."""

import pytest

from scripts.bench.simulation.calibration import (
    FITTED,
    PUBLISHED_FIGURES,
    REFERENCE,
    REFERENCE_HARDWARE,
    Figure,
    agreement,
    fit,
    held_out_error,
    published_pace,
    read_grid,
)


def test_the_model_ranks_the_reference_trainers_points() -> None:
    """Over 48 measured points it has the order nearly right, and the speeds as well as one trial would tell them."""
    grid = read_grid()
    assert (len(grid.samples_per_s), grid.trials) == (48, 96)
    found = agreement(grid, REFERENCE, REFERENCE_HARDWARE)
    assert found.rank_correlation >= 0.9
    assert found.median_error <= 0.15


def test_the_parameters_in_use_are_the_fitted_ones() -> None:
    """Fitting again gives what stands in the code."""
    fitted = fit(read_grid(), REFERENCE_HARDWARE)
    assert {name: getattr(fitted, name) for name in FITTED} == pytest.approx(
        {name: getattr(REFERENCE, name) for name in FITTED}, rel=0.01
    )


def test_points_that_were_not_fitted_are_predicted() -> None:
    """The parameters say something about the trainer, and not only about the points they were made from."""
    assert held_out_error(read_grid(), REFERENCE_HARDWARE) <= 0.15


@pytest.mark.parametrize("figure", PUBLISHED_FIGURES, ids=lambda figure: str(dict(figure.options)))
def test_published_figures_are_met(figure: Figure) -> None:
    """One set of parameters is within a quarter of what was published, in time and in utilization."""
    pace = published_pace(figure)
    assert float(pace.step_s) == pytest.approx(figure.step_s, rel=0.25)
    assert float(pace.samples_per_s) == pytest.approx(figure.samples_per_s, rel=0.25)
    assert float(pace.gpu_utilization) == pytest.approx(figure.gpu_utilization, rel=0.25)
