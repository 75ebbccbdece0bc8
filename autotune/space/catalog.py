"""Catalog of known knobs, found in any section of a config by their usual names; `knobs.toml` is the table."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Literal, TypeGuard

import msgspec

from autotune.records import Machine, Scalar
from autotune.space.knob import BatchCount, Knob, Label, key_name, number_of

Choices = tuple[Scalar, ...]


class Demand(Enum):
    """Dependence of a trial's memory on a knob."""

    NONE = "none"
    VARIES = "varies"  # another value may need more or less
    GROWS = "grows"  # larger values need more


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Traits of a knob, explained in `knobs.toml`; the defaults are for knobs that are not in the catalog."""

    gpu_memory: Demand = Demand.NONE
    host_memory: Demand = Demand.VARIES
    on_step: bool = False
    on_data: bool = False
    meaning: str = ""
    beyond: str | Choices = ()
    counts: Literal["samples", "tokens", "batches", "workers"] | None = None
    device: Literal["model", "data"] | None = None
    number_type: Literal["float16", "bfloat16", "any"] | None = None
    shapes: Literal["compiled", "fixed"] | None = None
    loads_ahead: bool = False
    idle_without_gpu: bool = False
    reported_as: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KnownKnob(Traits):
    """Row of the catalog; `knobs.toml` explains the columns."""

    kind: str
    names: tuple[str, ...] = ()
    fits: str | Choices
    choices: str | Choices | None = None
    heuristic: str | Choices = ()
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
        return CHECKS[self.fits](value) if isinstance(self.fits, str) else value in self.fits

    def domain(self, present: Scalar, machine: Machine) -> Choices:
        if self.choices is None or len(machine.gpus) < self.needs_gpus:
            return (present,)
        return _values(self.choices, present, machine)

    def far_values(self, present: Scalar, machine: Machine) -> Choices:
        return _values(self.beyond, present, machine)

    def heuristic_values(self, present: Scalar, machine: Machine) -> Choices:
        if len(machine.gpus) < self.needs_gpus:
            return ()
        return _values(self.heuristic, present, machine)

    def needs(self, value: Scalar) -> Mapping[str, Scalar]:
        """Return the values that other knobs need together with a value."""
        return self.only_with if value is True else {}

    def excludes(self, value: Scalar) -> Mapping[str, Choices]:
        """Return the values of other keys that are an error together with a value."""
        return self.not_with if value else {}


def _values(listed: str | Choices, present: Scalar, machine: Machine) -> Choices:
    return DOMAINS[listed](present, machine) if isinstance(listed, str) else listed


@dataclass(frozen=True, kw_only=True)
class _NotTuned:
    names: tuple[str, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class BatchNames:
    """Names of batch sizes, by what they count, and of accumulation."""

    plain: tuple[str, ...]
    devices: tuple[str, ...]
    per_device: tuple[str, ...]
    all_devices: tuple[str, ...]
    accumulation: tuple[str, ...]

    def complete(self) -> "BatchNames":
        """Return the names with each word for a device filled in."""
        names = (name.format(device=device) for name in self.per_device for device in self.devices)
        return replace(self, per_device=tuple(dict.fromkeys(names)))


@dataclass(frozen=True, kw_only=True)
class _Table:
    knob: tuple[KnownKnob, ...]
    batch: BatchNames
    not_tuned: Sequence[_NotTuned]


_TABLE = msgspec.convert(tomllib.loads(Path(__file__).with_name("knobs.toml").read_text("utf-8")), _Table)
BATCH_NAMES = _TABLE.batch.complete()
_SIZES = BATCH_NAMES.plain + BATCH_NAMES.per_device + BATCH_NAMES.all_devices
KNOWN_KNOBS = tuple(replace(row, names=_SIZES) if row.counts == "samples" else row for row in _TABLE.knob)
"""Known knobs, in the order in which an expert would tune them."""

ROWS = {row.kind: row for row in KNOWN_KNOBS}
"""Known knobs by kind."""

_VALIDATION = re.compile(r"(?:.*_)?(?:val|valid|validation|eval|evaluation|test|dev|infer|inference|predict)(?:_.*)?")


def known_knob(path: str, present: Scalar) -> KnownKnob | None:
    """Return the row that has a key's name and accepts its value, if any."""
    names = _names(path)
    return next((row for row in KNOWN_KNOBS if not names.isdisjoint(row.names) and row.accepts(present)), None)


