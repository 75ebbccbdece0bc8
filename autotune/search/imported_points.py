"""Imported points: the points of other studies, in the terms of this space."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autotune.records import Ending, Machine, Scalar, Values
from autotune.sampler.feasibility import MemoryHint
from autotune.space.knob import Knob, is_number
from autotune.space.space import Space
from autotune.study.profiles import Profile, ProfilePoint
from autotune.study.siblings import Likeness, Sibling

MOST_POINTS = 4
"""Imported points of a search, at most."""

_MOST_OF_A_SIBLING: Mapping[Likeness, int] = {
    Likeness.EARLIER_CODE: 3,
    Likeness.SAME_TRAINING: 3,
    Likeness.SAME_COMMAND: 2,
    Likeness.SAME_KNOBS: 1,
}


@dataclass(frozen=True, kw_only=True)
class ImportedPoint:
    """Point of another study that is worth a trial here.

    Attributes:
        values: Its values here.
        sibling: The study that it is from.
        gain: ln score over the baseline, there.
    """

    values: Values
    sibling: Sibling
    gain: float


def imported_points(
    space: Space, found: Iterable[Sibling], machine: Machine, *, memory_margin: float
) -> list[ImportedPoint]:
    """Return the points to try, the best of each sibling first, those of the nearest in front; no two are the same.

    Args:
        space: The space.
        found: The siblings, nearest first.
        machine: This machine.
        memory_margin: Fraction of its memory that has to stay free, 0 to 1.
    """
    columns = [
        [
            ImportedPoint(
                values=_here(space, sibling.profile, point, machine, memory_margin), sibling=sibling, gain=point.gain
            )
            for point in sibling.profile.points[: _MOST_OF_A_SIBLING[sibling.likeness]]
        ]
        for sibling in found
    ]
    baseline = space.indices(space.baseline)
    chosen: dict[tuple[int, ...], ImportedPoint] = {}
    for rank in range(max(map(len, columns), default=0)):
        for column in columns:
            for point in column[rank : rank + 1]:
                if (place := space.indices(point.values)) != baseline:
                    chosen.setdefault(place, point)
    return list(chosen.values())[:MOST_POINTS]


def memory_hints(space: Space, found: Iterable[Sibling], machine: Machine) -> list[MemoryHint]:
    """Return the points that ran out of memory where there was at least as much as here.

    Args:
        space: The space.
        found: The siblings.
        machine: This machine.
    """
    return [
        MemoryHint(values={**space.baseline, **dict(_raw(space, sibling.profile, point.values))}, ending=point.ending)
        for sibling in found
        if sibling.likeness in (Likeness.EARLIER_CODE, Likeness.SAME_TRAINING)
        for point in sibling.profile.exhausted
        if _had_as_much(sibling, machine, point.ending)
    ]


def _had_as_much(sibling: Sibling, machine: Machine, ending: Ending) -> bool:
    hardware = sibling.profile.hardware
    if ending is Ending.OUT_OF_HOST_MEMORY:
        return machine.memory_bytes <= hardware.memory_bytes
    here, there = _gpu_memory_bytes(machine), hardware.gpu_memory_bytes
    return here is not None and there is not None and here <= there


def _here(space: Space, profile: Profile, point: ProfilePoint, machine: Machine, memory_margin: float) -> Values:
    """Return a point's values here: of ladders the nearest choice, today's where a value has no place.

    What the other machine had limited is limited by this one: a batch that used more memory than there is here becomes
    smaller in proportion, and at least as many workers as there were cores become as many as there are here.
    """
    fits = (1.0 - memory_margin) * min(
        _share(_gpu_memory_bytes(machine), point.gpu_memory_bytes),
        _share(machine.memory_bytes, point.host_memory_bytes),
    )
    values = {**space.baseline}
    for path, value, near in _placed(space, profile, point.values):
        knob = space.knob(path)
        values[path] = near
        if is_number(value) and knob.kind == "batch_size" and fits < 1.0:
            values[path] = _largest(knob, fits * float(value or 0))
        elif is_number(value) and knob.kind == "workers" and float(value or 0) >= profile.hardware.cpu_cores:
            index = nearest(knob, machine.cpu_cores)
            values[path] = near if index is None else knob.choices[index]
    return space.without_inert(values)


def _share(memory_bytes: int | None, used_bytes: int | None) -> float:
    """Return the share of the memory that a trial used elsewhere which there is here; infinity if it is not known."""
    return memory_bytes / used_bytes if memory_bytes and used_bytes else math.inf


def _gpu_memory_bytes(machine: Machine) -> int | None:
    """Return the memory of the smallest GPU; None without one, or if it is not known."""
    return min((gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None), default=None)


def _largest(knob: Knob, most: float) -> Scalar:
    """Return the largest choice of a ladder that is not above a number, else the smallest."""
    fitting = [choice for choice in knob.choices if is_number(choice) and float(choice or 0) <= most]
    return fitting[-1] if fitting else knob.choices[0]


def _raw(space: Space, profile: Profile, values: Values) -> Iterator[tuple[str, Scalar]]:
    """Yield a point's values by the knobs here, numbers as they were: a batch beyond the ladder stays one."""
    for path, value, near in _placed(space, profile, values):
        yield path, value if is_number(near) and is_number(value) else near


def _placed(space: Space, profile: Profile, values: Values) -> Iterator[tuple[str, Scalar, Scalar]]:
    """Yield each value that has a place here: the knob, the value, and the choice that is nearest to it."""
    for knob in space.knobs:
        path = _path_there(knob, space, profile.kinds)
        if path is not None and path in values:
            index = nearest(knob, values[path])
            if index is not None:
                yield knob.path, values[path], knob.choices[index]


def _path_there(knob: Knob, space: Space, kinds: Mapping[str, str | None]) -> str | None:
    """Return the name that a knob has there: its own, else that of the only one of its kind."""
    if knob.path in kinds:
        return knob.path if kinds[knob.path] == knob.kind else None
    there = [path for path, kind in kinds.items() if knob.kind is not None and kind == knob.kind]
    here = [other for other in space.knobs if other.kind == knob.kind]
    return there[0] if len(there) == len(here) == 1 else None


def nearest(knob: Knob, value: Scalar) -> int | None:
    """Return the position of the choice that is nearest to a value, by ratio where all are above 0; None for none."""
    index = knob.index(value)
    if index is not None or not knob.ordered or isinstance(value, bool) or not isinstance(value, int | float):
        return index
    numbers = [float(choice) for choice in knob.choices if isinstance(choice, int | float)]
    by_ratio = min(*numbers, value) > 0
    distances = [abs(math.log(number / value)) if by_ratio else abs(number - value) for number in numbers]
    return distances.index(min(distances))
