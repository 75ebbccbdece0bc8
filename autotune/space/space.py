"""Search space: knobs, their choices, and infeasible combinations."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

from autotune.records import Scalar, Values
from autotune.space.catalog import BATCH_NAMES, Demand, excluded_by, is_for_validation, row_of, traits_of
from autotune.space.knob import Knob, Label, is_among, is_number, key_name, number_of, same_scalar, section_mates


def point_name(values: Values) -> str:
    """Return a hash of the keys that a point sets, equal on every machine; whole floats equal integers."""
    whole = {path: int(value) for path, value in values.items() if isinstance(value, float) and value.is_integer()}
    canonical = {**values, **whole}
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Space:
    """Search space of one config on one machine.

    Attributes:
        knobs: In the order in which an expert would tune them; the user's own last.
        always_settles: Whether all points need a pass over the data first, because of a cache.
        most_batch: Largest effective batch relative to the baseline's, if several knobs determine it.
        relabelled: Labels shown by trials, by path and value.
    """

    knobs: tuple[Knob, ...]
    always_settles: bool = False
    most_batch: float | None = None
    relabelled: Mapping[tuple[str, Scalar], Label] = field(default_factory=dict, hash=False)

    @property
    def baseline(self) -> Values:
        return {knob.path: knob.baseline for knob in self.knobs}

    @property
    def choices(self) -> dict[str, tuple[Scalar, ...]]:
        return {knob.path: knob.choices for knob in self.knobs}

    @property
    def size(self) -> int:
        """Number of combinations, including infeasible ones."""
        return prod(len(knob.choices) for knob in self.knobs)

    def knob(self, path: str) -> Knob:
        """Return the knob with this path, or raise KeyError."""
        for knob in self.knobs:  # called too often to build a dictionary
            if knob.path == path:
                return knob
        raise KeyError(path)

    def within_reach(self, further: Mapping[str, float]) -> "Space":
        """Return the space without values beyond `further`, else `Knob.reach`."""
        return replace(self, knobs=tuple(_within(knob, further.get(knob.path, knob.reach)) for knob in self.knobs))

    def contains(self, values: Values) -> bool:
        """Return whether these values are a point of this space."""
        has_all = set(values) == {knob.path for knob in self.knobs}
        return has_all and all(knob.index(values[knob.path]) is not None for knob in self.knobs)

    def indices(self, values: Values) -> tuple[int, ...]:
        """Encode a point as positions among the choices; raise ValueError for other values."""
        found = tuple(knob.index(values[knob.path]) for knob in self.knobs)
        known = tuple(index for index in found if index is not None)
        if len(known) < len(found):
            raise ValueError(f"not a point of this space: {values}")
        return known

    def at(self, indices: Iterable[int]) -> Values:
        return {knob.path: knob.choices[index] for knob, index in zip(self.knobs, indices, strict=True)}

    def changes(self, values: Values) -> Values:
        pairs = ((knob, values[knob.path]) for knob in self.knobs)
        return {knob.path: value for knob, value in pairs if not same_scalar(value, knob.baseline)}

    def is_same_training(self, values: Values, baseline: Values | None = None) -> bool:
        """Return whether the changes from `baseline`, or else the config, leave the training unchanged."""
        return self.labels_of(values, baseline) <= {Label.SAME_TRAINING}

    def labels_of(self, values: Values, baseline: Values | None = None) -> Set[Label]:
        """Return the effects of those changes."""
        start = self.baseline if baseline is None else baseline
        both = start.keys() & values.keys()
        found = {self.label_of(path, values[path]) for path in both if not same_scalar(values[path], start[path])}
        return found if start.keys() == values.keys() else {*found, Label.UNKNOWN}

    def label_of(self, path: str, value: Scalar) -> Label:
        """Return the effect of a value on the training."""
        label = next((knob.label_of(value) for knob in self.knobs if knob.path == path), Label.UNKNOWN)
        return self.relabelled.get((path, value), label)

    def settles(self, values: Values) -> bool:
        """Return whether the speed shows only after one pass over the data."""
        return self.always_settles or any(is_among(values[knob.path], knob.settling) for knob in self.knobs)

    def resource_demand(self, values: Values) -> float:
        """Return a relative measure of workers, prefetched batches and batch size."""
        return sum((knob.index(values[knob.path]) or 0) / max(1, len(knob.choices) - 1) for knob in self.growing)

    @property
    def growing(self) -> list[Knob]:
        """Knobs whose larger values need more memory."""
        demands = ((knob, traits_of(knob)) for knob in self.knobs if knob.ordered)
        return [knob for knob, traits in demands if Demand.GROWS in (traits.host_memory, traits.gpu_memory)]

    def is_late(self, values: Values) -> bool:
        return any(is_among(values[knob.path], knob.late) for knob in self.knobs)

    def keys(self, values: Values) -> dict[str, Scalar]:
        """Return all config keys that a point sets, including carried ones."""
        return {path: value for knob in self.knobs for path, value in knob.keys(values[knob.path]).items()}

    def name(self, values: Values) -> str:
        """Return a point's name, over all `keys`."""
        return point_name(self.keys(values))

    def is_named(self, name: str, values: Values) -> bool:
        return self.contains(values) and self.name(values) == name

    def why_infeasible(self, values: Values) -> str | None:
        """Return why a combination cannot work; None if it may, as the baseline's does."""
        changes = self.changes(values)
        if self.most_batch is not None and (ratio := effective_batch_ratio(self.knobs, values)) > self.most_batch:
            return f"the effective batch would be {ratio:g}x today's; the limit is {self.most_batch:g}x"
        for knob in self.knobs:
            if knob.path in changes and (under := knob.inactive_if) and knob.is_inactive(values):
                return f"{knob.path} has no effect with {under.path}: {values[under.path]}"
            for other, wanted in self._needs(knob, values[knob.path]).items():
                if (knob.path in changes or other.path in changes) and not same_scalar(values[other.path], wanted):
                    return f"{knob.path}: {values[knob.path]} needs {other.path}: {wanted}"
            for other, excluded in self._excluded(knob, values[knob.path]).items():
                if (knob.path in changes or other.path in changes) and is_among(values[other.path], excluded):
                    return f"{knob.path}: {values[knob.path]} conflicts with {other.path}: {values[other.path]}"
        return None

    def with_heuristic(self, values: Values, path: str, choice: Scalar) -> Values:
        """Return a point with one knob changed, and others set as the new value needs."""
        changed = {**values, path: choice}
        changed |= {other.path: wanted for other, wanted in self._needs(self.knob(path), choice).items()}
        for other, excluded in self._excluded(self.knob(path), choice).items():
            if is_among(changed[other.path], excluded):
                candidates = (*other.heuristic_values, other.baseline, *other.choices)
                changed[other.path] = next((v for v in candidates if not is_among(v, excluded)), other.baseline)
        return self.reset_inactive(changed)

    def reset_inactive(self, values: Values) -> Values:
        """Return a point with knobs without effect at their baseline."""
        return {**values, **{knob.path: knob.baseline for knob in self.knobs if knob.is_inactive(values)}}

    def _needs(self, knob: Knob, choice: Scalar) -> dict[Knob, Scalar]:
        row = row_of(knob)
        wanted = row.needs(choice) if row else {}
        return {other: value for other in self.knobs for kind, value in wanted.items() if other.kind == kind}

    def _excluded(self, knob: Knob, choice: Scalar) -> dict[Knob, tuple[Scalar, ...]]:
        found: dict[Knob, tuple[Scalar, ...]] = {}
        for kind, values in excluded_by(knob, choice).items():
            mates = section_mates(knob.path, (other.path for other in self.knobs if other.kind == kind))
            found.update({other: values for other in self.knobs if other.path in mates})
        return found


