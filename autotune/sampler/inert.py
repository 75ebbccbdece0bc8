"""Knobs that the trainer does not seem to heed: what they are set to changes nothing.

A flag may beat the config, a key may be misspelt, a branch may never be taken; and a search over such a knob wastes its
runs. Three signs, each told in words that claim no more than was seen: every step has the same number of samples,
whatever the batch size; the trainer prints the same value whatever was set; no effect on the score was seen
where other knobs show theirs. The last is no proof (`inert_knobs` says when it is taken for enough).
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
"""In ln score: a knob is without effect if none of its values can be believed to be worth this much."""

LEAST_TRIALS = 4
"""With other values than today's, before a knob is said to have no effect."""

_SURE = 1.645  # standard deviations to either side: 90 %
_FAR = 0.5  # of the way to the end of an ordered domain
_LEAST_PRINTED = 3  # runs that print a key
_SAME_BATCH = 0.02  # by how much the mean samples of a step may differ: last batches are smaller
_LEAST_CHANGE = 1.5  # of a batch size, that would have to show


def is_small(effect: MainEffect) -> bool:
    """Whether an effect is less than `SMALLEST_EFFECT` either way, at 90 %."""
    return abs(effect.mean) + _SURE * effect.sd < SMALLEST_EFFECT


def is_large(effect: MainEffect) -> bool:
    """Whether it is more than that, at 90 %."""
    return abs(effect.mean) - _SURE * effect.sd > SMALLEST_EFFECT


def effects_seen(observations: Mapping[str, Observation], space: Space, sd: float) -> list[MainEffect]:
    """The main effects on ln score that the points so far show; none if there are too few points to tell.

    Args:
        observations: What is known of each point.
        space: What may vary.
        sd: Standard deviation of ln score between trials of one point.
    """
    good = [observation for observation in observations.values() if observation.scores]
    samples = [
        Sample(values=observation.values, mean=observation.mean, trials=len(observation.scores)) for observation in good
    ]
    effects = main_effects(samples, space.today, sd)
    return effects if len(good) > len(effects) else []


def inert_knobs(effects: Sequence[MainEffect], observations: Mapping[str, Observation], space: Space) -> dict[str, str]:
    """The knobs that seem to make no difference, with the words for it.

    A knob counts if a value far from today's was tried, `LEAST_TRIALS` runs were made with other values than today's,
    the 90 % interval of each of its effects lies within plus or minus `SMALLEST_EFFECT`, and some other knob has an
    effect for certain, so effects can be seen here.

    Args:
        effects: What `effects_seen` says of these levels.
        observations: What is known of each point.
        space: What may vary.
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
            if not same_scalar(observation.values[knob.path], knob.today)
        )
        all_small = bool(own) and all(map(is_small, own))
        if trials >= LEAST_TRIALS and all_small and _reaches_far(knob, [effect.choice for effect in own]):
            found[knob.path] = f"no effect seen in {trials} trials"
    return found


def without_turning(space: Space, inert: Collection[str]) -> Space:
    """The same space with these knobs left as they are today."""
    knobs = tuple(knob.narrowed((knob.today,)) if knob.path in inert else knob for knob in space.knobs)
    return replace(space, knobs=knobs)


def _reaches_far(knob: Knob, tried: Iterable[Scalar]) -> bool:
    """Whether a value was tried that is far from today's, as far as there are any."""
    if not knob.ordered:
        return True
    today, last = knob.index(knob.today), len(knob.choices) - 1
    assert today is not None
    positions = [position for position in map(knob.index, tried) if position is not None]
    return max(abs(position - today) for position in positions) >= _FAR * max(today, last - today)


def same_batch(records: Iterable[TrialRecord], space: Space) -> dict[str, str]:
    """Batch sizes that every trial ignored: its steps had as many samples as any other's.

    Where a trainer does not say how many samples a step had, they are counted by the config, and this finds nothing.

    Args:
        records: The trials so far.
        space: What may vary.
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
    """The values that a trainer printed for the knobs' keys, however it did so; keys it does not print are left out."""
    found = {}
    for knob in space.knobs:
        name = re.escape(knob.path.rpartition(".")[2]).replace("_", "[-_]")
        words = re.findall(rf"(?<![\w.-])(?:--)?{name}['\"]?\s*[:=\s]\s*['\"]?([\w.+-]+)", output)
        if words:
            found[knob.path] = frozenset(word.rstrip(".").lower() for word in words)
    return found


def said_the_same(trials: Iterable[tuple[Values, Mapping[str, frozenset[str]]]], space: Space) -> dict[str, str]:
    """Knobs for which the trainer printed one and the same value in every trial, whatever was set.

    Args:
        trials: What was set, and what was printed (`printed_values`), of each run.
        space: What may vary.
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
