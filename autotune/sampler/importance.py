"""Inert knobs: config keys that seem to have no effect on the trainer.

A flag may override the config, a key may be misspelt, a branch may never be taken; a search over such a knob wastes its
trials. Two signs count, each reported without claiming more than was observed: every step has the same number of
samples whatever the batch size; the trainer prints the same value whatever was set. A score without an effect is
no sign: the main effects of two knobs that only work together are small, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.records import Scalar, TrialRecord, Values
from autotune.sampler.observations import Observation
from autotune.space.knob import same_scalar
from autotune.space.space import Space

SMALLEST_EFFECT = 0.05
"""In ln score: a knob is heeded if the interval of one of its effects lies beyond this on one side."""

_LEAST_CHANGE = 1.5  # least ratio of batch sizes that has to be visible


def is_large(effect: MainEffect) -> bool:
    """Return True if the 90 % interval of an effect lies beyond `SMALLEST_EFFECT` on one side."""
    return abs(effect.mean) - 1.645 * effect.sd > SMALLEST_EFFECT  # standard deviations to either side: 90 %


def effects_shown(observations: Mapping[str, Observation], space: Space, sd: float) -> list[MainEffect]:
    """Return the main effects on ln score; an empty list if there are too few points.

    Args:
        sd: Standard deviation of ln score between trials of one point.
    """
    good = [observation for observation in observations.values() if observation.scores]
    samples = [
        Sample(values=observation.values, mean=observation.mean, trials=len(observation.scores)) for observation in good
    ]
    effects = main_effects(samples, space.baseline, sd)
    return effects if len(good) > len(effects) else []


def without_turning(space: Space, inert: Collection[str]) -> Space:
    """Return the same space with these knobs fixed at the baseline's values."""
    knobs = tuple(knob.narrowed((knob.baseline,)) if knob.path in inert else knob for knob in space.knobs)
    return replace(space, knobs=knobs)


def same_batch(records: Iterable[TrialRecord], space: Space) -> dict[str, str]:
    """Return the batch sizes that every trial ignored: the samples in a step did not change with them.

    If a trainer does not report the samples of a step, they are taken from the config, and nothing is found.
    """
    found: dict[str, str] = {}
    measured = [(trial.values, trial.measurement) for trial in records if trial.measurement]
    for knob in (knob for knob in space.knobs if knob.kind == "batch_size"):
        seen = [
            (float(values[knob.path] or 0), shown.samples_per_s * shown.window_s / shown.steps)
            for values, shown in measured
            if isinstance(values.get(knob.path), int)
        ]
        sizes, samples = [size for size, _ in seen], [held for _, held in seen]
        # tolerated relative difference of the mean samples of a step: last batches are smaller
        if seen and max(sizes) >= _LEAST_CHANGE * min(sizes) and max(samples) <= (1 + 0.02) * min(samples):
            found[knob.path] = f"each step had {samples[0]:.4g} samples with {min(sizes):g} and with {max(sizes):g}"
    return found


def printed_values(output: str, space: Space) -> dict[str, frozenset[str]]:
    """Return the values that a trainer printed for the knobs' keys, in whatever form; absent keys are left out."""
    found = {}
    for knob in space.knobs:
        name = re.escape(knob.path.rpartition(".")[2]).replace("_", "[-_]")
        words = re.findall(rf"(?<![\w.-])(?:--)?{name}['\"]?\s*[:=\s]\s*['\"]?([\w.+-]+)", output)
        if words:
            found[knob.path] = frozenset(word.rstrip(".").lower() for word in words)
    return found


def said_the_same(trials: Iterable[tuple[Values, Mapping[str, frozenset[str]]]], space: Space) -> dict[str, str]:
    """Return the knobs for which the trainer printed the same value in every trial, whatever was set."""
    found: dict[str, str] = {}
    known = list(trials)
    for knob in space.knobs:
        seen = [(values[knob.path], said[knob.path]) for values, said in known if knob.path in said]
        words = frozenset().union(*(said for _, said in seen)) if seen else frozenset()
        set_to = {str(value) for value, _ in seen}
        if len(seen) >= 3 and len(words) == 1 and len(set_to) > 1:  # least number of trials that print a key
            found[knob.path] = f"the trainer printed {next(iter(words))} each time, set to {_listed(set_to)}"
    return found


