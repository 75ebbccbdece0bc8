"""Peers as samplers of Optuna."""

import math

import optuna
import pytest
from optuna.trial import Trial, TrialState, create_trial

from autotune.records import Values
from autotune.sampler.observations import Observation
from autotune.sampler.other_samplers import OtherSampler, distribution_of
from scripts.bench.peers import PeerSampler, coordinate_descent, forest, iterated_local_search
from tests.bench.test_methods import SPACE, follow, smooth

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


def test_a_peer_ends_the_exploring() -> None:
    """In the place of our own sampler it proposes all but the baseline, which the search measures, and then nothing."""
    other = OtherSampler(PeerSampler(coordinate_descent, SPACE, 0), SPACE, 0)
    baseline = SPACE.name(SPACE.baseline)
    known: dict[str, Observation] = {}
    values = SPACE.baseline
    tried = []
    for _ in range(SPACE.size):
        shown = speed(values)
        name = SPACE.name(values)
        known[name] = Observation(name=name, values=values, scores=(math.log(shown),) if shown else ())
        proposal = other.next_trial(known, baseline, lambda point: point["cache"] == "none")
        if proposal is None:
            break
        values = proposal.values
        tried.append(values)
    own = follow(coordinate_descent(SPACE, 0), speed)
    # The last one is drawn in the trial that the peer ends in; of what may not be tried the peer is told at once.
    assert tried[:-1] == [point for point in own[1:] if point["cache"] == "none"]


def test_what_is_known_already_is_not_asked_for() -> None:
    """The peer hears of it, and goes on; of two trials the first one counts, as it measures no point twice."""
    study = new_study(PeerSampler(coordinate_descent, SPACE, 0))
    for point, values in ((SPACE.baseline, (0.0, 9.0)), ({**SPACE.baseline, "batch": 16}, (0.5,))):
        params = dict(zip(DISTRIBUTIONS, SPACE.indices(point), strict=True))
        for value in values:
            study.add_trial(create_trial(value=value, params=params, distributions=DISTRIBUTIONS))
    assert SPACE.changes(values_of(study.ask(DISTRIBUTIONS))) == {"batch": 32}


def test_a_point_comes_again_until_it_has_a_result() -> None:
    """A failed trial is none; a pruned one is: the peer is told that the point gave no number."""
    study = new_study(PeerSampler(coordinate_descent, SPACE, 0))
    study.tell(study.ask(DISTRIBUTIONS), 0.0)
    proposed = []
    for state in (TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL):
        trial = study.ask(DISTRIBUTIONS)
        proposed.append(SPACE.changes(values_of(trial)))
        study.tell(trial, state=state)
    assert proposed == [{"batch": 16}, {"batch": 16}, {"workers": 4}]
