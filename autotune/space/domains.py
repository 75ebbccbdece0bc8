"""Domains of the known knobs that depend on the present value or the machine; `knobs.toml` names them."""

from collections.abc import Callable, Mapping

from autotune.records import Machine, Scalar

Choices = tuple[Scalar, ...]
_LARGEST_COUNT = 2**31
"""Largest plausible batch, buffer or pool of workers; a key that holds more means something else."""


# Values that a row understands.


def is_switch(value: Scalar) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_count(value: Scalar) -> bool:
    """Return whether a value is a plausible number of things, possibly 0."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def is_size(value: Scalar) -> bool:
    """Return whether a value is a plausible number of things, at least 1."""
    return is_count(value) and value != 0


def is_gpu(value: Scalar) -> bool:
    """Return whether a value is the index of a GPU, or null for none."""
    return value is None or is_count(value)


def _count(value: Scalar) -> int:
    assert isinstance(value, int)  # `accepts` guarantees it
    return value


# Values that are worth trying, or that an expert would try.


def off_if_on(present: Scalar, _machine: Machine) -> Choices:
    """Return both values of a switch that is on; one that is off stays off."""
    return (False, True) if present else (False,)


def batch_sizes(present: Scalar, _machine: Machine) -> Choices:
    """Return half the present batch and up to 16 times of it."""
    now = _count(present)
    return tuple(sorted({max(1, now // 2), *(now * 2**i for i in range(5))}))


def larger_batches(present: Scalar, _machine: Machine) -> Choices:
    """Suggest larger and larger batches."""
    now = _count(present)
    return (now * 4, now * 8, now * 16)


def workers(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of workers that suit the machine's cores."""
    cores = machine.cpu_cores
    return tuple(sorted({1, 2, 4, max(1, cores // 2), cores, min(2 * cores, 64)}))


def more_workers(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of workers beyond the cores, for samples that wait: on a disk or a network far away."""
    most = min(128, max(32, 8 * machine.cpu_cores))
    return tuple(2**power for power in range(8) if 2 * machine.cpu_cores < 2**power <= most)


def one_worker_a_core(_present: Scalar, machine: Machine) -> Choices:
    """Suggest a worker for each core."""
    return (machine.cpu_cores,)


def threads(present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads, with 0 for the framework's own choice."""
    return (0, *own_threads(present, machine))


def own_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads for what takes no 0, such as ``torch.set_num_threads``."""
    return tuple(sorted({1, max(1, machine.cpu_cores // 2), machine.cpu_cores}))


def half_the_cores(_present: Scalar, machine: Machine) -> Choices:
    """Suggest to leave half of the cores to what loads the data."""
    return (max(1, machine.cpu_cores // 2),)


def loader_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads of an input pipeline, with 0 for the framework's own choice."""
    cores = machine.cpu_cores
    return tuple(sorted({0, max(1, cores // 2), cores, 2 * cores}))


# Types of numbers.

_FULL_PRECISION: Choices = ("float32", "fp32", "no", "32-true", "32", 32)
_FLOAT16: Choices = ("mixed_float16", "float16", "fp16", "16-mixed", "16", 16)
_PRECISIONS: Mapping[Scalar, Choices] = {
    # How a config spells one precision tells how it spells the others.
    "float32": ("mixed_float16", "mixed_bfloat16"),
    "mixed_float16": ("float32", "mixed_bfloat16"),
    "mixed_bfloat16": ("float32", "mixed_float16"),
    "fp32": ("fp16", "bf16"),
    "fp16": ("fp32", "bf16"),
    "bf16": ("fp32", "fp16"),
    "no": ("fp16", "bf16"),
    # Lightning's names; a half type without "mixed" is another training, and is left alone.
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
    """Return whether a value turns mixed precision on or off, or names a precision."""
    return isinstance(value, bool) or (isinstance(value, int | str) and value in _PRECISIONS)


def precisions(present: Scalar, machine: Machine) -> Choices:
    """Return the precisions in the spelling of the present one."""
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
    """Return whether a value names a type of floating-point numbers."""
    return any(value in spelling for spelling in _DTYPES)


def dtypes(present: Scalar, machine: Machine) -> Choices:
    """Return the types of numbers in the spelling of the present one."""
    (spelling,) = (spelling for spelling in _DTYPES if present in spelling)
    return (present, *_useful(tuple(name for name in spelling if name != present), machine))


def bfloat16(present: Scalar, machine: Machine) -> Choices:
    """Suggest bfloat16 where it is fast."""
    if not _has_bfloat16(machine):
        return ()
    return tuple(name for name in dtypes(present, machine) if name != present and str(name).startswith("bf"))


def bfloat16_switch(present: Scalar, machine: Machine) -> Choices:
    """Return both values of a switch for bfloat16 where that is fast."""
    return (False, True) if _has_bfloat16(machine) else (present,)


def bfloat16_on(_present: Scalar, machine: Machine) -> Choices:
    """Suggest to turn bfloat16 on where it is fast."""
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
    "gpu": is_gpu,
    "precision": is_precision,
    "dtype": is_dtype,
    "text": lambda value: isinstance(value, str),
}
"""Checks of a present value by their names in `knobs.toml`."""

DOMAINS: Mapping[str, Callable[[Scalar, Machine], Choices]] = {
    one.__name__: one
    for one in (
        off_if_on,
        batch_sizes,
        larger_batches,
        workers,
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
"""Functions of the present value and the machine by their names in `knobs.toml`."""
