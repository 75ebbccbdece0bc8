"""What the record says about each point."""

import math

import pytest

from autotune.records import Ending, Validity
from autotune.search.levels import TYPICAL_CV, between_run_variance, expected_run_sd, point_levels, reference_of
from autotune.space.space import Space, point_name
from tests.search.conftest import MakeRun, knob

SPACE = Space(knobs=(knob("batch", 8, 16), knob("xla", False, True)))
TODAY = SPACE.today
FAST = {"batch": 16, "xla": False}


def test_levels_count_in_the_first_good_run(make_run: MakeRun) -> None:
    """The first comparable run is 1.00; a point twice as fast is ln 2 above it."""
    levels = point_levels([make_run(TODAY, 50.0), make_run(FAST, 100.0)], SPACE, 0.25)
    assert levels[point_name(TODAY)].mean == 0.0
    assert levels[point_name(FAST)].mean == pytest.approx(math.log(2))


def test_the_reference_never_moves(make_run: MakeRun) -> None:
    """Later runs, also a first run that failed or lies outside the space now, never change what is counted in."""
    records = [make_run(TODAY, None), make_run({"gone": 1}, 10.0), make_run(TODAY, 20.0)]
    before = point_levels(records, SPACE, 0.25)[point_name(TODAY)]
    records += [make_run(TODAY, 90.0), make_run(FAST, 5.0)]
    after = point_levels(records, SPACE, 0.25)[point_name(TODAY)]
    reference = reference_of(records)
    assert reference is not None
    assert reference.samples_per_s == 10.0
    assert before.scores == pytest.approx([math.log(2)])
    assert after.scores[:1] == before.scores


@pytest.mark.parametrize(
    "values",
    [{"batch": 32, "xla": False}, {"batch": 8}, {"batch": 8, "xla": False, "cache": "memory"}, {"batch": 8, "xla": 0}],
)
def test_points_outside_the_space_are_left_out(make_run: MakeRun, values: dict[str, int]) -> None:
    """A choice, or a knob, that is no longer searched leaves no level behind; False is not 0."""
    assert set(point_levels([make_run(TODAY, 50.0), make_run(values, 100.0)], SPACE, 0.25)) == {point_name(TODAY)}


def test_failures_are_known_and_are_no_numbers(make_run: MakeRun) -> None:
    """A point that only failed has its endings and no level; runs on a cold cache do not count either."""
    cold = make_run(FAST, 500.0, validity=Validity.COLD)
    levels = point_levels([make_run(TODAY, 50.0), make_run(FAST, None), cold], SPACE, 0.25)
    assert levels[point_name(FAST)].scores == ()
    assert levels[point_name(FAST)].mean == -math.inf
    assert levels[point_name(FAST)].endings == (Ending.CRASHED, Ending.STOPPED)


def test_a_point_that_fails_now_and_then_keeps_its_numbers(make_run: MakeRun) -> None:
    """One crash does not wipe out what other runs of the point have shown."""
    records = [make_run(TODAY, 50.0), make_run(FAST, 100.0), make_run(FAST, None)]
    found = point_levels(records, SPACE, 0.25)[point_name(FAST)]
    assert len(found.scores) == 1
    assert found.endings == (Ending.CRASHED,)


def test_the_spread_comes_from_repeats_alone(make_run: MakeRun) -> None:
    """Differences between points are no noise; those between runs of one point are."""
    unlike = point_levels([make_run(TODAY, 50.0), make_run(FAST, 500.0)], SPACE, 0.0)
    assert between_run_variance(unlike) == (0.0, 0.0)
    assert expected_run_sd(unlike) == pytest.approx(TYPICAL_CV)

    repeated = point_levels([make_run(TODAY, 50.0 * math.exp(x)) for x in (0.0, 0.2, 0.4)], SPACE, 0.0)
    variance, df = between_run_variance(repeated)
    assert variance == pytest.approx(0.04)
    assert df == 2.0


def test_many_repeats_outweigh_experience(make_run: MakeRun) -> None:
    """A quiet machine is believed to be quiet, but only after some repeats."""
    two = [make_run(TODAY, 50.0), make_run(TODAY, 50.5)]
    many = [make_run(TODAY, 50.0 + i % 2 / 2) for i in range(40)]
    after_two, after_many = (expected_run_sd(point_levels(runs, SPACE, 0.0)) for runs in (two, many))
    assert 0.05 < after_two < TYPICAL_CV
    assert after_many < 0.03
