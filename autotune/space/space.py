"""The space of points: which knobs there are, what they may hold, and which combinations cannot work."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from autotune.records import Scalar, Values
from autotune.space.catalog import row_of
from autotune.space.knob import Knob, Label, same_scalar


def point_name(values: Values) -> str:
    """Names a point: a hash of its canonical form, the same on every machine.

    A float that is a whole number and the integer are one value, as they are in a config.

    Args:
        values: Every key that the point sets; see `Space.name`.
    """
    canonical = {
        path: int(value) if isinstance(value, float) and value.is_integer() else value for path, value in values.items()
    }
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The knobs of one config on one machine.

    Attributes:
        knobs: In the order in which an expert would turn them; the user's own knobs last.
        always_settles: Whether every point's speed shows only after one pass over the data, because the config uses a
            cache that is no knob.
    """

    knobs: tuple[Knob, ...]
    always_settles: bool = False

    @property
    def today(self) -> Values:
        """What the config holds now."""
        return {knob.path: knob.today for knob in self.knobs}

    @property
    def size(self) -> int:
        """Number of combinations, those that cannot work included."""
        return prod(len(knob.choices) for knob in self.knobs)

    def knob(self, path: str) -> Knob:
        """The knob of that name; KeyError if there is none."""
        for knob in self.knobs:
            if knob.path == path:
                return knob
        raise KeyError(path)

    def same_training(self) -> "Space":
        """The same space with every knob frozen that may change what is computed."""
        return replace(
            self,
            knobs=tuple(
                knob if knob.label is Label.SAME_TRAINING else replace(knob.narrowed([knob.today]), advice=())
                for knob in self.knobs
            ),
        )

    def without_settling(self) -> "Space":
        """The same space with every cache left as it is today, and measured as it is in a first pass."""
        return Space(knobs=tuple(_without_settling(knob) for knob in self.knobs))

    def contains(self, values: Values) -> bool:
        """Whether these are values of this space: every knob, nothing else, only its choices."""
        return set(values) == {knob.path for knob in self.knobs} and all(
            knob.index(values[knob.path]) is not None for knob in self.knobs
        )

    def indices(self, values: Values) -> tuple[int, ...]:
        """A point as numbers: of each knob the position of its value among the choices.

        Raises:
            ValueError: One of the values is not among them.
        """
        found = tuple(knob.index(values[knob.path]) for knob in self.knobs)
        known = tuple(index for index in found if index is not None)
        if len(known) < len(found):
            raise ValueError(f"not a point of this space: {values}")
        return known

    def at(self, indices: Iterable[int]) -> Values:
        """The point of these numbers; see `indices`."""
        return {knob.path: knob.choices[index] for knob, index in zip(self.knobs, indices, strict=True)}

    def changes(self, values: Values) -> Values:
        """What a point changes against today's config."""
        return {knob.path: values[knob.path] for knob in self.knobs if not same_scalar(values[knob.path], knob.today)}

    def is_same_training(self, values: Values, today: Values | None = None) -> bool:
        """Whether a point leaves the training itself unchanged.

        Args:
            values: The point.
            today: What it is compared with; None for what the config holds now (a search may have begun with other
                values).
        """
        start = self.today if today is None else today
        labels = {knob.path: knob.label for knob in self.knobs}
        return start.keys() == values.keys() and all(
            same_scalar(values[path], start[path]) or labels.get(path) is Label.SAME_TRAINING for path in start
        )

    def settles(self, values: Values) -> bool:
        """Whether a point's speed shows only after one pass over the data."""
        return self.always_settles or any(
            same_scalar(values[knob.path], slow) for knob in self.knobs for slow in knob.settling
        )

    def keys(self, values: Values) -> dict[str, Scalar]:
        """Every key of the config that a point sets, keys that move together included."""
        return {path: value for knob in self.knobs for path, value in knob.keys(values[knob.path]).items()}

    def name(self, values: Values) -> str:
        """Name a point by every key that it sets: an accumulation that moves with the batch is part of the point.

        Raises:
            ValueError: The values are none of this space, so that what the keys that move along hold is not known.
        """
        return point_name(self.keys(values))

    def is_named(self, name: str, values: Values) -> bool:
        """Whether these are values of this space, and its keys that move along held then what they would hold now."""
        return self.contains(values) and self.name(values) == name

    def why_infeasible(self, values: Values) -> str | None:
        """Why a combination cannot work, None if it may.

        What today's config combines is always feasible: whatever it is, it is what the user runs.
        """
        changes = self.changes(values)
        for knob in self.knobs:
            for other, wanted in self._needs(knob, values[knob.path]).items():
                as_today = knob.path not in changes and other.path not in changes
                if not as_today and not same_scalar(values[other.path], wanted):
                    return f"{knob.path}: {values[knob.path]} needs {other.path}: {wanted}"
        return None

    def with_advice(self, values: Values, path: str, choice: Scalar) -> Values:
        """A point with one knob turned, and whatever that value needs turned along."""
        turned = {**values, path: choice}
        for other, wanted in self._needs(self.knob(path), choice).items():
            turned[other.path] = wanted
        return turned

    def _needs(self, knob: Knob, choice: Scalar) -> dict[Knob, Scalar]:
        row = row_of(knob)
        wanted = row.needs.get(choice, {}) if row else {}
        return {other: value for other in self.knobs for kind, value in wanted.items() if other.kind == kind}


def _without_settling(knob: Knob) -> Knob:
    late = knob.settling
    if any(same_scalar(knob.today, value) for value in late):
        # Any other choice would look good against a cache that is still being filled.
        return replace(knob.narrowed([knob.today]), advice=(), settling=())
    return knob.narrowed(choice for choice in knob.choices if choice not in late)
