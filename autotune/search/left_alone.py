"""Knobs that a search leaves alone for now, because what limits training is not what they act on.

A trial of a point that was taken through phases says how fast training would be with free data, and how fast the loader
is alone. From there a change of the input cannot gain more than the first, and a change of the step no more than the
second, as long as the other side stays as it is. Once the other side has become so much faster that it may be the limit
no more, they count again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.measure.bounds import CANNOT_MATTER, FREE_DATA, FREE_STEP, HIGH
from autotune.records import Purpose, TrialRecord, Values
from autotune.space.catalog import effects_of
from autotune.space.knob import same_scalar
from autotune.space.space import Space

_MOVED = 0.8
"""Share of the way to the other side's limit, from which on knobs of this side count again."""


@dataclass(frozen=True, kw_only=True)
class LeftAlone:
    """Knobs that cannot matter yet.

    Attributes:
        paths: The knobs.
        point: Name of the point that was taken through phases.
        values: Its values: those knobs stay at these.
        until: Speed over that point's from which on they may matter.
        why: Reason, for people.
    """

    paths: frozenset[str]
    point: str
    values: Values
    until: float
    why: str

    def allows(self, values: Values) -> bool:
        """Return whether a point leaves these knobs alone."""
        return all(same_scalar(values[path], self.values[path]) for path in self.paths)


def left_alone(records: Iterable[TrialRecord], space: Space, point: str, machine: str) -> LeftAlone | None:
    """Return the knobs that cannot matter by what the latest trial in phases of a point has shown, if any.

    Args:
        records: The study's record.
        space: The search space.
        point: Name of the point.
        machine: Name of this machine.
    """
    shown = [
        trial
        for trial in records
        if trial.purpose is Purpose.DIAGNOSE
        and trial.point == point
        and trial.machine == machine
        and _number(trial, FREE_DATA) is not None
        and _number(trial, FREE_STEP) is not None
    ]
    if not shown:
        return None
    trial, latest = shown[-1], shown[-1].conditions
    free_data, free_step = (float(latest[name] or 0.0) for name in (FREE_DATA + HIGH, FREE_STEP + HIGH))
    if min(free_data, free_step) > CANNOT_MATTER:
        return None
    on_step = free_step < free_data
    paths = frozenset(
        knob.path for knob in space.knobs if len(knob.choices) > 1 and effects_of(knob).on_step is on_step
    )
    if not paths or len(paths) == sum(len(knob.choices) > 1 for knob in space.knobs):
        return None
    what, other = ("the step", "the input") if on_step else ("the input", "the step")
    most = free_step if on_step else free_data
    return LeftAlone(
        paths=paths,
        point=point,
        values=trial.values,
        until=_MOVED * float(latest[FREE_DATA if on_step else FREE_STEP] or 0.0),
        why=f"{other} is the limit: with {what} free, training would be at most {most:.2f}x as fast; "
        f"{', '.join(sorted(paths))} {'is' if len(paths) == 1 else 'are'} left alone for now",
    )


def _number(trial: TrialRecord, name: str) -> float | None:
    value = trial.conditions.get(name)
    is_number = isinstance(value, float | int) and not isinstance(value, bool) and value > 0
    return float(value) if is_number and isinstance(value, float | int) else None
