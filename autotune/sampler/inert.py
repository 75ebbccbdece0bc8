"""Inert knobs: config keys that seem to have no effect on the trainer.

A flag may override the config, a key may be misspelt, a branch may never be taken; a search over such a knob wastes its
trials. There are three signs, each reported without claiming more than was observed: every step has the same number of
samples whatever the batch size; the trainer prints the same value whatever was set; the score shows no effect while
other knobs show theirs. The last is no proof (`inert_knobs` states when it is considered sufficient).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.records import Scalar, TrialRecord, Values
from autotune.sampler.main_effects import MainEffect, Sample, main_effects
from autotune.sampler.observations import Observation
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space

SMALLEST_EFFECT = 0.05
"""In ln score: a knob has no effect if the intervals of all its effects lie within plus or minus this."""

LEAST_TRIALS = 4
"""Least number of trials with values other than the baseline's, before a knob is reported as inert."""

_SURE = 1.645  # standard deviations to either side: 90 %
_FAR = 0.5  # of the way to the end of an ordered domain
_LEAST_PRINTED = 3  # least number of trials that print a key
_SAME_BATCH = 0.02  # tolerated relative difference of the mean samples of a step: last batches are smaller
_LEAST_CHANGE = 1.5  # least ratio of batch sizes that has to be visible


def is_small(effect: MainEffect) -> bool:
    """Return True if the 90 % interval of an effect lies within plus or minus `SMALLEST_EFFECT`."""
    return abs(effect.mean) + _SURE * effect.sd < SMALLEST_EFFECT


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


def inert_knobs(effects: Sequence[MainEffect], observations: Mapping[str, Observation], space: Space) -> dict[str, str]:
    """Return the knobs that seem to have no effect, each with the message for the user.

    A knob is inert if a value far from the baseline's was tried, `LEAST_TRIALS` trials had values other than the
    baseline's, the 90 % interval of each of its effects lies within plus or minus `SMALLEST_EFFECT`, and some other
    knob has a significant effect, so that effects are visible at all.

    Args:
        effects: Result of `effects_seen` for these observations.
        observations: Observation of each point.
        space: The search space.
    """
    good = [observation for observation in observations.values() if observation.scores]
    found: dict[str, str] = {}
    if not any(map(is_large, effects)):
        return found
    for knob in space.knobs:
        own = [effect for effect in effects if effect.path == knob.path]
        trials = sum(
            len(observation.scores)
            for observation in good
            if not same_scalar(observation.values[knob.path], knob.baseline)
        )
        all_small = bool(own) and all(map(is_small, own))
        if trials >= LEAST_TRIALS and all_small and _reaches_far(knob, [effect.choice for effect in own]):
            found[knob.path] = f"no effect seen in {trials} trials"
    return found


def without_turning(space: Space, inert: Collection[str]) -> Space:
    """Return the same space with these knobs fixed at the baseline's values."""
    knobs = tuple(knob.narrowed((knob.baseline,)) if knob.path in inert else knob for knob in space.knobs)
    return replace(space, knobs=knobs)


def _reaches_far(knob: Knob, tried: Iterable[Scalar]) -> bool:
    """Return True if a tried value is far from the baseline's, within its domain."""
    if not knob.ordered:
        return True
    baseline, last = knob.index(knob.baseline), len(knob.choices) - 1
    assert baseline is not None
    positions = [position for position in map(knob.index, tried) if position is not None]
    return max(abs(position - baseline) for position in positions) >= _FAR * max(baseline, last - baseline)


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
