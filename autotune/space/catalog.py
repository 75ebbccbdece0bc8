"""Catalog of known knobs, found in a config by their usual names, in any section; `knobs.toml` is the table.

To teach autotune a knob, add a table to that file.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Literal

import msgspec

from autotune.records import Machine, Scalar
from autotune.space.domains import CHECKS, DOMAINS, Choices
from autotune.space.knob import Knob, Label, key_name


class Demand(Enum):
    """Dependence of a trial's memory on a knob."""

    NONE = "none"  # not at all
    VARIES = "varies"  # another value may need more or less
    GROWS = "grows"  # the larger the value, the more


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of a knob; the defaults are those of a knob that the catalog does not have. `knobs.toml` explains each."""

    gpu_memory: Demand = Demand.NONE
    host_memory: Demand = Demand.VARIES
    on_step: bool = False
    meaning: str = ""
    beyond: str | Choices = ()
    counts: Literal["samples", "tokens", "batches", "workers"] | None = None
    device: Literal["model", "data"] | None = None
    number_type: Literal["float16", "bfloat16", "any"] | None = None
    shapes: Literal["compiled", "fixed"] | None = None
    loads_ahead: bool = False
    reported_as: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KnownKnob(Traits):
    """Row of the catalog; `knobs.toml` explains the columns."""

    kind: str
    names: tuple[str, ...] = ()
    fits: str | Choices
    choices: str | Choices | None = None
    advice: str | Choices = ()
    needs_gpus: int = 0
    label: Label = Label.SAME_TRAINING
    bundled: bool = False
    settling: Choices = ()
    only_with: Mapping[str, Scalar] = field(default_factory=dict)
    why_only_with: Mapping[str, str] = field(default_factory=dict)
    not_with: Mapping[str, Choices] = field(default_factory=dict)
    is_one_switch: bool = False
    only_if_listed: bool = False

    def accepts(self, value: Scalar) -> bool:
        """Return whether a present value is one that the row understands."""
        return CHECKS[self.fits](value) if isinstance(self.fits, str) else value in self.fits

    def domain(self, present: Scalar, machine: Machine) -> Choices:
        """Return the values worth trying."""
        if self.choices is None or len(machine.gpus) < self.needs_gpus:
            return (present,)
        return _values(self.choices, present, machine)

    def far_values(self, present: Scalar, machine: Machine) -> Choices:
        """Return the values beyond its domain, for a trainer that still waits at the end of that."""
        return _values(self.beyond, present, machine)

    def heuristic_values(self, present: Scalar, machine: Machine) -> Choices:
        """Return the values that an expert would try, best guess first."""
        if len(machine.gpus) < self.needs_gpus:
            return ()
        return _values(self.advice, present, machine)

    def needs(self, value: Scalar) -> Mapping[str, Scalar]:
        """Return what other rows must hold together with a value, as far as they are knobs too."""
        return self.only_with if value is True else {}

    def excludes(self, value: Scalar) -> Mapping[str, Choices]:
        """Return by row the values that are an error together with a value, whether they are knobs or not."""
        return self.not_with if value else {}


def _values(listed: str | Choices, present: Scalar, machine: Machine) -> Choices:
    return DOMAINS[listed](present, machine) if isinstance(listed, str) else listed


@dataclass(frozen=True, kw_only=True)
class _NotTurned:
    """Keys whose effect on speed is known and that no search turns, with the reason."""

    names: tuple[str, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class BatchNames:
    """Names of batch sizes, by what they count, and of the batches that are accumulated for an update.

    Attributes:
        all_devices: Of the batch of all devices and accumulated steps together.
    """

    plain: tuple[str, ...]
    per_device: tuple[str, ...]
    all_devices: tuple[str, ...]
    accumulation: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Table:
    knob: tuple[KnownKnob, ...]
    batch: BatchNames
    not_turned: Sequence[_NotTurned]


_TABLE = msgspec.convert(tomllib.loads(Path(__file__).with_name("knobs.toml").read_text("utf-8")), _Table)
BATCH_NAMES = _TABLE.batch
KNOWN_KNOBS = tuple(
    replace(row, names=BATCH_NAMES.plain + BATCH_NAMES.per_device + BATCH_NAMES.all_devices)
    if row.counts == "samples"
    else row
    for row in _TABLE.knob
)
"""Known knobs, in the order in which an expert would turn them."""

ROWS = {row.kind: row for row in KNOWN_KNOBS}
"""The known knobs by their kind."""

_VALIDATION = re.compile(r"(?:.*_)?(?:val|valid|validation|eval|evaluation|test|dev|infer|inference|predict)(?:_.*)?")


def known_knob(path: str, present: Scalar) -> KnownKnob | None:
    """Return the row that a key belongs to; None if it is no known knob, or the row does not understand its value."""
    names = _names(path)
    for row in KNOWN_KNOBS:
        if not names.isdisjoint(row.names) and row.accepts(present):
            return row
    return None


def keys_with(config: Mapping[str, Scalar], **columns: object) -> list[str]:
    """Return the keys of a config that belong to a row with these columns, in file order."""
    return [path for path, value in config.items() if (row := known_knob(path, value)) and _has(row, columns)]


def knobs_with(knobs: Iterable[Knob], **columns: object) -> list[Knob]:
    """Return those knobs whose row has these columns."""
    return [knob for knob in knobs if (row := row_of(knob)) and _has(row, columns)]


def _has(row: KnownKnob, columns: Mapping[str, object]) -> bool:
    return all(getattr(row, name) == value for name, value in columns.items())


def _names(path: str) -> set[str]:
    """Return the names of a key that a row may have: its last part, and that with its section."""
    name = key_name(path)
    return {name, f"{key_name(path.rpartition('.')[0])}.{name}"}


def row_of(knob: Knob) -> KnownKnob | None:
    """Return the row of a knob; None for a knob of the user's own."""
    return ROWS.get(knob.kind or "")


def traits_of(knob: Knob) -> Traits:
    """Return the traits of a knob."""
    return row_of(knob) or Traits()


def is_searched_unasked(path: str, present: Scalar) -> bool:
    """Return whether a key is a knob of its own accord, without being listed under ``knobs:``."""
    row = known_knob(path, present)
    return row is not None and not row.only_if_listed


def excluded_by(knob: Knob, choice: Scalar) -> Mapping[str, Choices]:
    """Return the values, by row, that are an error in the trainer together with this choice of a knob."""
    row = row_of(knob)
    return row.excludes(choice) if row else {}


def has_known_name(path: str) -> bool:
    """Return whether a key has the name of a known knob, whatever its value."""
    names = _names(path)
    return any(not names.isdisjoint(row.names) for row in KNOWN_KNOBS)


def is_for_validation(path: str) -> bool:
    """Return whether a key is in a section for validation, testing or inference, which no trial measures."""
    return any(_VALIDATION.fullmatch(key_name(section)) for section in path.split(".")[:-1])


def why_not_turned(path: str) -> str | None:
    """Return the reason for which a key that bears on speed is not searched unless it is listed; None for others."""
    name = key_name(path)
    return next((row.why for row in _TABLE.not_turned if name in row.names), None)
