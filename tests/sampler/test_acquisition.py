"""Acquisition: the next proposal of a search."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.records import Ending, Values
from autotune.sampler.acquisition import LISTED_POINTS, Acquisition, Proposal, candidates, knowledge_gradient
from autotune.sampler.gaussian_process import Posterior
from autotune.sampler.observations import Observation
from autotune.space.space import Space, point_name
from tests.runs import knob, named, observation

SPACE = Space(knobs=(knob("n", 0, *range(1, 6)), knob("flag", False, True), knob("mode", "a", "b", "c")))
SD = 0.08
BASELINE = observation(SPACE, 0.0)


def _anything(_values: Values) -> str | None:
    return None


def _next(
    *observations: Observation,
    space: Space = SPACE,
    heuristic_values: Values | None = None,
    why_not: Callable[[Values], str | None] = _anything,
    seed: int = 0,
) -> Proposal | None:
    return _taught(space, observations, seed).next_trial(point_name(space.baseline), heuristic_values, why_not)


def _taught(space: Space, observations: Sequence[Observation], seed: int = 0) -> Acquisition:
    acquisition = Acquisition(space, seed)
    acquisition.learn(named(*observations), SD)
    return acquisition


def _search(space: Space, speed: Callable[[Values], float | None], trials: int, seed: int = 0) -> list[Observation]:
    """Return the acquisition after that many trials of points with that ln speed; None is a crash."""
    acquisition, rng = Acquisition(space, seed), np.random.default_rng(seed)
    observations = named(observation(space, 0.0))
    for _ in range(trials):
        acquisition.learn(observations, SD)
        choice = acquisition.next_trial(point_name(space.baseline), None, _anything)
        if choice is None:
            break
        values = dict[str, Any](choice.values)
        scores = observations[point_name(values)].scores if choice.is_repeat else ()
        found = speed(values)
        score = () if found is None else (found + SD * rng.standard_normal(),)
        endings = (Ending.CRASHED,) if found is None else ()
        observations |= named(observation(space, *scores, *score, endings=endings, **values))
    return list(observations.values())


def test_the_best_of_two_knobs_is_found_among_many() -> None:
    """Of 8,192 points, 25 trials find the one where both knobs that matter are right."""
    space = Space(knobs=(knob("fast", False, True), *(knob(f"k{i}", *range(8)) for i in range(4))))

    def speed(values: Values) -> float:
        return (0.5 if values["fast"] else 0.0) + 0.1 * min(5, float(values["k1"] or 0))

    best = max(_search(space, speed, 25), key=lambda observation: observation.mean)
    assert speed(best.values) >= 0.95


def test_a_value_that_crashes_is_left_alone_after_a_few() -> None:
    """The chance to run is learned from failures: fewer than half of the trials go into a broken half of the space."""
    space = Space(knobs=(knob("bad", False, True), *(knob(f"k{i}", *range(8)) for i in range(3))))

    def speed(values: Values) -> float | None:
        return None if values["bad"] else 0.05 * float(values["k0"] or 0)

    crashed = [observation for observation in _search(space, speed, 30) if observation.endings]
    assert 0 < len(crashed) < 15


def test_a_close_rival_is_repeated_and_a_clear_loser_is_not() -> None:
    """In a space that is tried out, time goes to points that may be the best: never to one that is far behind."""
    space = Space(knobs=(knob("mode", "a", "b", "c", "d"),))
    best, rival = observation(space, 0.5, 0.52, mode="b"), observation(space, 0.49, mode="c")
    loser = observation(space, -0.5, mode="d")
    choice = _next(observation(space, 0.0), best, rival, loser, space=space)
    assert choice.is_repeat
    assert choice.values == rival.values


@pytest.mark.parametrize(("mean", "is_new"), [(-0.02, False), (-0.02, True), (0.07, False), (0.07, True)])
def test_the_knowledge_gradient_is_the_expected_rise_of_the_answer(mean: float, is_new: bool) -> None:
    """Against its definition: simulated trials of a point, and what the best mean of a measured point becomes."""
    sd, rival, run_sd = 0.1, 0.0, 0.08
    rng = np.random.default_rng(0)
    truth = mean + sd * rng.standard_normal(400_000)
    trial = truth + run_sd * rng.standard_normal(400_000)
    after = (mean / sd**2 + trial / run_sd**2) / (1 / sd**2 + 1 / run_sd**2)
    expected = np.mean(np.maximum(after, rival)) - (rival if is_new else max(mean, rival))
    posterior = Posterior(mean=np.array([mean]), sd=np.array([sd]))
    found = knowledge_gradient(posterior, np.array([rival]), run_sd, np.array([is_new]))
    assert found[0] == pytest.approx(expected, rel=0.04)


def _promise(*observations: Observation, space: Space, trials: int = 20) -> float:
    return _taught(space, observations).promise(point_name(space.baseline), trials, _anything)


def test_more_time_promises_much_where_nothing_is_known_and_little_where_all_was_tried() -> None:
    """Much can be gained after one trial of 512 points; nothing where a clear winner stands among all points."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(8)) for i in range(3)))
    assert _promise(observation(space, 0.0), space=space) > 0.1
    small = Space(knobs=(knob("mode", "a", "b", "c"),))
    tried = [observation(small, 0.0), observation(small, 0.9, 0.91, mode="b"), observation(small, 0.1, mode="c")]
    assert 0.0 <= _promise(*tried, space=small) < 0.01


