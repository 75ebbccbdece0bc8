"""Unused knobs: config keys without effect on the trainer (overridden by a flag, misspelt, never reached).

Evidence is a step with the same number of samples at every batch size, or a value that is always printed the same and
has no effect on the score.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from autotune.records import Scalar, TrialRecord, Values
from autotune.sampler.observations import Observation
from autotune.space.catalog import knobs_with
from autotune.space.knob import is_among, same_scalar
from autotune.space.space import Space

INDISTINGUISHABLE = 0.02
"""Largest difference in ln score between equally good points."""

_LEAST_CHANGE = 1.5  # smallest ratio of batch sizes to compare


def with_knobs_fixed(space: Space, paths: Collection[str]) -> Space:
    """Return the space with these knobs fixed at the baseline."""
    knobs = tuple(knob.narrowed((knob.baseline,)) if knob.path in paths else knob for knob in space.knobs)
    return replace(space, knobs=knobs)


def same_batch(records: Iterable[TrialRecord], space: Space) -> dict[str, str]:
    """Return the evidence for batch sizes that don't change the samples of a step, by path."""
    found: dict[str, str] = {}
    measured = [(trial.values, trial.measurement) for trial in records if trial.measurement]
    for knob in knobs_with(space.knobs, counts="samples"):
        seen = [
            (float(values[knob.path] or 0), shown.samples_per_s * shown.window_s / shown.steps)
            for values, shown in measured
            if isinstance(values.get(knob.path), int)
        ]
        sizes, samples = [size for size, _ in seen], [held for _, held in seen]
        # 2 %: last batches are smaller
        if seen and max(sizes) >= _LEAST_CHANGE * min(sizes) and max(samples) <= (1 + 0.02) * min(samples):
            found[knob.path] = f"each step had {samples[0]:.4g} samples with {min(sizes):g} and with {max(sizes):g}"
    return found


def printed_values(output: str, space: Space) -> dict[str, frozenset[str]]:
    """Return the values printed after a knob's key on the same line, by path."""
    found = {}
    for knob in space.knobs:
        name = re.escape(knob.path.rpartition(".")[2]).replace("_", "[-_]")
        words = re.findall(rf"(?<![\w.-])(?:--)?{name}['\"]?[ \t]*[:= \t][ \t]*['\"]?([\w.+-]+)", output)
        if words:
            found[knob.path] = frozenset(word.rstrip(".").lower() for word in words)
    return found


def printed_the_same(trials: Iterable[tuple[Values, Mapping[str, frozenset[str]]]], space: Space) -> dict[str, str]:
    """Return the evidence for knobs whose printed value never changes, by path."""
    found: dict[str, str] = {}
    known = list(trials)
    for knob in space.knobs:
        seen = [(values[knob.path], printed[knob.path]) for values, printed in known if knob.path in printed]
        words = frozenset().union(*(printed for _, printed in seen)) if seen else frozenset()
        set_to = {str(value) for value, _ in seen}
        is_one = len(words) == 1 and not words.isdisjoint(map(str.lower, set_to))
        if len(seen) >= 3 and is_one and len(set_to) > 1:  # 3: minimum number of trials
            found[knob.path] = f"the trainer printed {next(iter(words))} every time, with {_listed(set_to)} set"
    return found


def _listed(words: Iterable[str]) -> str:
    *others, last = sorted(words, key=lambda word: (len(word), word))
    return f"{', '.join(others)} and {last}"


_EFFECT, _NO_EFFECT = 0.05, 0.1  # in ln score: a 90 % interval above the first, or below the second


def knobs_by_effect(observations: Mapping[str, Observation], space: Space, sd: float) -> tuple[set[str], set[str]]:
    """Return the knobs that certainly have an effect, and those that certainly have none.

    Args:
        sd: Standard deviation of ln score between trials of one point.
    """
    bounds = _effects(observations, space, sd)
    without_effect = {path for path, *_ in bounds} - {path for path, _, high in bounds if high > _NO_EFFECT}
    return {path for path, low, _ in bounds if low > _EFFECT}, without_effect


def _effects(observations: Mapping[str, Observation], space: Space, sd: float) -> list[tuple[str, float, float]]:
    """Fit a linear model of ln score, a priori without effects; values that only occur together share theirs.

    Returns:
        Path and 90 % interval of the absolute effect of each value.
    """
    good = [observation for observation in observations.values() if observation.scores]
    tried: dict[str, list[Scalar]] = {path: [] for path in space.baseline}
    for path, baseline in space.baseline.items():
        for value in (observation.values[path] for observation in good):
            if not is_among(value, (baseline, *tried[path])):
                tried[path].append(value)
    changes = [(path, value) for path, values in tried.items() for value in values]
    if not changes or len(good) <= len(changes):
        return []
    rows = [[1.0, *(float(same_scalar(one.values[path], value)) for path, value in changes)] for one in good]
    design = np.array(rows)
    means = np.array([observation.mean for observation in good])
    weights = np.array([float(len(observation.scores)) for observation in good])
    prior = np.diag([0.0, *([0.5**-2] * len(changes))])  # 0.5: standard deviation of an effect, in ln score
    noise = sd
    for _ in range(2):  # first with the known noise, then with the residual of that fit
        precision = design.T @ (design * (weights / noise**2)[:, None]) + prior
        effects = np.linalg.solve(precision, design.T @ (means * weights / noise**2))
        residuals = means - design @ effects
        left = math.sqrt(float(np.average(residuals**2 * weights)) * len(means) / max(1, len(means) - 1))
        noise = max(sd, left)
    deviations = np.sqrt(np.diag(np.linalg.inv(precision)))
    sizes, spread = np.abs(effects[1:]), 1.645 * deviations[1:]  # standard deviations to either side: 90 %
    return [(path, size - by, size + by) for (path, _), size, by in zip(changes, sizes, spread, strict=True)]
