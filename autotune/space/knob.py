"""Knob: a key of the config, or a group of keys, that may vary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TypeGuard

from autotune.records import Scalar, Values

LADDER_LENGTH = 16
"""Most values of a range: neighbours on a finer ladder differ by less than trials can show."""


class Label(StrEnum):
    """Effect of changing a knob on the training itself."""

    SAME_TRAINING = "same training"  # only the speed changes
    BATCH = "batch"  # another effective batch: the learning rate may want to follow
    PRECISION = "precision"  # other rounding
    DATA = "different data"  # as the samples of trials have shown
    UNKNOWN = "unknown"  # a knob that is not in the catalog


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Key that moves with a knob, with its value for each choice."""

    path: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class InactiveIf:
    """Values of another knob for which a knob has no effect."""

    path: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class BatchCount:
    """Devices and accumulation steps covered by a batch size.

    Attributes:
        where: Its devices by the key's name, e.g. ``of each device``, or empty.
        accumulated: Batches per update.
        kept_up_to: Size up to which accumulation keeps the effective batch; 0 for none.
    """

    where: str
    accumulated: int
    kept_up_to: int = 0

    def effective(self, size: int) -> int:
        return max(size, self.kept_up_to) if self.kept_up_to else size * self.accumulated

    def change(self, old: int, new: int, devices: int = 1) -> str:
        """Describe the change of the effective batch; each device trains on a batch of this size."""
        where = "" if devices > 1 else self.where
        what = f"The effective batch {where}".rstrip()
        said = f"{what} changes from {devices * self.effective(old)} to {devices * self.effective(new)}"
        parts = [f"on each of {devices} devices"] if devices > 1 else []
        if self.accumulated > 1 and not self.kept_up_to:
            parts.append(f"accumulated {self.accumulated} times")
        return f"{said} ({old} and {new}, {' and '.join(parts)})" if parts else said


@dataclass(frozen=True, kw_only=True)
class Knob:
    """Knob of the config.

    Attributes:
        choices: Values to try, with the baseline; ascending if `ordered`.
        ordered: Whether neighbours in `choices` are similar.
        kind: Row of the catalog; None for a user's own knob.
        reach: Largest value to try until larger ones may help.
        heuristic_values: Values that an expert would try, best guess first.
        bundled: Whether the first proposal sets it.
        settling: Values whose speed shows only after one pass over the data (caches).
        late: Values to try last, because they give other data.
        carries: Keys that move with it.
    """

    path: str
    choices: tuple[Scalar, ...]
    ordered: bool
    baseline: Scalar
    label: Label
    kind: str | None = None
    reach: float | None = None
    heuristic_values: tuple[Scalar, ...] = ()
    bundled: bool = False
    settling: tuple[Scalar, ...] = ()
    late: tuple[Scalar, ...] = ()
    carries: tuple[Carried, ...] = ()
    batch: BatchCount | None = None
    inactive_if: InactiveIf | None = None

    def __post_init__(self) -> None:
        if self.index(self.baseline) is None:
            raise ValueError(f"{self.path}: today's value {self.baseline!r} is not among {self.choices!r}")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *(carried.path for carried in self.carries))

    @property
    def effect(self) -> str:
        is_kept = self.batch is not None and self.batch.kept_up_to and self.label is Label.BATCH
        return f"{self.label.value} above {self.batch.kept_up_to}" if self.batch and is_kept else self.label.value

    def label_of(self, value: Scalar) -> Label:
        """Return the effect of a value, for which accumulation may compensate."""
        size = number_of(value)
        is_kept = self.batch is not None and isinstance(size, int) and size <= self.batch.kept_up_to
        return Label.SAME_TRAINING if is_kept else self.label

    def index(self, value: Scalar) -> int | None:
        """Return the position of a value among the choices."""
        for position, choice in enumerate(self.choices):
            if same_scalar(choice, value):
                return position
        return None

    def keys(self, value: Scalar) -> dict[str, Scalar]:
        """Return the values of all its keys; raise ValueError for other values than its choices."""
        if not self.carries:
            return {self.path: value}
        position = self.index(value)
        if position is None:
            raise ValueError(f"{self.path}: {value!r} is not among {self.choices!r}")
        return {self.path: value, **{carried.path: carried.values[position] for carried in self.carries}}

    def is_inactive(self, values: Values) -> bool:
        under = self.inactive_if
        return under is not None and is_among(values.get(under.path), under.values)

    def narrowed(self, choices: Iterable[Scalar]) -> Knob:
        """Return the knob with fewer choices, which include the baseline."""
        kept = [position for position in map(self.index, choices) if position is not None]
        left = tuple(self.choices[position] for position in kept)
        return replace(
            self,
            choices=left,
            heuristic_values=tuple(value for value in self.heuristic_values if is_among(value, left)),
            settling=tuple(value for value in self.settling if is_among(value, left)),
            carries=tuple(
                Carried(path=carried.path, values=tuple(carried.values[position] for position in kept))
                for carried in self.carries
            ),
        )


