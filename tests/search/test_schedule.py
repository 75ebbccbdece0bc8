"""The wall, the expected duration of trials, and the end of exploring."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.clock import VirtualClock
from autotune.options import SearchOptions
from autotune.records import Ending, Purpose, TrialRecord, Values
from autotune.sampler.acquisition import WORTH_THE_REST, Proposal
from autotune.search.schedule import (
    MOSTLY_TRIED,
    STOPPING_S,
    Budget,
    baseline_cache_time_limit_s,
    design_points,
    expected_start_s,
    expected_trial_s,
    least_confirmation_s,
    longest_trial_s,
    never_trains,
    nothing_works,
    race_s,
    start_timeout_s,
    time_limit_s,
    trials_ahead,
    why_exploring_ends,
    why_no_time,
)
from autotune.space.space import Space, point_name
from tests.runs import MakeTrial, knob

BASELINE: Values = {"n": 1}
OTHER: Values = {"n": 2}
SPACE = Space(knobs=(knob("n", 1, 2, 3),))


def test_the_budget_counts_from_the_start_of_the_process() -> None:
    """Imports and checks are paid for too, and the end leaves time to stop and report."""
    clock = VirtualClock(100.0)
    budget = Budget(clock, started_s=98.0, budget_s=60.0)
    assert budget.elapsed_s() == 2.0
    assert budget.wall_s == 98.0 + 60.0 - STOPPING_S
    clock.wait(budget.left_s() + 5.0)
    assert budget.left_s() == -5.0


def test_a_trial_is_expected_to_take_as_long_as_its_point_did(make_trial: MakeTrial) -> None:
    """A point that was measured tells for itself, a new one is like all others; a median, so one outlier is none."""
    trials = [make_trial(BASELINE, 50.0, duration_s=d) for d in (10.0, 12.0, 90.0)]
    trials += [make_trial(OTHER, 50.0, duration_s=30.0)]
    assert expected_trial_s(trials, point_name(BASELINE)) == 12.0
    assert expected_trial_s(trials, point_name(OTHER)) == 30.0
    assert expected_trial_s(trials) == expected_trial_s(trials, "never measured") == 21.0


def _ends(
    trials: Sequence[TrialRecord],
    *,
    gain: float = 0.1,
    values: Values = OTHER,
    is_repeat: bool = False,
    tried_share: float = 1.0,
    left_s: float,
) -> str:
    proposal = Proposal(values=values, gain=gain, is_repeat=is_repeat)
    ended = why_exploring_ends(trials, proposal, SPACE, tried_share=tried_share, left_s=left_s)
    return ended.why if ended else ""


def test_exploring_goes_on_as_long_as_a_trial_fits(make_trial: MakeTrial) -> None:
    """A new point is expected to take as long as the others did, a repeat as long as the point itself."""
    trials = [make_trial(BASELINE, 50.0, duration_s=d) for d in (10.0, 10.0)] + [
        make_trial(OTHER, 50.0, duration_s=30.0)
    ]
    assert _ends(trials, values={"n": 3}, left_s=10.0) == ""
    assert _ends(trials, values={"n": 3}, left_s=9.99) == "the rest of the budget is reserved for the confirmation"
    assert _ends(trials, is_repeat=True, left_s=30.0) == ""
    assert _ends(trials, is_repeat=True, left_s=29.99) == "the rest of the budget is reserved for the confirmation"


def test_exploring_ends_where_all_that_fits_promises_too_little(make_trial: MakeTrial) -> None:
    """The gain of a trial counts as often as there is time for one, ten times at most."""
    trials = [make_trial(BASELINE, 50.0, duration_s=10.0)]
    nothing = "no further trial promises a gain"
    assert _ends(trials, gain=WORTH_THE_REST / 4, left_s=40.0) == ""
    assert _ends(trials, gain=WORTH_THE_REST / 4, left_s=39.99) == nothing
    assert _ends(trials, gain=WORTH_THE_REST / 10.01, left_s=1e6) == nothing
    assert [trials_ahead(trials, left_s) for left_s in (-1.0, 0.0, 25.0, 100.0, 1e6)] == [0.0, 0.0, 2.5, 10.0, 10.0]


def test_a_promise_is_not_believed_before_most_points_were_tried(make_trial: MakeTrial) -> None:
    """Of a large space the model knows some part; half of the points is what it takes."""
    trials = [make_trial(BASELINE, 50.0, duration_s=10.0)]
    assert _ends(trials, gain=0.0, left_s=1e3, tried_share=MOSTLY_TRIED) == "no further trial promises a gain"
    assert _ends(trials, gain=0.0, left_s=1e3, tried_share=MOSTLY_TRIED - 0.01) == ""


def test_exploring_ends_early_only_where_the_rest_promises_little(make_trial: MakeTrial) -> None:
    """After enough trials without anything better, or where only near-ties are repeated."""

    def ends(
        explored: int,
        repeated: int,
        since_better: int,
        gain: float | None,
        *,
        is_repeat: bool = True,
        tried_share: float = 0.4,
    ) -> str:
        purposes = [Purpose.EXPLORE] * explored + [Purpose.REPEAT] * repeated
        trials = [make_trial(OTHER, 50.0, duration_s=10.0, purpose=purpose) for purpose in purposes]
        proposal = Proposal(values=OTHER, gain=0.1, is_repeat=is_repeat)
        ahead: list[int] = []
        ended = why_exploring_ends(
            trials,
            proposal,
            SPACE,
            tried_share=tried_share,
            left_s=1e3,
            since_better=since_better,
            gain_of=lambda trials: ahead.append(trials) or gain,
        )
        assert ahead in ([], [100])  # as many as fit into 1,000 s
        return ended.why if ended else ""

    assert ends(24, 0, 15, 0.009) == "nothing better was found in 15 trials"
    assert ends(24, 0, 14, 0.009) == ends(40, 0, 15, 0.009) == ""
    assert ends(24, 0, 15, 0.011) == ends(24, 0, 15, None) == ""
    assert ends(8, 3, 4, 0.009, tried_share=0.3) == "nothing better was found, and no new point promises more"
    assert ends(8, 3, 4, 0.009, tried_share=0.29) == ""
    assert ends(8, 2, 4, 0.009) == ends(8, 3, 4, 0.011) == ends(8, 3, 4, 0.009, is_repeat=False) == ""
    assert ends(8, 3, 0, 0.009) == ""  # asked for, with --exhaust


@pytest.mark.parametrize(
    ("settles", "left_s", "limit_s"),
    [(False, 1000.0, 150.0), (False, 200.0, 36.0), (False, 35.0, 35.0), (True, 1000.0, 82.0), (True, 81.0, 81.0)],
)
def test_a_trial_may_take_some_times_as_long_as_usual(
    make_trial: MakeTrial, settles: bool, left_s: float, limit_s: float
) -> None:
    """Three times, or 15 % of the time left; with caches to fill a tenth of the budget more; never past the end."""
    trials = [make_trial(BASELINE, 50.0, duration_s=12.0)]
    assert time_limit_s(trials, settles=settles, left_s=left_s, budget_s=600.0) == pytest.approx(limit_s)


def test_a_new_point_may_take_as_long_as_leaves_time_to_confirm_it(make_trial: MakeTrial) -> None:
    """Its own trial, and four pairs of it and of today's config; two where pairs are dear."""
    trials = [make_trial(BASELINE, 50.0, duration_s=10.0)]
    assert longest_trial_s(trials, point_name(BASELINE), 140.0, budget_s=721.0) == pytest.approx((140 - 40) / 5)
    assert longest_trial_s(trials, point_name(BASELINE), 140.0, budget_s=719.0) == pytest.approx((140 - 20) / 3)


