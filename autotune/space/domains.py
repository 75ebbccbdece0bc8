"""Domains of the known knobs: values that a row understands, that are worth trying, that an expert would try."""

from collections.abc import Mapping

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


def is_text(value: Scalar) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_gpu(value: Scalar) -> bool:
    """Return whether a value is the index of a GPU, or null for none."""
    return value is None or is_count(value)


def _count(value: Scalar) -> int:
    assert isinstance(value, int)  # `accepts` guarantees it
    return value


# Switches and counts.


def both(_present: Scalar, _machine: Machine) -> Choices:
    """Return both values of a switch."""
    return (False, True)


def on(_present: Scalar, _machine: Machine) -> Choices:
    """Suggest to turn a switch on."""
    return (True,)


def off(_present: Scalar, _machine: Machine) -> Choices:
    """Suggest to turn a switch off."""
    return (False,)


def off_if_on(present: Scalar, _machine: Machine) -> Choices:
    """Return both values of a switch that is on; one that is off stays off."""
    return (False, True) if present else (False,)


def both_with_gpu(present: Scalar, machine: Machine) -> Choices:
    """Return both values of a switch where there is a GPU."""
    return (False, True) if machine.gpus else (present,)


def on_with_gpu(_present: Scalar, machine: Machine) -> Choices:
    """Suggest to turn a switch on where there is a GPU."""
    return (True,) if machine.gpus else ()


def as_it_is(present: Scalar, _machine: Machine) -> Choices:
    """Return the present value alone."""
    return (present,)


def no_advice(_present: Scalar, _machine: Machine) -> Choices:
    """Suggest nothing."""
    return ()


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


def one_worker_a_core(_present: Scalar, machine: Machine) -> Choices:
    """Suggest a worker for each core."""
    return (machine.cpu_cores,)


def buffers(_present: Scalar, _machine: Machine) -> Choices:
    """Return numbers of batches to be ready ahead, none included."""
    return (0, 1, 2, 4, 8, 16)


def small_buffers(_present: Scalar, _machine: Machine) -> Choices:
    """Suggest a small buffer."""
    return (4,)


def device_buffers(present: Scalar, machine: Machine) -> Choices:
    """Return numbers of batches that may wait between two GPUs, where there are two; there is no pipeline with 0."""
    return (1, 2, 4, 8, 16) if len(machine.gpus) > 1 else (present,)


def small_device_buffers(_present: Scalar, machine: Machine) -> Choices:
    """Suggest a small buffer between two GPUs."""
    return (4,) if len(machine.gpus) > 1 else ()


def worker_buffers(_present: Scalar, _machine: Machine) -> Choices:
    """Return numbers of batches that each worker may have ready; PyTorch's loader cannot go on with 0."""
    return (1, 2, 4, 8)


def threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads, with 0 for the framework's own choice."""
    return (0, *own_threads(_present, machine))


def own_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads for what takes no 0, such as ``torch.set_num_threads``."""
    return tuple(sorted({1, max(1, machine.cpu_cores // 2), machine.cpu_cores}))


def loader_threads(_present: Scalar, machine: Machine) -> Choices:
    """Return numbers of threads of an input pipeline, with 0 for the framework's own choice."""
    cores = machine.cpu_cores
    return tuple(sorted({0, max(1, cores // 2), cores, 2 * cores}))


def caches(_present: Scalar, _machine: Machine) -> Choices:
    """Return the places where finished samples may be kept."""
    return ("none", "memory", "disk")


GPU_THREAD_MODES: Choices = ("global", "gpu_shared", "gpu_private")
"""Values of TensorFlow's TF_GPU_THREAD_MODE."""


def gpu_thread_modes(present: Scalar, machine: Machine) -> Choices:
    """Return TensorFlow's ways to schedule a GPU's kernels, where there is one."""
    return GPU_THREAD_MODES if machine.gpus else (present,)


def private_gpu_threads(_present: Scalar, machine: Machine) -> Choices:
    """Suggest threads of its own for each GPU."""
    return ("gpu_private",) if machine.gpus else ()


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
