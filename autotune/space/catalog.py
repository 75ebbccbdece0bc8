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
        """Return values beyond the domain, for a trainer that still waits for data."""
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
    """Keys that affect speed but are not searched by default."""

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
KNOWN_KNOBS = tuple(
    replace(row, names=BATCH_NAMES.plain + BATCH_NAMES.per_device + BATCH_NAMES.all_devices)
    if row.counts == "samples"
    else row
    for row in _TABLE.knob
)
"""Known knobs, in the order in which an expert would tune them."""

ROWS = {row.kind: row for row in KNOWN_KNOBS}
"""Known knobs by kind."""

_VALIDATION = re.compile(r"(?:.*_)?(?:val|valid|validation|eval|evaluation|test|dev|infer|inference|predict)(?:_.*)?")


def known_knob(path: str, present: Scalar) -> KnownKnob | None:
    """Return the row that has a key's name and accepts its value, if any."""
    names = _names(path)
    for row in KNOWN_KNOBS:
        if not names.isdisjoint(row.names) and row.accepts(present):
            return row
    return None


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
    return BatchCount(
        where="of each device" if is_per_device(path) else "", accumulated=steps[0] if len(steps) == 1 else 1
    )


def accumulations(config: Mapping[str, Scalar]) -> dict[str, int]:
    """Return a config's accumulation keys with their values."""
    named = ((path, value) for path, value in config.items() if key_name(path) in BATCH_NAMES.accumulation)
    return {path: value for path, value in named if is_size(value)}


# Checks and domains that `knobs.toml` refers to by name.


_LARGEST_COUNT = 2**31
"""Largest plausible batch, buffer or pool of workers; larger values mean something else."""


# Checks of present values.


def is_switch(value: Scalar) -> bool:
    """Return whether a value is a boolean."""
    return isinstance(value, bool)