@pytest.mark.parametrize(("first_step_s", "limit_s"), [(None, None), (1.0, 6.0), (20.0, 100.0), (130.0, 600.0)])
def test_a_new_point_is_waited_for_five_times_as_long_as_the_slowest_start(
    make_trial: MakeTrial, first_step_s: float | None, limit_s: float | None
) -> None:
    """Some seconds at least, the limit of the config at most; not where nothing has started yet."""
    crashed, measured = make_trial(OTHER, None), make_trial(BASELINE, 50.0)
    assert measured.measurement is not None
    started = replace(measured, measurement=replace(measured.measurement, first_step_s=first_step_s or 0.0))
    assert start_timeout_s([crashed, started] if first_step_s else [crashed], 600.0) == limit_s


@pytest.mark.parametrize(
    ("asked_s", "budget_s", "expected_s"),
    [(None, 899.0, 0.0), (None, 900.0, 180.0), (None, 3600.0, 720.0), (0.0, 3600.0, 0.0), (50.0, 100.0, 50.0)],
)
def test_a_race_takes_a_fifth_of_a_long_budget_or_what_was_asked_for(
    asked_s: float | None, budget_s: float, expected_s: float
) -> None:
    """From a quarter of an hour on; who said no race gets none."""
    assert race_s(asked_s, budget_s) == pytest.approx(expected_s)