def key_name(path: str) -> str:
    """Return the last part of a path as in the catalog: ``train.batchSize`` gives ``batch_size``."""
    name = path.rpartition(".")[2]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)  # also where an abbreviation ends
    return words.lower().replace("-", "_").replace("batchsize", "batch_size")


def section_mates(path: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the keys in the same section as `path`, or all if there is none."""
    found = tuple(others)
    section = path.rpartition(".")[0]
    return tuple(other for other in found if other.rpartition(".")[0] == section) or found


def same_scalar(one: Scalar, other: Scalar) -> bool:
    """Return whether two config values are equal; unlike in Python, ``True`` is not ``1``."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def is_among(value: Scalar, values: Iterable[Scalar]) -> bool:
    """Return whether a value is one of some others, by `same_scalar`."""
    return any(same_scalar(value, other) for other in values)


def number_of(value: Scalar) -> Scalar:
    """Return a text such as ``"16"`` as an integer; other values unchanged."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value) else value


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Return whether a config value is a number; ``True`` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def ladder(low: float, high: float, *, step: float | None = None, log: bool = False) -> tuple[Scalar, ...]:
    """Return at most `LADDER_LENGTH` values of a range with both ends, ascending; integers if ends and step are.

    Args:
        step: Distance of neighbours; None for any.
        log: Equal ratios, for `low` > 0; integers double.
    """
    whole = isinstance(low, int) and isinstance(high, int) and (step is None or isinstance(step, int))
    if log and whole:
        values: list[float] = [low]  # at most one for each bit
        while values[-1] * 2 < high:
            values.append(values[-1] * 2)
        values.append(high)
    elif log:
        values = [low * (high / low) ** (i / (LADDER_LENGTH - 1)) for i in range(LADDER_LENGTH)]
    else:
        width = step or (1 if whole else (high - low) / (LADDER_LENGTH - 1) or 1)
        # Only the selected values are created: a range may not fit into memory.
        last = (high - low) // width if whole else int((high - low) / width + 1e-9)
        values = [low + i * width for i in _spread(int(last))]
    values = [values[i] for i in _spread(len(values) - 1)]
    return tuple(dict.fromkeys(round(value) if whole else float(value) for value in values))


def _spread(last: int) -> list[int]:
    """Return at most `LADDER_LENGTH` evenly spread indices from 0 to ``last``."""
    if last < LADDER_LENGTH:
        return list(range(last + 1))
    return [i * last // (LADDER_LENGTH - 1) for i in range(LADDER_LENGTH)]


def with_baseline(choices: Iterable[Scalar], baseline: Scalar) -> tuple[tuple[Scalar, ...], bool]:
    """Add the baseline to a domain; return whether the choices are numbers, and so sorted."""
    values = list(choices)
    if not is_among(baseline, values):
        values.append(baseline)
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return tuple(values), False
    numbers.sort()
    assert all(a < b for a, b in pairwise(numbers)), "the schema refuses duplicates"
    return tuple(numbers), True
