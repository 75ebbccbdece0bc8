"""Which points are worth a thought: what an expert would try, and what lies around the best points and elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from autotune.records import Values
from autotune.sampler.gaussian_process import Indices
from autotune.sampler.observations import Observation, best_observation
from autotune.space.catalog import effects_of
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space

LISTED_POINTS = 2_000
"""Spaces up to this size are looked at as a whole."""

_PAIRS = 300  # points two changes away from one of the best, drawn at random
_ANYWHERE = 300  # points drawn from the whole space
_MUCH_WAIT = 0.3  # share of the time that today's loop waits for data: the loader is to blame ...
_LITTLE_WAIT = 0.05  # ... or, where the loader does not share its processor with the step, it is not


def heuristic_proposals(
    space: Space,
    observations: Mapping[str, Observation],
    data_wait: float | None,
    *,
    has_gpu: bool,
    short_passes: bool,
) -> Iterator[Values]:
    """What an expert would try next, given what is known: one piece of advice after the other, on the best so far.

    The first sets all bundled knobs at once (they are cheap, safe, and rarely hurt each other); then each other
    advice that no trial has tried yet is added to the best point so far. So what helped is kept. Of a knob's further
    advice (the next larger batch) a value comes only after the one before it has helped.

    Args:
        space: What may vary.
        observations: What is known of each point.
        data_wait: Share of the time that today's training loop waited for data; None if not known.
        has_gpu: Whether the step runs on a device of its own. Where it shares the processor with the loader, a loop
            that does not wait may yet be slowed down by it.
        short_passes: Whether a trial sees a whole pass over the data anyway. Where it does not, a cache makes every
            trial wait for one: then it comes last.
    """
    loader_is_innocent = has_gpu and data_wait is not None and data_wait < _LITTLE_WAIT
    bundle = dict(space.today)
    for knob in space.knobs:
        if knob.bundled and knob.advice and (short_passes or not _settles(knob)):
            bundle[knob.path] = knob.advice[0]
    if space.name(bundle) not in observations and not loader_is_innocent:
        yield bundle
    best = best_observation(observations)
    start = best.values if best else bundle
    device_first = loader_is_innocent or (data_wait is not None and data_wait < _MUCH_WAIT)

    def urgency(knob: Knob) -> tuple[bool, bool]:
        return _settles(knob) and not short_passes, effects_of(knob).on_step != device_first

    for knob in sorted(space.knobs, key=urgency):
        for before, value in zip((None, *knob.advice), knob.advice, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not any(
                same_scalar(observation.values[knob.path], value) for observation in observations.values()
            ):
                yield space.with_advice(start, knob.path, value)


def _settles(knob: Knob) -> bool:
    return any(same_scalar(value, late) for value in knob.advice for late in knob.settling)


def candidates(space: Space, best: Sequence[Values], rng: np.random.Generator) -> Indices:
    """Points to choose among: the whole of a small space, else those around the best ones and some from anywhere.

    Args:
        space: What may vary.
        best: The points to look around, by their values.
        rng: Draws where there are too many.

    Returns:
        One row a point, as positions among each knob's choices; none twice. What cannot work is not left out.
    """
    sizes = [len(knob.choices) for knob in space.knobs]
    if space.size <= LISTED_POINTS:
        return np.array(list(product(*(range(size) for size in sizes))), dtype=np.int64).reshape(space.size, len(sizes))
    anywhere = np.column_stack([rng.integers(0, size, _ANYWHERE) for size in sizes])
    found = [anywhere]
    for values in best:
        center = np.array(space.indices(values))
        found.append(_neighbours(center, sizes))
        pairs = np.tile(center, (_PAIRS // len(best), 1))
        for row in pairs:
            for column in rng.choice(len(sizes), size=min(2, len(sizes)), replace=False):
                row[column] = rng.integers(0, sizes[column])
        found.append(pairs)
    return np.unique(np.concatenate(found), axis=0)


def _neighbours(center: Indices, sizes: Sequence[int]) -> Indices:
    """All points that differ in one knob."""
    rows = np.tile(center, (sum(sizes), 1))
    number = 0
    for column, size in enumerate(sizes):
        rows[number : number + size, column] = np.arange(size)
        number += size
    return rows
