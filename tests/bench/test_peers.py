"""The other methods: what they try, in which order, and when they stop; on their own, and as samplers of Optuna."""

import math
from collections.abc import Callable

import optuna
import pytest
from optuna.trial import Trial, TrialState

from autotune.records import Values
from autotune.sampler.config_sampler import distribution_of
from autotune.space.space import Space, point_name
from scripts.bench.peers import (
    PEERS,
    PeerSampler,
    Proposals,
    coordinate_descent,
    forest,
    iterated_local_search,
    random_search,
    tpe,
)
from tests.runs import knob

Speed = Callable[[Values], float | None]

SPACE = Space(knobs=(knob("batch", 8, 16, 32, 64, 48), knob("workers", 2, 0, 1, 4), knob("cache", "none", "memory")))


def follow(proposals: Proposals, speed: Speed, *, at_most: int = 200) -> list[Values]:
    """Return the points that a method tries, in order, until it ends."""
    tried: list[Values] = []
    try:
        tried.append(next(proposals))
        while len(tried) < at_most:
            tried.append(proposals.send(speed(tried[-1])))
    except StopIteration:
        pass
    return tried


def changes(tried: list[Values]) -> list[Values]:
    """The same, each as what it changes against today's config."""
    return [SPACE.changes(values) for values in tried]


def smooth(values: Values) -> float:
    """A larger batch pays up to 32, further workers always a little, the cache nothing."""
    batch, workers = values["batch"], values["workers"]
    return 100.0 - abs(batch - 32) + workers


@pytest.mark.parametrize("name", PEERS)
def test_todays_config_comes_first(name: str) -> None:
    """Every method measures the baseline before anything else."""
    assert next(PEERS[name](SPACE, 0)) == SPACE.baseline


def test_random_search_tries_everything_once() -> None:
    """All combinations come, none twice, in an order that the seed decides."""
    tried = follow(random_search(SPACE, 1), smooth)
    assert len({point_name(values) for values in tried}) == len(tried) == SPACE.size
    assert tried == follow(random_search(SPACE, 1), smooth) != follow(random_search(SPACE, 2), smooth)


def test_tpe_learns_from_what_it_is_told() -> None:
    """TPE proposes good points far more often than chance after its random start, failed trials or not."""
    tried = follow(tpe(SPACE, 0), lambda values: smooth(values) if values["cache"] == "none" else None, at_most=80)
    late = tried[40:]
    assert sum(values["batch"] == 32 for values in late) > len(late) / 2


def test_coordinate_descent_doubles_as_long_as_it_helps() -> None:
    """8, 16, 32 and, as 64 is slower, on to the next knob from 32; 48 lies between and is never thought of."""
    assert changes(follow(coordinate_descent(SPACE, 0), smooth)) == [
        {},
        {"batch": 16},
        {"batch": 32},
        {"batch": 64},
        {"batch": 32, "workers": 4},
        {"batch": 32, "workers": 4, "cache": "memory"},
        # The second round begins where the first one ended; what helped upwards is now tried downwards as well.
        {"batch": 64, "workers": 4},
        {"batch": 16, "workers": 4},
    ]


@pytest.mark.parametrize("peer", [forest, iterated_local_search])
def test_peers_climb_and_repeat_nothing(peer) -> None:
    """From today's config to the best one, each point once, until all of a small space are tried."""

    def sum_of(values: Values) -> float | None:
        return float(1 + values["a"] + values["b"]) if values["a"] or not values["b"] else None

    space = Space(knobs=(knob("a", 0, 1, 2, 3), knob("b", 0, 1, 2, 3)))
    tried = follow(peer(space, 0), sum_of, at_most=14)
    assert tried[0] == space.baseline
    assert {"a": 3, "b": 3} in tried
    assert len({space.name(values) for values in tried}) == len(tried)
    assert len(follow(peer(Space(knobs=(knob("a", 0, 1), knob("b", 0, 1))), 0), sum_of)) == 4


DISTRIBUTIONS = {knob.path: distribution_of(knob) for knob in SPACE.knobs}


def speed(values: Values) -> float | None:
    """Return the speed of a point; what caches does not run."""
    return smooth(values) if values["cache"] == "none" else None


def values_of(trial: Trial) -> Values:
    """Return the values at a trial's positions."""
    return SPACE.at(trial.params[path] for path in DISTRIBUTIONS)


def new_study(sampler: PeerSampler) -> optuna.Study:
    """Return an empty study."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler)


@pytest.mark.parametrize("peer", [forest, iterated_local_search, coordinate_descent])
def test_a_peer_proposes_what_it_does_on_its_own(peer) -> None:
    """The same points in the same order."""
    own = follow(peer(SPACE, 0), speed, at_most=15)
    study = new_study(PeerSampler(peer, SPACE, 0))
    tried = []
    for _ in own:
        trial = study.ask(DISTRIBUTIONS)
        tried.append(values_of(trial))
        shown = speed(tried[-1])
        if shown is None:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, math.log(shown))
    assert tried == own
