"""The model behind the scenarios agrees with trainers that were measured."""

import pytest

from scripts.bench.simulation.calibration import (
    FITTED,
    REFERENCE,
    REFERENCE_HARDWARE,
    agreement,
    fit,
    held_out_error,
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