def test_what_could_not_be_confirmed_any_more_is_not_tried() -> None:
    """Points like those that took long are left out once there is no time for long trials; heuristic proposals, too."""
    space = Space(knobs=(knob("slow", False, True), knob("n", *range(8))))
    quick = [replace(observation(space, 0.01 * n, n=n), durations_s=(5.0,)) for n in range(6)]
    slow = [replace(observation(space, 0.5, slow=True, n=n), durations_s=(60.0,)) for n in range(3)]
    baseline = point_name(space.baseline)
    heuristic_values: Values = {"slow": True, "n": 7}
    free = _taught(space, [*quick, *slow]).next_trial(baseline, heuristic_values, _anything)
    short = _taught(space, [*quick, *slow]).next_trial(baseline, heuristic_values, _anything, 20.0)
    assert free.values["slow"]
    assert not short.values["slow"]


def test_luck_is_not_believed() -> None:
    """Of points alike the one that was lucky once is not believed to be as good as it looked."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(6)) for i in range(3)))
    unlike = [observation(space, 0.01 * n, k0=n) for n in range(6)]
    alike = [observation(space, 0.02, k2=n) for n in (1, 2, 4, 5)]
    lucky = observation(space, 0.2, k2=3)
    believed = _taught(space, [*unlike, *alike, lucky]).believed()
    assert believed.keys() == named(*unlike, *alike, lucky).keys()
    assert believed[point_name(space.baseline)] < believed[lucky.name] < 0.15


def test_the_initial_design_is_drawn_from_everywhere() -> None:
    """Until the design has its points, new ones come at random, feasible ones only; then the model chooses."""
    acquisition, observations = Acquisition(SPACE, 0), named(BASELINE)
    not_c = lambda values: "no" if values["mode"] == "c" else None  # noqa: E731 -- a name makes the call short
    for _ in range(6):
        acquisition.learn(observations, SD)
        choice = acquisition.next_trial(BASELINE.name, None, not_c, design_points=7)
        assert choice.values["mode"] != "c"
        assert not choice.is_repeat
        values = dict[str, Any](choice.values)
        observations |= named(observation(SPACE, 0.0, **values))
    assert len(observations) == 7
    assert len({observation_.values["n"] for observation_ in observations.values()}) >= 3


def test_a_doubtful_point_comes_after_others_and_is_not_ruled_out() -> None:
    """What may run out of memory has to promise twice as much; where nothing else is left it is tried."""
    space = Space(knobs=(knob("mode", "a", "b", "c", "d"),))

    def next_mode(doubtful: str, *known: Observation) -> object:
        acquisition = _taught(space, [observation(space, 0.0), *known])
        proposal = acquisition.next_trial(
            point_name(space.baseline), None, _anything, is_doubtful=lambda values: str(values["mode"]) in doubtful
        )
        return proposal.values["mode"] if proposal else None

    assert next_mode("bc") == "d"
    assert next_mode("cd") == "b"
    slow = [observation(space, -2.0, mode=mode) for mode in "bc"]
    assert next_mode("d", *slow) == "d"


LISTED = Space(knobs=(knob("workers", 1, 2, 4), knob("cache", "none", "memory"), knob("batch", 8, 16, 32, 64)))


def test_a_small_space_is_looked_at_as_a_whole() -> None:
    """Every combination is a candidate, once."""
    rows = candidates(LISTED, [LISTED.baseline], np.random.default_rng(0))
    assert sorted(map(tuple, rows)) == sorted(np.ndindex(3, 2, 4))


def test_of_a_large_space_all_neighbours_of_the_best_points_are_candidates() -> None:
    """No point that differs from a good one in a single knob is overlooked."""
    space = Space(knobs=tuple(knob(f"k{i}", *range(8)) for i in range(8)))
    assert space.size > LISTED_POINTS
    best: list[dict[str, Any]] = [{f"k{i}": 3 for i in range(8)}, {f"k{i}": i for i in range(8)}]
    rows = {tuple(row) for row in candidates(space, best, np.random.default_rng(0))}
    for values in best:
        for i in range(8):
            for choice in range(8):
                assert space.indices({**values, f"k{i}": choice}) in rows
    assert len(rows) < LISTED_POINTS
