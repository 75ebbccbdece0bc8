"""Initial design by rules of thumb: the values that an expert would try first, given what the trials showed so far."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.records import Scalar, Values
from autotune.sampler.observations import Observation
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space


def heuristic_proposals(
    space: Space,
    observations: Mapping[str, Observation],
    data_wait: float | None,
    *,
    has_gpu: bool,
    short_passes: bool,
    pending: Sequence[Values] = (),
) -> Iterator[Values]:
    """Yield the untried proposals of an expert, the most urgent first, each based on the best point so far.

    The first sets all bundled knobs at once (they are cheap, safe, and rarely harm each other). Each further one
    changes one knob of the best point so far to a recommended value that no trial has tried, so improvements are kept.
    Of several recommended values of a knob (larger and larger batches) each is proposed only if the best point holds
    the one before it; where one fails, the value half way to it is.

    Args:
        data_wait: Fraction of its time that the baseline's training loop waits for data, 0 to 1; None if unknown.
        has_gpu: True if the step runs on a device of its own. Where step and loader share the processor, the loader may
            slow down even a loop that does not wait.
        short_passes: True if a trial covers a whole pass over the data. Otherwise every trial with a cache has to wait
            for one, and the cache comes last.
        pending: Points that other machines measure now. While the first proposal is one of them, further ones build on
            it, as if it had kept its promise.
    """
    # ... or, where the loader does not share its processor with the step, it is not
    loader_is_innocent = has_gpu and data_wait is not None and data_wait < 0.05
    bundle = space.baseline
    for knob in space.knobs:
        is_cheap = knob.bundled and (short_passes or not _settles(knob)) and not space.is_inert(knob, bundle)
        if is_cheap and knob.heuristic_values:
            bundle = space.with_heuristic(bundle, knob.path, knob.heuristic_values[0])
    is_tried_now = space.name(bundle) not in observations and space.name(bundle) in map(space.name, pending)
    if space.name(bundle) not in observations and not is_tried_now and not loader_is_innocent:
        yield bundle
    good = [observation for observation in observations.values() if observation.scores]
    best = max(good, key=lambda observation: observation.mean, default=None)
    start = best.values if best and not is_tried_now else bundle
    tried = [*(observation.values for observation in observations.values()), *pending]
    # share of the time that the baseline's loop waits for data: the loader is to blame ...
    device_first = loader_is_innocent or (data_wait is not None and data_wait < 0.3)

    def urgency(knob: Knob) -> tuple[bool, bool]:
        return _settles(knob) and not short_passes, traits_of(knob).on_step != device_first

    with_effect = [knob for knob in space.knobs if not space.is_inert(knob, start)]
    for knob in sorted(with_effect, key=urgency):
        for before, value in zip((None, *knob.heuristic_values), knob.heuristic_values, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not any(same_scalar(values[knob.path], value) for values in tried):
                yield space.with_heuristic(start, knob.path, value)
        if (half := _half_way(knob, start, observations.values())) is not None:
            yield space.with_heuristic(start, knob.path, half)


def _half_way(knob: Knob, start: Values, observations: Iterable[Observation]) -> Scalar:
    """Return the value half way to a recommended one with which every trial failed; None for none that is new."""
    known = [(knob.index(one.values[knob.path]) or 0, bool(one.scores)) for one in observations]
    worked = {place for place, has_worked in known if has_worked}
    failed = {place for place, _ in known if knob.choices[place] in knob.heuristic_values} - worked
    place = knob.index(start[knob.path])
    if not failed or not knob.ordered or place is None:
        return None
    nearest = min(failed, key=lambda other: abs(other - place))
    half = (place + nearest) // 2 if nearest > place else -(-(place + nearest) // 2)
    return None if half == place or half in dict(known) else knob.choices[half]


def _settles(knob: Knob) -> bool:
    return any(same_scalar(value, late) for value in knob.heuristic_values for late in knob.settling)