# Restrictions of a space.


def same_training(space: Space) -> Space:
    """Return a space without values that may change the training."""
    return replace(space, knobs=tuple(_unchanging(knob, space) for knob in space.knobs))


def _unchanging(knob: Knob, space: Space) -> Knob:
    same = [choice for choice in knob.choices if space.label_of(knob.path, choice) is Label.SAME_TRAINING]
    kept = [choice for choice in knob.choices if is_among(choice, (knob.baseline, *same))]
    return knob if len(kept) == len(knob.choices) else fixed(knob) if len(kept) == 1 else knob.narrowed(kept)


def with_batch_up_to(space: Space, factor: float) -> Space:
    """Return a space with effective batches up to `factor` times the baseline's."""
    if any(is_accumulation(knob) for knob in space.knobs):  # then it depends on the combination
        return replace(space, most_batch=factor)
    return replace(space, knobs=tuple(up_to(knob, factor) for knob in space.knobs))


def with_batch_fixed(space: Space) -> Space:
    """Return a space with the baseline's effective batch only."""

    def kept(knob: Knob) -> Knob:
        if is_accumulation(knob):
            return fixed(knob)
        return _unchanging(knob, space) if knob.label is Label.BATCH else knob

    return replace(space, knobs=tuple(map(kept, space.knobs)))


