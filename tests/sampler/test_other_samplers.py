"""Optuna's samplers in the place of the acquisition."""

import math
from dataclasses import replace

import pytest
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from autotune.errors import ConfigError
from autotune.records import Values
from autotune.sampler.acquisition import MOST_TRIALS_OF_A_POINT
from autotune.sampler.config_sampler import ConfigSampler, OtherSampler, require_sampler, sampler_name
from autotune.sampler.observations import Observation
from autotune.space.space import Space
from tests.runs import knob, named, observation

SPACE = Space(
    knobs=(
        knob("batch", *(8 * 2**n for n in range(8))),
        knob("cache", "none", "memory", "disk"),
        knob("workers", *range(1, 9)),
    )
)
BASELINE = SPACE.name(SPACE.baseline)


def anything(_values: Values) -> bool:
    """Allow every point."""
    return True


def score(values: Values) -> float:
    """Return the ln score of a point: larger batches and a cache pay."""
    return 0.1 * math.log2(float(str(values["batch"])) / 8) + 0.4 * (values["cache"] == "memory")


def tried(sampler: BaseSampler, trials: int) -> list[Values]:
    """Return what a sampler proposes until it ends, each measured at once."""
    other = OtherSampler(sampler, SPACE, 0)
    known = named(observation(SPACE, 0.0))
    points: list[Values] = []
    for _ in range(trials):
        proposal = other.next_trial(known, BASELINE, anything)
        if proposal is None:
            break
        points.append(proposal.values)
        point = SPACE.name(proposal.values)
        before = known.get(point, Observation(name=point, values=proposal.values))
        known[point] = replace(before, scores=(*before.scores, score(proposal.values)))
    return points


@pytest.mark.parametrize("sampler", [TPESampler(seed=0), RandomSampler(seed=0)])
def test_only_points_that_may_be_tried_are_proposed(sampler: BaseSampler) -> None:
    """Feasibility is the search's; where nothing is left, there is no proposal."""
    other = OtherSampler(sampler, SPACE, 0)
    known = named(observation(SPACE, 0.0))
    for _ in range(20):
        proposal = other.next_trial(known, BASELINE, lambda values: values["batch"] == 16)
        assert proposal.values["batch"] == 16
        assert not proposal.is_repeat
    assert other.next_trial(known, BASELINE, lambda _values: False) is None


def test_the_baseline_and_what_had_its_trials_are_not_proposed() -> None:
    """The confirmation measures the one, and the other says nothing new."""
    small = Space(knobs=(knob("batch", 8, 16, 32),))
    known = named(observation(small, 0.0), observation(small, *[0.1] * MOST_TRIALS_OF_A_POINT, batch=16))
    sampler, baseline = OtherSampler(RandomSampler(seed=0), small, 0), small.name(small.baseline)
    for _ in range(10):
        proposal = sampler.next_trial(known, baseline, anything)
        assert proposal.values["batch"] == 32
    again = {**known, **named(observation(small, 0.2, batch=32))}
    assert sampler.next_trial(again, baseline, anything).is_repeat


@pytest.mark.parametrize(
    "sampler", [ConfigSampler(seed=0), TPESampler(seed=0), NSGAIISampler(population_size=6, seed=0)]
)
def test_any_sampler_of_optuna_learns(sampler: BaseSampler) -> None:
    """Also one that keeps notes on its own trials, as a genetic algorithm does; each search begins with it anew."""
    points = tried(sampler, 40)
    assert len(points) == 40
    early, late = (sum(map(score, half)) for half in (points[:10], points[-10:]))
    assert late > 1.15 * early
    assert tried(sampler, 40) == points


def test_samplers_have_names_and_nothing_else_is_one() -> None:
    """A class that was meant to be an instance, or a name, is refused with what is wanted."""
    assert [sampler_name(sampler) for sampler in (None, TPESampler(seed=0))] == ["autotune", "TPESampler"]
    require_sampler(TPESampler(seed=0))
    for wrong in ("tpe", TPESampler):
        with pytest.raises(ConfigError, match="is not a sampler") as raised:
            require_sampler(wrong)
        assert "an instance of an Optuna sampler" in str(raised.value.remedy)
