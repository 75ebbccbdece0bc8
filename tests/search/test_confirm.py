"""Order and size of a confirmation, and the time that is kept for it."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from autotune.measure.score import LEAST_SCORE_GAIN, LEAST_SPEED
from autotune.records import TrialRecord, Validity
from autotune.search.confirm import (
    Candidate,
    Confirmation,
    ConfirmationBasis,
    ConfirmationPlan,
    affordable,
    better_than_baseline,
    least_needed_s,
    looks,
    pair_order,
    pairs_wanted,
    plan_confirmation,
    plan_hurried,
    reserved_s,
)
from autotune.search.schedule import CAUTION, Outcome
from autotune.space.space import Space, point_name
from tests.runs import MakeTrial, knob, measured, named, observation


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("pairs", [2, 4, 6, 12])
def test_each_pair_has_all_and_neighbours_run_in_opposite_order(pairs: int, arms: int, seed: int) -> None:
    """ABBA order: a machine that gets slower at a steady pace favours no side."""
    order = list(pair_order(pairs, random.Random(seed), arms))
    assert [pair for pair, _ in order] == [pair for pair in range(pairs) for _ in range(arms)]
    rounds = [[arm for number, arm in order if number == pair] for pair in range(pairs)]
    assert all(sorted(one) == list(range(arms)) for one in rounds)
    assert all(one == other[::-1] for one, other in pairwise(rounds))
    turns = [sum(turn for turn, (_, one) in enumerate(order) if one == arm) for arm in range(arms)]
    assert len(set(turns)) == 1


@pytest.mark.parametrize(("arms", "orders"), [(2, 2), (3, 6)])
def test_any_order_may_come_first(arms: int, orders: int) -> None:
    """About as often as any other, so that no point always has the cold start."""
    firsts = [tuple(arm for _, arm in pair_order(1, random.Random(seed), arms)) for seed in range(60 * orders)]
    seen = Counter(firsts)
    assert len(seen) == orders
    assert min(seen.values()) > 30


SPACE = Space(knobs=(knob("n", 0, 1, 2, 3),))
BASELINE = point_name(SPACE.baseline)


def _confirmed(
    make_trial: MakeTrial, pairs: int, *speeds: float | Validity | None, arms: int = 2
) -> tuple[str, Outcome | None]:
    """Run the trials of a confirmation: a letter for each point that ran, and what was decided."""
    (candidate,) = _better(n1=0.3)
    plan = ConfirmationPlan(
        candidate=candidate,
        pairs=pairs,
        sequential=False,
        usual_trial_s=10.0,
        usual_window_s=2.0,
        longer_s=0.0,
        arms=arms,
    )
    confirmation, ran, left = Confirmation(plan, random.Random(1)), "", list(speeds)
    while left and (turn := confirmation.next()) is not None:
        ran += "abc"[turn.arm]
        shown = left.pop(0)
        validity = shown if isinstance(shown, Validity) else Validity.GOOD
        speed = 1.0 if isinstance(shown, Validity) or (turn.arm == 0 and shown) else shown
        confirmation.add(make_trial({"n": turn.arm}, speed, validity=validity))
    return ran, confirmation.outcome


def test_a_confirmation_is_complete_after_its_pairs(make_trial: MakeTrial) -> None:
    """As many as were planned, in ABBA order."""
    assert _confirmed(make_trial, 2, *[1.5] * 9) == ("abba", Outcome.MEASURED)
    assert _confirmed(make_trial, 4, *[1.5] * 9) == ("abbaabba", Outcome.MEASURED)
    assert _confirmed(make_trial, 4, *[1.5] * 7)[1] is None


def test_a_confirmation_ends_with_two_pairs_that_are_far_slower_and_with_a_failure(make_trial: MakeTrial) -> None:
    """What chose the point had not seen its stalls, or it does not work every time."""
    assert _confirmed(make_trial, 4, *[0.7] * 9) == ("abba", Outcome.FAR_SLOWER)
    assert _confirmed(make_trial, 4, *[0.9] * 4)[1] is None
    assert _confirmed(make_trial, 4, 1.5, None)[1] in (Outcome.FAILED, Outcome.ENDED)


def test_a_pair_with_a_trial_that_was_not_steady_is_replaced(make_trial: MakeTrial) -> None:
    """By another pair; the rest of the spoiled one is not run."""
    assert _confirmed(make_trial, 2, Validity.NOT_STEADY, *[1.5] * 9) == ("abaab", Outcome.MEASURED)


@pytest.mark.parametrize("place", range(6))
def test_a_pair_of_three_points_is_replaced_wherever_it_was_not_steady(make_trial: MakeTrial, place: int) -> None:
    """Two whole pairs count in the end, each with all three points."""
    shown = [1.5] * place + [Validity.NOT_STEADY] + [1.5] * 12
    ran, outcome = _confirmed(make_trial, 2, *shown, arms=3)
    kept = place // 3 * 3  # trials of whole pairs before it
    assert outcome is Outcome.MEASURED
    assert len(ran) == place + 1 + 6 - kept
    assert sorted(ran[place + 1 :][-3:]) == ["a", "b", "c"]


def _better(**believed: float) -> list[Candidate]:
    observations = [observation(SPACE, 0.0), *(observation(SPACE, 0.0, n=int(name[1:])) for name in believed)]
    beliefs = {one.name: belief for one, belief in zip(observations, [0.0, *believed.values()], strict=True)}
    return better_than_baseline(named(*observations), beliefs, SPACE)


def test_of_points_that_cannot_be_told_apart_the_one_with_the_fewest_changes_comes_first() -> None:
    """Two percent are not worth another change; more are."""
    space = Space(knobs=(knob("n", 0, 1, 2), knob("k", 0, 1)))
    baseline, near = observation(space, 0.0), observation(space, 0.3, n=2, k=1)
    simple, simplest = observation(space, 0.3, n=2), observation(space, 0.3, n=1)
    beliefs = {baseline.name: 0.0, near.name: 0.30, simple.name: 0.285, simplest.name: 0.27}
    ranked = better_than_baseline(named(baseline, near, simple, simplest), beliefs, space)
    assert [candidate.observation for candidate in ranked] == [simple, near, simplest]


def test_a_small_gain_wants_more_pairs_than_a_large_one_and_no_more_than_there_is_time_for() -> None:
    """Pairs are as many as would show the gain; below 2 % only as many as an answer needs."""
    large, small, tiny = (_better(n1=gain)[0] for gain in (0.7, 0.1, 0.01))
    assert pairs_wanted(large, 0.08, 10.0, budget_s=1800) == 4
    assert pairs_wanted(small, 0.08, 10.0, budget_s=1800) == 18
    assert pairs_wanted(small, 0.08, 60.0, budget_s=1200) == 8
    assert pairs_wanted(tiny, 0.08, 10.0, budget_s=1800) == 4


@pytest.mark.parametrize(("gain_sd", "pairs"), [(2.09, 4), (2.07, 6), (1.42, 8)])
def test_pairs_are_those_that_show_the_gain_and_that_no_speed_is_lost(gain_sd: float, pairs: int) -> None:
    """Four show 2.08 standard deviations of a pair, beyond 2 % of score and beyond a loss of 2 % of speed."""
    (sure,) = _better(n1=0.7)
    by_score = replace(sure, gain=math.log(LEAST_SCORE_GAIN) + gain_sd * math.sqrt(2) * 0.08)
    by_speed = replace(sure, speed_gain=math.log(LEAST_SPEED) + gain_sd * math.sqrt(2) * 0.05, speed_sd=0.05)
    for candidate in (by_score, by_speed):
        assert pairs_wanted(candidate, 0.08, 10.0, budget_s=1800) == pairs


def test_the_best_whose_pairs_fit_is_confirmed(make_trial: MakeTrial) -> None:
    """A point whose trials take too long for four pairs gives way to the next one."""
    better = _better(n1=0.1, n2=0.3)
    trials = [
        make_trial(SPACE.baseline, 1.0, duration_s=5.0),
        make_trial({"n": 1}, 1.0, duration_s=5.0),
        make_trial({"n": 2}, 1.0, duration_s=50.0),
    ]
    basis = _basis(trials)
    assert affordable(better, basis, left_s=300.0) == better[0]
    assert affordable(better, basis, left_s=100.0) == better[1]
    assert affordable(better, basis, left_s=30.0) is None
    assert least_needed_s(better, basis) == 2 * (2 * 5.0 - 2 * 1.0)  # windows of 1 s in place of 2 s


def test_a_far_better_point_is_confirmed_in_short_windows_rather_than_a_worse_one_in_long_ones(
    make_trial: MakeTrial,
) -> None:
    """Trials of 12 s may measure for 5 s in place of 10 s; two long pairs fit of the point with short trials only."""
    trials = [
        make_trial(
            values, 1.0, duration_s=window_s + 2.0, measurement=replace(measured(1.0), window_s=window_s, steps=20)
        )
        for values, window_s in ((SPACE.baseline, 10.0), ({"n": 1}, 1.0), ({"n": 2}, 10.0))
    ]
    basis = replace(_basis(trials), usual_window_s=10.0, budget_s=60.0)

    def confirmed(gain: float, left_s: float) -> float:
        plan = plan_confirmation(_better(n1=0.7, n2=gain), basis, left_s=left_s)
        assert plan.pairs == 2
        assert plan.trial_s * 4 <= left_s
        return plan.candidate.gain

    assert (confirmed(1.4, 47.0), confirmed(0.75, 47.0), confirmed(1.4, 33.0)) == (1.4, 0.7, 0.7)


@pytest.fixture
def quick(make_trial: MakeTrial) -> list[TrialRecord]:
    """One trial of the baseline and of each of two points, five seconds each."""
    return [make_trial(values, 1.0, duration_s=5.0) for values in (SPACE.baseline, {"n": 1}, {"n": 2})]


def test_pairs_are_even_and_no_more_than_fit(quick: list[TrialRecord]) -> None:
    """A large gain gets six pairs where there is time, to show how large it is."""

    def pairs(left_s: float, gain: float = 0.7) -> int:
        plan = plan_confirmation(_better(n1=gain), _basis(quick), left_s=left_s)
        return plan.pairs

    assert [pairs(left_s) for left_s in (59.99, 60.0, 79.99, 1000.0)] == [4, 6, 6, 6]
    assert [pairs(left_s, 0.1) for left_s in (79.99, 80.0, 119.99, 120.0, 1000.0)] == [6, 8, 10, 12, 18]


def test_where_pairs_are_dear_time_is_kept_for_two_of_a_large_gain(make_trial: MakeTrial) -> None:
    """Pairs of 24 s in a budget of 90 s: a factor of two takes 48 s; one of 1.2 has to make do with them."""
    trials = [make_trial(values, 1.0, duration_s=12.0) for values in (SPACE.baseline, {"n": 1})]
    basis = replace(_basis(trials), budget_s=90.0)
    large, small = _better(n1=math.log(2.0)), _better(n1=math.log(1.2))
    assert reserved_s(large, basis, left_s=65.0) == pytest.approx(CAUTION * 2 * 24.0)
    assert reserved_s(small, basis, left_s=65.0) == 48.0
    plan = plan_confirmation(large, basis, left_s=48.0)
    assert (plan.pairs, plan.sequential) == (2, True)
    assert plan_confirmation(large, basis, left_s=47.9) is None
    plan = plan_confirmation(small, basis, left_s=65.0)
    assert plan.pairs == 2  # which may show it after all


def test_where_pairs_are_too_long_for_the_rest_time_is_kept_for_two_short_ones(make_trial: MakeTrial) -> None:
    """Trials of 12 s that measure for 5 s of them may measure for 1 s, and for 10 steps."""
    trials = [
        make_trial(values, 1.0, duration_s=12.0, measurement=replace(measured(1.0), window_s=5.0, steps=steps))
        for values, steps in ((SPACE.baseline, 50), ({"n": 1}, 20))
    ]
    basis = replace(_basis(trials), budget_s=90.0, usual_window_s=5.0, look_s=3.0)
    better, short_s = _better(n1=math.log(1.2)), 2 * (8.0 + 9.5)
    assert reserved_s(better, basis, left_s=2 * 24.0 + 3.0) == 2 * 24.0 + 3.0
    assert reserved_s(better, basis, left_s=2 * 24.0) == least_needed_s(better, basis) == short_s
    assert reserved_s(better, basis, left_s=short_s - 0.1) == 0.0
    assert plan_confirmation(better, basis, left_s=2 * 24.0) is None
    plan = plan_hurried(better, basis, left_s=short_s)
    assert (plan.pairs, plan.longer_s, plan.rest_s(0)) == (2, -4.0, pytest.approx(short_s))
    assert plan_hurried(better, basis, left_s=CAUTION * (short_s + 4 * 1.5)).longer_s == pytest.approx(-2.5)
    assert plan_hurried(better, basis, left_s=short_s - 0.1) is None


def test_no_time_is_kept_for_what_is_not_worth_a_change(quick: list[TrialRecord]) -> None:
    """The best counts: up to 2 % nothing is kept, beyond that what its pairs take, two where there is time for two."""
    basis = _basis(quick)
    assert reserved_s([], basis, left_s=1000.0) == 0.0
    assert reserved_s(_better(n1=0.019), basis, left_s=1000.0) == 0.0
    assert reserved_s(_better(n1=0.7, n2=0.01), basis, left_s=1000.0) == pytest.approx(CAUTION * 4 * 10.0)
    assert reserved_s(_better(n1=0.7), basis, left_s=1000.0, closely=True) == pytest.approx(CAUTION * 6 * 10.0)
    assert reserved_s(_better(n1=0.7), basis, left_s=39.0) == 2 * 10.0
    assert reserved_s(_better(n1=0.7), basis, left_s=15.9) == 0.0


@pytest.mark.parametrize(
    ("left_s", "budget_s", "longer_s"),
    [(1000.0, 1e6, 18.0), (1000.0, 600.0, 15.0), (120.0, 1e6, 100 / 12 - 5.0), (60.0, 1e6, 0.0)],
)
def test_trials_measure_as_long_as_is_wished_for_where_there_is_time(
    quick: list[TrialRecord], left_s: float, budget_s: float, longer_s: float
) -> None:
    """A window of 20 s in place of 2 s, in 40 % of the budget at most, and with caution in what is left of it."""
    basis = replace(_basis(quick, wished_window_s=20.0), budget_s=budget_s)
    plan = plan_confirmation(_better(n1=0.7), basis, left_s=left_s)
    assert (plan.pairs, plan.usual_trial_s, plan.longer_s) == (6, 5.0, pytest.approx(longer_s))


def test_pairs_that_do_not_decide_are_followed_by_as_many_as_there_is_time_for() -> None:
    """Judged after the first six, and then seldom; a gain that is shown needs no more, however wide its interval."""
    (candidate,) = _better(n1=0.1)
    plan = ConfirmationPlan(
        candidate=candidate, pairs=6, sequential=False, usual_trial_s=5.0, usual_window_s=2.0, longer_s=0.0
    )
    assert plan.planned_pairs is None
    assert plan.extended(CAUTION * 119.0) == plan  # not twice as many
    longer = plan.extended(CAUTION * 500.0)
    assert (longer.pairs, longer.most_pairs, longer.planned_pairs) == (6, 50, 50)
    assert [done / 2 for done in range(101) if longer.is_look(done)] == [6, 10, 16, 24, 36]
    assert looks(2, 12) == [2, 4, 6, 10]


@pytest.mark.parametrize(("arms", "after"), [(2, [4, 8]), (3, [6, 12])])
def test_a_confirmation_knows_what_is_left_of_it_and_when_to_look(arms: int, after: list[int]) -> None:
    """One that stops as soon as it is sure looks after each two rounds; the end needs no look."""
    (candidate,) = _better(n1=0.7)
    sizes = {
        "candidate": candidate,
        "pairs": 6,
        "usual_trial_s": 5.0,
        "usual_window_s": 2.0,
        "longer_s": 2.0,
        "arms": arms,
    }
    plan = ConfirmationPlan(sequential=True, **sizes)
    trials = range(1, 6 * arms + 1)
    assert [plan.rest_s(done) for done in (0, *trials)] == [7.0 * left for left in reversed(range(6 * arms + 1))]
    assert [done for done in trials if plan.is_look(done)] == after
    assert not any(ConfirmationPlan(sequential=False, **sizes).is_look(done) for done in trials)


def _basis(trials: Sequence[TrialRecord], *, wished_window_s: float = 0.0) -> ConfirmationBasis:
    return ConfirmationBasis(
        trials=trials,
        baseline=BASELINE,
        sd=0.08,
        usual_window_s=2.0,
        wished_window_s=wished_window_s,
        least_window_s=1.0,
        min_steps=10,
        look_s=0.0,
        budget_s=1e6,
    )


def test_a_third_point_runs_in_each_pair(make_trial: MakeTrial) -> None:
    """Its trials are part of a pair's length, and of the plan."""
    durations_s = {0: 10.0, 1: 20.0, 2: 40.0}
    trials = [make_trial({"n": n}, 50.0, duration_s=duration_s) for n, duration_s in durations_s.items()]
    (candidate,), basis = _better(n1=0.3), _basis(trials)
    three = replace(basis, further=(point_name({"n": 2}),))
    assert (basis.arms, basis.pair_s(candidate)) == (2, 30.0)
    assert (three.arms, three.pair_s(candidate)) == (3, 70.0)
    plan = plan_confirmation([candidate], three, left_s=1000.0)
    assert plan is not None
    assert (plan.arms, plan.usual_trial_s) == (3, pytest.approx(70.0 / 3))