def without_settling(space: Space) -> Space:
    """Return a space with caches fixed at the baseline, measured as in a first pass."""
    return replace(space, knobs=tuple(_without_settling(knob) for knob in space.knobs), always_settles=False)


def _within(knob: Knob, reach: float | None) -> Knob:
    if reach is None:
        return knob
    near = (one for one in knob.choices if one == knob.baseline or not is_number(one) or one <= reach)
    return replace(knob.narrowed(near), reach=None)


def _without_settling(knob: Knob) -> Knob:
    if is_among(knob.baseline, knob.settling):
        # Any other choice would look good compared to a cache that is being filled.
        return replace(fixed(knob), settling=())
    return knob.narrowed(choice for choice in knob.choices if choice not in knob.settling)


# Effective batch, relative to the baseline's.


def is_batch(knob: Knob) -> bool:
    """Return whether a knob counts samples or tokens per batch."""
    return traits_of(knob).counts in ("samples", "tokens")


def is_batch_size(knob: Knob) -> bool:
    """Return whether a knob changes the effective batch."""
    return is_batch(knob) and knob.label is Label.BATCH and not is_for_validation(knob.path)


def is_accumulation(knob: Knob) -> bool:
    """Return whether a knob counts accumulated batches per update."""
    return key_name(knob.path) in BATCH_NAMES.accumulation and all(is_number(n) and n >= 1 for n in knob.choices)


def effective_batch_ratio(knobs: Sequence[Knob], values: Values) -> float:
    """Return a point's effective batch relative to the baseline's, by the largest of several batch sizes."""
    sizes = [_ratio(knob, values[knob.path]) for knob in knobs if is_batch_size(knob)]
    return max(sizes, default=1.0) * prod(_ratio(knob, values[knob.path]) for knob in knobs if is_accumulation(knob))


def up_to(knob: Knob, factor: float) -> Knob:
    """Limit a batch size to `factor` times the baseline's; without a heuristic value left, the largest is one."""
    if not is_batch_size(knob):
        return knob
    kept = knob.narrowed([choice for choice in knob.choices if _ratio(knob, choice) <= factor])
    if knob.heuristic_values and not kept.heuristic_values and kept.choices[-1] != knob.baseline:
        kept = replace(kept, heuristic_values=kept.choices[-1:])
    return kept


def fixed(knob: Knob) -> Knob:
    """Return a knob with the baseline's value only."""
    return replace(knob.narrowed([knob.baseline]), heuristic_values=())


def _ratio(knob: Knob, value: Scalar) -> float:
    size, today = number_of(value), number_of(knob.baseline)
    assert isinstance(size, int | float), "a batch size or count"
    assert isinstance(today, int | float), "a batch size or count"
    kept_up_to = knob.batch.kept_up_to if knob.batch else 0
    return max(size, kept_up_to) / max(today, kept_up_to)
