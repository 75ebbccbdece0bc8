"""Inert knobs: config keys that seem to have no effect on the trainer.

A flag may override the config, a key may be misspelt, a branch may never be taken; a search over such a knob wastes its
trials. Two signs count, each reported without claiming more than was observed: every step has the same number of
samples whatever the batch size; the trainer prints the same value whatever was set. A score without an effect is
no sign: the main effects of two knobs that only work together are small, too.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from autotune.records import TrialRecord, Values
from autotune.sampler.main_effects import MainEffect, Sample, main_effects
from autotune.sampler.observations import Observation
from autotune.space.space import Space

SMALLEST_EFFECT = 0.05
"""In ln score: a knob is heeded if the interval of one of its effects lies beyond this on one side."""

_SURE = 1.645  # standard deviations to either side: 90 %
_LEAST_PRINTED = 3  # least number of trials that print a key
_SAME_BATCH = 0.02  # tolerated relative difference of the mean samples of a step: last batches are smaller
_LEAST_CHANGE = 1.5  # least ratio of batch sizes that has to be visible


def is_large(effect: MainEffect) -> bool:
    """Return True if the 90 % interval of an effect lies beyond `SMALLEST_EFFECT` on one side."""
    return abs(effect.mean) - _SURE * effect.sd > SMALLEST_EFFECT


def effects_shown(observations: Mapping[str, Observation], space: Space, sd: float) -> list[MainEffect]:
    """Return the main effects on ln score; an empty list if there are too few points.

    Args:
        observations: Observation of each point.
        space: The search space.
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

    Args:
        records: The trials so far.
        space: The search space.
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
        if seen and max(sizes) >= _LEAST_CHANGE * min(sizes) and max(samples) <= (1 + _SAME_BATCH) * min(samples):
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
    """Return the knobs for which the trainer printed the same value in every trial, whatever was set.

    Args:
        trials: Knob values and printed values (`printed_values`) of each trial.
        space: The search space.
    """
    found: dict[str, str] = {}
    known = list(trials)
    for knob in space.knobs:
        seen = [(values[knob.path], said[knob.path]) for values, said in known if knob.path in said]
        words = frozenset().union(*(said for _, said in seen)) if seen else frozenset()
        set_to = {str(value) for value, _ in seen}
        if len(seen) >= _LEAST_PRINTED and len(words) == 1 and len(set_to) > 1:
            found[knob.path] = f"the trainer printed {next(iter(words))} each time, set to {_listed(set_to)}"
    return found


def _listed(words: Iterable[str]) -> str:
    *others, last = sorted(words, key=lambda word: (len(word), word))
    return f"{', '.join(others)} and {last}"
