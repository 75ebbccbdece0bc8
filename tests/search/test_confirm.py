"""The order of a confirmation."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from autotune.records import GpuFigures
from autotune.results import PooledGpu, PooledGpus
from autotune.search.confirm import Candidate, affordable, better_than_today, pair_order, pairs_wanted
from autotune.search.schedule import confirming_window_s, verdict_s
from autotune.space.space import Space, point_name
from tests.runs import MakeTrial, knob, named, observation


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pairs", [2, 4, 6, 12])
def test_each_pair_has_both_and_neighbours_run_in_opposite_order(pairs: int, seed: int) -> None:
    """ABBA order: a machine that gets slower at a steady pace favours neither side."""
    order = list(pair_order(pairs, random.Random(seed)))
    assert [pair for pair, _ in order] == [pair for pair in range(pairs) for _ in range(2)]
    firsts = [is_today for _, is_today in order[::2]]
    assert [is_today for _, is_today in order[1::2]] == [not first for first in firsts]
    assert all(one != other for one, other in pairwise(firsts))
    baseline, candidate = (
        [turn for turn, (_, is_today) in enumerate(order) if is_today is side] for side in (True, False)
    )
    assert sum(baseline) == sum(candidate)


def test_who_starts_is_a_matter_of_chance_and_of_the_seed() -> None:
    """Each side starts about as often over many searches; one seed always gives one order."""
    starts = [next(pair_order(4, random.Random(seed)))[1] for seed in range(400)]
    assert 150 < sum(starts) < 250
    assert list(pair_order(4, random.Random(7))) == list(pair_order(4, random.Random(7)))


SPACE = Space(knobs=(knob("n", 0, 1, 2, 3),))
TODAY = point_name(SPACE.today)


def _better(**believed: float) -> list[Candidate]:
    observations = [observation(SPACE, 0.0), *(observation(SPACE, 0.0, n=int(name[1:])) for name in believed)]
    beliefs = {one.name: belief for one, belief in zip(observations, [0.0, *believed.values()], strict=True)}
    return better_than_today(named(*observations), beliefs, TODAY)


def test_finalists_are_ranked_by_expected_gain() -> None:
    """The best comes first, with its expected gain; a point worse than the baseline is no finalist."""
    assert [(one.observation.values["n"], one.gain) for one in _better(n1=0.1, n2=0.3, n3=-0.1)] == [(2, 0.3), (1, 0.1)]


def test_without_numbers_of_the_baseline_nothing_is_better() -> None:
    """No point can be better than an unknown one."""
    assert better_than_today(named(observation(SPACE, 0.5, n=1)), {observation(SPACE, n=1).name: 0.5}, TODAY) == []


def test_a_small_gain_wants_more_pairs_than_a_large_one_and_no_more_than_there_is_time_for() -> None:
    """Pairs are as many as would show the gain; below 2 % only as many as an answer needs."""
    large, small, tiny = (_better(n1=gain)[0] for gain in (0.7, 0.1, 0.01))
    assert pairs_wanted(large, 0.08, 10.0, budget_s=1800) == 4
    assert pairs_wanted(small, 0.08, 10.0, budget_s=1800) == 12
    assert pairs_wanted(small, 0.08, 60.0, budget_s=1200) == 8
    assert pairs_wanted(tiny, 0.08, 10.0, budget_s=1800) == 4


def _speedy(*speeds: float) -> Candidate:
    """Make a candidate with a large gain in score, faster than the baseline by so much, in ln speed."""
    baseline = replace(observation(SPACE, *[0.0] * 8), ln_speeds=(0.0, 0.01) * 4)
    candidate = replace(observation(SPACE, 0.7, n=1), ln_speeds=speeds)
    return better_than_today(named(baseline, candidate), {baseline.name: 0.0, candidate.name: 0.7}, TODAY)[0]


def test_a_point_that_is_hardly_faster_wants_pairs_that_show_it_is_no_slower() -> None:
    """A busier GPU is shown by four pairs, that it costs no speed by more."""

    def pairs(*speeds: float) -> int:
        return pairs_wanted(_speedy(*speeds), 0.08, 10.0, budget_s=1800)

    assert pairs() == 4  # nothing is known of its speed
    assert pairs(0.5) == 4
    assert 4 < pairs(0.05) <= pairs(0.0) == pairs(-0.01) == 12
    assert pairs_wanted(_speedy(0.0), 0.08, 60.0, budget_s=900) == 6


def test_the_best_whose_pairs_fit_is_confirmed(make_trial: MakeTrial) -> None:
    """A point whose trials take too long for four pairs gives way to the next one."""
    better = _better(n1=0.1, n2=0.3)
    trials = [
        make_trial(SPACE.today, 1.0, duration_s=5.0),
        make_trial({"n": 1}, 1.0, duration_s=5.0),
        make_trial({"n": 2}, 1.0, duration_s=50.0),
    ]
    assert affordable(better, TODAY, trials, left_s=300.0) == better[0]
    assert affordable(better, TODAY, trials, left_s=100.0) == better[1]
    assert affordable(better, TODAY, trials, left_s=30.0) is None


def _pooled(*periods_s: float | None, scored: bool = True, samples: int = 60) -> PooledGpus:
    figures = GpuFigures(uuid="GPU", name="H100")
    gpus = (PooledGpu(figures=figures, scored=scored, text="", samples=samples, period_s=p) for p in periods_s)
    return PooledGpus(devices=tuple(gpus))


def test_a_verdict_on_a_gpu_takes_20_seconds_or_three_periods() -> None:
    """The longest period of the scored GPUs counts; none where nothing is measured."""
    assert verdict_s(_pooled(None)) == 20.0
    assert verdict_s(_pooled(2.0, 10.0)) == 30.0
    assert verdict_s(_pooled(10.0, scored=False)) == 0.0
    assert verdict_s(_pooled(None, samples=0)) == 0.0
    assert verdict_s(None) == 0.0


def test_confirming_trials_are_as_long_as_there_is_time_for() -> None:
    """Confirming trials get at most a share of the budget, never more than is left, never less than others."""

    def window_s(*, left_s: float = 1e6, budget_s: float = 1e6, wished_s: float = 20.0) -> float:
        return confirming_window_s(2.0, wished_s, 5.0, 8, left_s=left_s, budget_s=budget_s)

    assert window_s() == 20.0
    assert window_s(wished_s=0.0) == 2.0
    assert window_s(left_s=10.0) == 2.0
    assert 2.0 < window_s(budget_s=300.0) < 20.0
    for left_s in (60.0, 100.0, 150.0):
        run_s = window_s(left_s=left_s) - 2.0 + 5.0
        assert 8 * run_s <= left_s