def keys_with(config: Mapping[str, Scalar], **columns: object) -> list[str]:
    """Return the keys of a config whose row has these columns, in file order."""
    rows = {path: known_knob(path, number_of(value)) for path, value in config.items()}
    return [path for path, row in rows.items() if row and _has(row, columns)]


def knobs_with(knobs: Iterable[Knob], **columns: object) -> list[Knob]:
    """Return the knobs whose row has these columns."""
    return [knob for knob in knobs if (row := row_of(knob)) and _has(row, columns)]


def _has(row: KnownKnob, columns: Mapping[str, object]) -> bool:
    return all(getattr(row, name) == value for name, value in columns.items())


def _names(path: str) -> set[str]:
    name = key_name(path)
    return {name, f"{key_name(path.rpartition('.')[0])}.{name}"}


def row_of(knob: Knob) -> KnownKnob | None:
    """Return the row of a knob; None for a user's own knob."""
    return ROWS.get(knob.kind or "")


def traits_of(knob: Knob) -> Traits:
    """Return the traits of a knob."""
    return row_of(knob) or Traits()


def is_searched_by_default(path: str, present: Scalar) -> bool:
    """Return whether a key is a knob without being listed under ``knobs:``."""
    row = known_knob(path, present)
    return row is not None and not row.only_if_listed


def excluded_by(knob: Knob, choice: Scalar) -> Mapping[str, Choices]:
    """Return the values, by row, that are an error together with this choice."""
    row = row_of(knob)
    return row.excludes(choice) if row else {}


def has_known_name(path: str) -> bool:
    """Return whether a key has the name of a known knob."""
    names = _names(path)
    return any(not names.isdisjoint(row.names) for row in KNOWN_KNOBS)


def is_for_validation(path: str) -> bool:
    """Return whether a key is in a section for validation, testing or inference."""
    return any(_VALIDATION.fullmatch(key_name(section)) for section in path.split(".")[:-1])


def why_not_tuned(path: str) -> str | None:
    """Return why a key that affects speed is not searched by default."""
    name = key_name(path)
    return next((row.why for row in _TABLE.not_tuned if name in row.names), None)


# Batch sizes: their devices and steps.


def is_global(path: str) -> bool:
    """Return whether a key is the batch size of all devices and accumulation steps."""
    return key_name(path) in BATCH_NAMES.all_devices


def is_per_device(path: str) -> bool:
    """Return whether a batch size is named as that of one device."""
    return key_name(path) in BATCH_NAMES.per_device


def batch_count(path: str, config: Mapping[str, Scalar]) -> BatchCount:
    """Return the devices and accumulation steps of a batch size, from its name and the config."""
    if is_global(path):
        return BatchCount(where="of all devices together", accumulated=1)
    steps = list(accumulations(config).values())
    accumulated = steps[0] if len(steps) == 1 else 1
    return BatchCount(where="of each device" if is_per_device(path) else "", accumulated=accumulated)


def accumulations(config: Mapping[str, Scalar]) -> dict[str, int]:
    """Return a config's accumulation keys with their values."""
    named = ((path, value) for path, value in config.items() if key_name(path) in BATCH_NAMES.accumulation)
    return {path: value for path, value in named if is_size(value)}


# Checks and domains that `knobs.toml` refers to by name.


_LARGEST_COUNT = 2**31
"""Largest plausible batch, buffer or pool of workers; larger values mean something else."""

AUTOMATIC: Choices = (-1, None, "auto", "AUTO", "autotune", "AUTOTUNE", "tf.data.AUTOTUNE")
"""Values that leave a count to the trainer or framework."""

_FULL_PRECISION: Choices = ("float32", "fp32", "no", "32-true", "32", 32)
_FLOAT16: Choices = ("mixed_float16", "float16", "fp16", "16-mixed", "16", 16)
# The spelling of one precision implies that of the others.
_PRECISIONS: Sequence[Choices] = (
    ("float32", "mixed_float16", "mixed_bfloat16"),
    ("fp32", "fp16", "bf16"),
    ("no", "fp16", "bf16"),
    ("32-true", "16-mixed", "bf16-mixed"),  # Lightning's; a half type without "mixed" would be another training
    ("32", "16"),
    (32, 16),
)
_DTYPES: Sequence[Choices] = (("float32", "float16", "bfloat16"), ("fp32", "fp16", "bf16"))