def _listed(words: Iterable[str]) -> str:
    *others, last = sorted(words, key=lambda word: (len(word), word))
    return f"{', '.join(others)} and {last}"


_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Mean of some trials of one point.

    Attributes:
        mean: Mean ln score, or ln speed, of the trials.
    """

    values: Values
    mean: float
    trials: int = 1


@dataclass(frozen=True, kw_only=True)
class MainEffect:
    """Effect of one value of a knob in place of the baseline's.

    Attributes:
        mean: Posterior mean of the effect, in the samples' unit.
        sd: Posterior standard deviation of the effect.
    """

    path: str
    choice: Scalar
    mean: float
    sd: float


def main_effects(samples: Sequence[Sample], baseline: Values, sd: float) -> list[MainEffect]:
    """Return the effect of each value that was tried in place of the baseline's.

    Values that were only ever tried together share their effect evenly: its sum is known, its parts are not, and `sd`
    says so.

    Args:
        samples: All of them with the same knobs as `today`.
        sd: Standard deviation between trials of one point, in the samples' unit; above 0.
    """
    columns = _columns((sample.values for sample in samples), baseline)
    if not columns:
        return []
    design = np.array(
        [[1.0, *(float(same_scalar(sample.values[path], choice)) for path, choice in columns)] for sample in samples]
    )
    means = np.array([sample.mean for sample in samples])
    weights = np.array([float(sample.trials) for sample in samples])
    effects, deviations = _posterior(design, means, weights, sd)
    return [
        MainEffect(path=path, choice=choice, mean=float(mean), sd=float(deviation))
        for (path, choice), mean, deviation in zip(columns, effects, deviations, strict=True)
    ]


def _columns(points: Iterable[Values], baseline: Values) -> list[tuple[str, Scalar]]:
    """Return each pair of knob and value that differs from the baseline, in the baseline's order of knobs."""
    tried: dict[str, list[Scalar]] = {path: [] for path in baseline}
    for values in points:
        for path, value in values.items():
            if not any(same_scalar(value, known) for known in (baseline[path], *tried[path])):
                tried[path].append(value)
    return [(path, choice) for path, choices in tried.items() for choice in choices]


def _posterior(design: _Array, means: _Array, weights: _Array, sd: float) -> tuple[_Array, _Array]:
    """Return the posterior mean and standard deviation of each effect, both of shape (n_effects,).

    Args:
        design: Which trial had which change, behind a column of ones, shape (n_trials, 1 + n_effects).
        means: Mean of each sample, shape (n_trials,); `weights` likewise.
    """
    prior = np.diag([0.0, *([0.5**-2] * (design.shape[1] - 1))])  # of one effect, in ln score
    noise = sd
    for _ in range(2):  # first with the known noise, then with the residual of that fit
        precision = design.T @ (design * (weights / noise**2)[:, None]) + prior
        effects = np.linalg.solve(precision, design.T @ (means * weights / noise**2))
        residuals = means - design @ effects
        left = math.sqrt(float(np.average(residuals**2 * weights)) * len(means) / max(1, len(means) - 1))
        noise = max(sd, left)
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    return np.asarray(effects[1:]), np.asarray(deviations[1:])


# Simplification: the answer with as few changes of the baseline as are worth making.


INDISTINGUISHABLE = 0.02
"""Largest difference in ln score of points that count as equally good."""


def simplified(
    values: Values,
    space: Space,
    least: float,
    believed: Callable[[Sequence[Values]], Sequence[float]],
    may_try: Callable[[Values], bool],
) -> Values:
    """Take changes back, the one that costs least first, as long as the point stays good enough.

    Args:
        space: The search space; changes are taken back to the values of its baseline.
        least: The ln score that the result has to be believed to have.
        believed: Returns the ln score that points are believed to have, measured or not.

    Returns:
        The simplified point; the same one if each of its changes is believed to matter.
    """
    while paths := space.changes(values):
        fewer = [space.without_inert({**values, path: space.baseline[path]}) for path in paths]
        simpler = [point for point in fewer if may_try(point)]
        beliefs = believed(simpler) if simpler else ()
        best = max(range(len(simpler)), key=lambda number: beliefs[number], default=None)
        if best is None or beliefs[best] < least:
            break
        values = simpler[best]
    return values