def test_the_caches_of_todays_config_may_take_a_small_part_of_the_budget_to_fill() -> None:
    """Ten seconds, and 6 % of it."""
    assert baseline_cache_time_limit_s(600.0) == pytest.approx(46.0)


@pytest.mark.parametrize("baseline", [BASELINE, OTHER])
def test_the_pairs_of_a_confirmation_take_as_long_as_the_shortest_trial_of_todays_config(
    make_trial: MakeTrial, baseline: Values
) -> None:
    """Without its start; eight trials, and four where pairs are dear."""
    another = OTHER if baseline == BASELINE else BASELINE
    trials = [make_trial(baseline, 50.0, duration_s=d) for d in (14.0, 11.0)]
    trials += [make_trial(another, 50.0, duration_s=9.0), make_trial(baseline, None, duration_s=2.0)]
    assert least_confirmation_s(trials, point_name(baseline), budget_s=1e4) == 8 * 3.0
    assert least_confirmation_s(trials, point_name(baseline), budget_s=200.0) == 4 * 3.0
    assert least_confirmation_s([], point_name(baseline), budget_s=1e4) == 0.0


def test_the_first_trial_is_expected_to_be_slower_by_its_start(make_trial: MakeTrial) -> None:
    """What only it had to import or to cache is left out; and a start is expected to take as long as most did."""
    first, *others = (make_trial(BASELINE, 50.0, duration_s=d) for d in (30.0, 12.0, 14.0))
    assert first.measurement is not None
    cold = replace(first, measurement=replace(first.measurement, first_step_s=25.0))
    assert expected_trial_s([cold, *others]) == 13.0
    assert expected_trial_s([cold]) == 30.0
    assert expected_trial_s([]) == 10.0
    assert expected_start_s([cold, *others]) == 8.0
    assert expected_start_s([]) == 5.0


@pytest.mark.parametrize(
    ("points", "left_s", "count"), [(1000, 1e6, 10), (1000, 390.0, 6), (1000, -5.0, 0), (20, 1e6, 3)]
)
def test_the_initial_design_is_some_of_all_trials(
    make_trial: MakeTrial, points: int, left_s: float, count: int
) -> None:
    """15 % of those that there is time for, those made already included, and of all points; ten at most."""
    trials = [make_trial(BASELINE, 50.0, duration_s=10.0)]
    assert design_points(trials, points, left_s) == count


def test_a_search_in_which_nothing_works_gives_up(make_trial: MakeTrial) -> None:
    """After five trials without numbers, and after two that never trained for a reason that has no values in it."""
    good, crashed = make_trial(BASELINE, 50.0), make_trial(OTHER, None)
    silent = replace(crashed, ending=Ending.NO_STEPS)
    assert not nothing_works([crashed] * 4)
    assert nothing_works([crashed] * 5)
    assert not nothing_works([*[crashed] * 5, good])
    assert not never_trains([silent])
    assert never_trains([silent, replace(silent, ending=Ending.NEVER_STARTED)])
    assert nothing_works([silent] * 2)
    assert not never_trains([silent, crashed])


@pytest.mark.parametrize(
    ("validate_s", "race_s", "option", "said"),
    [
        (None, None, None, ""),
        (None, 0.0, None, ""),
        (20.0, 40.0, None, ""),
        (250.0, 500.0, None, ""),
        (19.9, None, "validate", "the minimum is 20s"),
        (250.1, 500.0, "validate", "a quarter of it may go to each"),
        (None, 39.9, "race", "the minimum is 40s"),
        (250.0, 500.1, "race", "half of it may go to the race"),
    ],
)
def test_what_was_asked_for_has_to_fit_the_budget(
    validate_s: float | None, race_s: float | None, option: str | None, said: str
) -> None:
    """Of a thousand seconds a quarter for the validation of each of two configs, and half for a race."""
    why = why_no_time(SearchOptions(budget_s=1000.0, validate_s=validate_s, race_s=race_s))
    assert (why and why[0]) == option
    assert why is None or said in why[1]