def is_count(value: Scalar) -> TypeGuard[int]:
    """Return whether a value is a plausible count, possibly 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def is_size(value: Scalar) -> TypeGuard[int]:
    """Return whether a value is a plausible count, at least 1."""
    return is_count(value) and value != 0


CHECKS: Mapping[str, Callable[[Scalar], bool]] = {
    "switch": lambda value: isinstance(value, bool),
    "count": is_count,
    "size": is_size,
    "count or automatic": lambda value: is_count(value) or (not isinstance(value, bool) and value in AUTOMATIC),
    "gpu": lambda value: value is None or is_count(value),
    "precision": lambda value: (
        isinstance(value, bool) or (isinstance(value, int | str) and any(value in names for names in _PRECISIONS))
    ),
    "dtype": lambda value: any(value in names for names in _DTYPES),
    "text": lambda value: isinstance(value, str),
}
"""Checks of present values."""


def _batch_sizes(present: Scalar, factors: Sequence[float]) -> Choices:
    assert isinstance(present, int)  # `accepts` guarantees it
    return tuple(sorted({max(1, int(present * factor)) for factor in factors}))


def _workers(machine: Machine) -> Choices:
    cores = machine.cpu_cores
    return tuple(sorted({1, 2, 4, max(1, cores // 2), cores, min(2 * cores, 64)}))


def _more_workers(machine: Machine) -> Choices:
    """Return numbers of workers beyond the cores, for loading from slow disks or networks."""
    most = min(128, max(32, 8 * machine.cpu_cores))
    return tuple(2**power for power in range(8) if 2 * machine.cpu_cores < 2**power <= most)


def _threads(machine: Machine, *others: int) -> Choices:
    return tuple(sorted({*others, max(1, machine.cpu_cores // 2), machine.cpu_cores}))


def _other_precisions(spellings: Sequence[Choices], present: Scalar, machine: Machine) -> Choices:
    names = next(names for names in spellings if present in names)
    # Without a GPU, float16 is emulated: a quarter of the speed.
    return tuple(name for name in names if name != present and (machine.gpus or name not in _FLOAT16))


def _precisions(present: Scalar, machine: Machine) -> Choices:
    if isinstance(present, bool):
        return (False, True) if machine.gpus else (present,)
    return (present, *_other_precisions(_PRECISIONS, present, machine))


def _half_precision(present: Scalar, machine: Machine) -> Choices:
    """Suggest 16 bits, bfloat16 before float16."""
    if not _has_bfloat16(machine):
        return ()
    if isinstance(present, bool):
        return (True,)
    halves = [one for one in _other_precisions(_PRECISIONS, present, machine) if one not in _FULL_PRECISION]
    return tuple(sorted(halves, key=_FLOAT16.__contains__))


def _bfloat16(present: Scalar, machine: Machine) -> Choices:
    others = _other_precisions(_DTYPES, present, machine) if _has_bfloat16(machine) else ()
    return tuple(name for name in others if str(name).startswith("bf"))


def _has_bfloat16(machine: Machine) -> bool:
    return bool(machine.gpus) or machine.cpu_bfloat16


DOMAINS: Mapping[str, Callable[[Scalar, Machine], Choices]] = {
    "off_if_on": lambda present, _machine: (False, True) if present else (False,),
    "batch_sizes": lambda present, _machine: _batch_sizes(present, (0.5, 1, 2, 4, 8, 16)),
    "larger_batches": lambda present, _machine: _batch_sizes(present, (4, 8, 16)),
    "workers": lambda _present, machine: _workers(machine),
    "none_or_workers": lambda _present, machine: (0, *_workers(machine)),  # with 0 the training process loads
    "more_workers": lambda _present, machine: _more_workers(machine),
    "one_worker_a_core": lambda _present, machine: (machine.cpu_cores,),
    "threads": lambda _present, machine: _threads(machine, 0, 1),  # 0: the framework's choice
    "own_threads": lambda _present, machine: _threads(machine, 1),  # e.g. for ``torch.set_num_threads``
    "half_the_cores": lambda _present, machine: (max(1, machine.cpu_cores // 2),),  # the rest loads data
    "loader_threads": lambda _present, machine: _threads(machine, 0, 2 * machine.cpu_cores),
    "precisions": _precisions,
    "half_precision": _half_precision,
    "dtypes": lambda present, machine: (present, *_other_precisions(_DTYPES, present, machine)),
    "bfloat16": _bfloat16,
    "bfloat16_switch": lambda present, machine: (False, True) if _has_bfloat16(machine) else (present,),
}
"""Values to try, by present value and machine."""