def is_count(value: Scalar) -> TypeGuard[int]:
    """Return whether a value is a plausible count, possibly 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def is_size(value: Scalar) -> TypeGuard[int]:
    """Return whether a value is a plausible count, at least 1."""
    return is_count(value) and value != 0


AUTOMATIC: Choices = (-1, None, "auto", "AUTO", "autotune", "AUTOTUNE", "tf.data.AUTOTUNE")
"""Values that leave a count to the trainer or framework."""


def is_automatic(value: Scalar) -> bool:
    """Return whether a value leaves a count to the trainer or framework."""
    return not isinstance(value, bool) and value in AUTOMATIC


def is_gpu(value: Scalar) -> bool:
    """Return whether a value is a GPU index, or null."""
    return value is None or is_count(value)


def _count(value: Scalar) -> int:
    assert isinstance(value, int)  # `accepts` guarantees it
    return value


# Values to try.


def off_if_on(present: Scalar, _machine: Machine) -> Choices:
    """Return both values of a switch that is on; one that is off stays off."""
    return (False, True) if present else (False,)


def batch_sizes(present: Scalar, _machine: Machine) -> Choices:
    """Return sizes from half to 16 times the present batch."""
    now = _count(present)
    return tuple(sorted({max(1, now // 2), *(now * 2**i for i in range(5))}))


def larger_batches(present: Scalar, _machine: Machine) -> Choices:
    """Suggest larger batches."""
    now = _count(present)
    return (now * 4, now * 8, now * 16)


def workers(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of workers for the machine's cores."""
    cores = machine.cpu_cores
    return tuple(sorted({1, 2, 4, max(1, cores // 2), cores, min(2 * cores, 64)}))


def none_or_workers(present: Scalar, machine: Machine) -> Choices:
    """Return numbers of loader workers; with 0 the training process loads."""
    return (0, *workers(present, machine))


def more_workers(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of workers beyond the cores, for loading from slow disks or networks."""
    most = min(128, max(32, 8 * machine.cpu_cores))
    return tuple(2**power for power in range(8) if 2 * machine.cpu_cores < 2**power <= most)


def one_worker_a_core(_present: Scalar, machine: Machine) -> Choices:
    """Suggest one worker per core."""
    return (machine.cpu_cores,)


def threads(present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads; 0 is the framework's choice."""
    return (0, *own_threads(present, machine))


def own_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads without 0, e.g. for ``torch.set_num_threads``."""
    return tuple(sorted({1, max(1, machine.cpu_cores // 2), machine.cpu_cores}))


def half_the_cores(_present: Scalar, machine: Machine) -> Choices:
    """Suggest half the cores; the rest is for data loading."""
    return (max(1, machine.cpu_cores // 2),)


def loader_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads of an input pipeline; 0 is the framework's choice."""
    cores = machine.cpu_cores
    return tuple(sorted({0, max(1, cores // 2), cores, 2 * cores}))


# Types of numbers.

_FULL_PRECISION: Choices = ("float32", "fp32", "no", "32-true", "32", 32)
_FLOAT16: Choices = ("mixed_float16", "float16", "fp16", "16-mixed", "16", 16)
_PRECISIONS: Mapping[Scalar, Choices] = {
    # The spelling of one precision implies that of the others.
    "float32": ("mixed_float16", "mixed_bfloat16"),
    "mixed_float16": ("float32", "mixed_bfloat16"),
    "mixed_bfloat16": ("float32", "mixed_float16"),
    "fp32": ("fp16", "bf16"),
    "fp16": ("fp32", "bf16"),
    "bf16": ("fp32", "fp16"),
    "no": ("fp16", "bf16"),
    # Lightning's names; a half type without "mixed" would be another training.
    "32-true": ("16-mixed", "bf16-mixed"),
    "16-mixed": ("32-true", "bf16-mixed"),
    "bf16-mixed": ("32-true", "16-mixed"),
    "32": ("16",),
    "16": ("32",),
    32: (16,),
    16: (32,),
}
_DTYPES = (("float32", "float16", "bfloat16"), ("fp32", "fp16", "bf16"))


def is_precision(value: Scalar) -> bool:
    """Return whether a value is a switch of mixed precision, or names a precision."""
    return isinstance(value, bool) or (isinstance(value, int | str) and value in _PRECISIONS)


def precisions(present: Scalar, machine: Machine) -> Choices:
    """Return the precisions in the present spelling."""
    if isinstance(present, bool):
        return (False, True) if machine.gpus else (present,)
    return (present, *_useful(_PRECISIONS[present], machine))


def half_precision(present: Scalar, machine: Machine) -> Choices:
    """Suggest 16 bits, bfloat16 before float16."""
    if not _has_bfloat16(machine):
        return ()
    if isinstance(present, bool):
        return (True,)
    halves = [value for value in precisions(present, machine) if value not in (*_FULL_PRECISION, present)]
    return tuple(sorted(halves, key=_FLOAT16.__contains__))


def is_dtype(value: Scalar) -> bool:
    """Return whether a value names a floating-point type."""
    return any(value in spelling for spelling in _DTYPES)


def dtypes(present: Scalar, machine: Machine) -> Choices:
    """Return the floating-point types in the present spelling."""
    (spelling,) = (spelling for spelling in _DTYPES if present in spelling)
    return (present, *_useful(tuple(name for name in spelling if name != present), machine))


def bfloat16(present: Scalar, machine: Machine) -> Choices:
    """Suggest bfloat16 if it is fast."""
    if not _has_bfloat16(machine):
        return ()
    return tuple(name for name in dtypes(present, machine) if name != present and str(name).startswith("bf"))


def bfloat16_switch(present: Scalar, machine: Machine) -> Choices:
    """Return both values of a bfloat16 switch if that is fast."""
    return (False, True) if _has_bfloat16(machine) else (present,)


def bfloat16_on(_present: Scalar, machine: Machine) -> Choices:
    """Suggest bfloat16 if it is fast, for a switch."""
    return (True,) if _has_bfloat16(machine) else ()


def _has_bfloat16(machine: Machine) -> bool:
    return bool(machine.gpus) or machine.cpu_bfloat16


def _useful(names: Choices, machine: Machine) -> Choices:
    # Without a GPU, float16 is emulated: a quarter of the speed.
    return tuple(name for name in names if machine.gpus or name not in _FLOAT16)


CHECKS: Mapping[str, Callable[[Scalar], bool]] = {
    "switch": is_switch,
    "count": is_count,
    "size": is_size,
    "count or automatic": lambda value: is_count(value) or is_automatic(value),
    "gpu": is_gpu,
    "precision": is_precision,
    "dtype": is_dtype,
    "text": lambda value: isinstance(value, str),
}
"""Checks by their names in `knobs.toml`."""

DOMAINS: Mapping[str, Callable[[Scalar, Machine], Choices]] = {
    one.__name__: one
    for one in (
        off_if_on,
        batch_sizes,
        larger_batches,
        workers,
        none_or_workers,
        more_workers,
        one_worker_a_core,
        threads,
        own_threads,
        half_the_cores,
        loader_threads,
        precisions,
        half_precision,
        dtypes,
        bfloat16,
        bfloat16_switch,
        bfloat16_on,
    )
}
"""Functions for values to try by their names in `knobs.toml`."""
