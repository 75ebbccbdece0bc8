"""Catalog of known knobs: one row each, found in a config by their usual names, in any section.

A row says which keys it means, which values are worth trying on this machine, what an expert would try first,
and what changing it means for training. To teach autotune a knob, add a row to `KNOWN_KNOBS`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from autotune.records import Machine, Scalar
from autotune.space.batch_sizes import GLOBAL_NAMES, PER_DEVICE_NAMES, PLAIN_NAMES
from autotune.space.knob import Knob, Label, key_name

_Values = tuple[Scalar, ...]
_LARGEST_COUNT = 2**31
"""Largest plausible batch, buffer or pool of workers; a key that holds more means something else."""


class Demand(Enum):
    """Dependence of a trial's memory on a knob."""

    NONE = "none"  # not at all
    VARIES = "varies"  # another value may need more or less
    GROWS = "grows"  # the larger the value, the more


@dataclass(frozen=True, kw_only=True)
class Effects:
    """Effects of a knob, as far as its row says; the defaults are those of a knob that no row describes.

    Attributes:
        gpu_memory: Dependence of the GPU's memory on it.
        host_memory: The same of the host's.
        on_step: Whether it makes the step itself faster, and not the loading of its data.
    """

    gpu_memory: Demand = Demand.NONE
    host_memory: Demand = Demand.VARIES
    on_step: bool = False


_SPEED_ALONE = Effects(host_memory=Demand.NONE)
_QUEUE = Effects(host_memory=Demand.GROWS)
_COMPILER = Effects(gpu_memory=Demand.VARIES, host_memory=Demand.NONE, on_step=True)
_NUMBERS = Effects(gpu_memory=Demand.VARIES, on_step=True)


@dataclass(frozen=True, kw_only=True)
class KnownKnob:
    """Row of the table of known knobs.

    Attributes:
        kind: Name of the row.
        names: Last parts of the key paths that mean it, lower case.
        accepts: Whether a present value is one that the row understands.
        domain: (present value, machine) → the values worth trying.
        advice: (present value, machine) → values that an expert would try, best guess first.
        label: Effect of a change on the training itself.
        sentence: Description for the user.
        effects: Effects on memory and on the step.
        bundled: Whether the first proposal sets it, with the other bundled rows: the cheap, safe ones.
        settling: Values whose speed shows only after one pass over the data.
        needs: Values of this row → what other rows must then hold, as far as the config has them.
        is_one_switch: Whether all keys of a config that mean it are one switch, and move together.
    """

    kind: str
    names: tuple[str, ...]
    accepts: Callable[[Scalar], bool]
    domain: Callable[[Scalar, Machine], _Values]
    advice: Callable[[Scalar, Machine], _Values]
    label: Label
    sentence: str
    effects: Effects = field(default_factory=Effects)
    bundled: bool = False
    settling: _Values = ()
    needs: Mapping[Scalar, Mapping[str, Scalar]] = field(default_factory=dict)
    is_one_switch: bool = False


def _is_switch(value: Scalar) -> bool:
    return isinstance(value, bool)


def _is_count(value: Scalar) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT


def _is_size(value: Scalar) -> bool:
    return _is_count(value) and value != 0


def _count(value: Scalar) -> int:
    assert isinstance(value, int)  # `accepts` guarantees it
    return value


def _both(_present: Scalar, _machine: Machine) -> _Values:
    return (False, True)


def _on(_present: Scalar, _machine: Machine) -> _Values:
    return (True,)


def _on_with_gpu(_present: Scalar, machine: Machine) -> _Values:
    return (True,) if machine.gpus else ()


def _both_with_gpu(present: Scalar, machine: Machine) -> _Values:
    return (False, True) if machine.gpus else (present,)


def _batch_sizes(present: Scalar, _machine: Machine) -> _Values:
    now = _count(present)
    return tuple(sorted({max(1, now // 2), *(now * 2**i for i in range(5))}))


def _larger_batches(present: Scalar, _machine: Machine) -> _Values:
    now = _count(present)
    return (now * 4, now * 8, now * 16)


def _workers(_present: Scalar, machine: Machine) -> _Values:
    cores = machine.cpu_cores
    return tuple(sorted({1, 2, 4, max(1, cores // 2), cores, min(2 * cores, 64)}))


def _one_worker_a_core(_present: Scalar, machine: Machine) -> _Values:
    return (machine.cpu_cores,)


def _buffers(_present: Scalar, _machine: Machine) -> _Values:
    return (0, 1, 2, 4, 8, 16)


def _small_buffers(_present: Scalar, _machine: Machine) -> _Values:
    return (4,)


def _threads(_present: Scalar, machine: Machine) -> _Values:
    return tuple(sorted({0, 1, max(1, machine.cpu_cores // 2), machine.cpu_cores}))


def _is_gpu(value: Scalar) -> bool:
    return value is None or _is_count(value)


def _as_it_is(present: Scalar, _machine: Machine) -> _Values:
    return (present,)


def _no_advice(_present: Scalar, _machine: Machine) -> _Values:
    return ()


_FULL_PRECISION = {"float32": "float32", "fp32": "fp32", "no": "no", "none": "none", "32": "32"}
_HALF_NAMES = {
    # How a config spells full precision tells how it spells the others.
    "float32": ("mixed_float16", "mixed_bfloat16"),
    "mixed_float16": ("float32", "mixed_bfloat16"),
    "mixed_bfloat16": ("float32", "mixed_float16"),
    "fp32": ("fp16", "bf16"),
    "fp16": ("fp32", "bf16"),
    "bf16": ("fp32", "fp16"),
    "no": ("fp16", "bf16"),
}


def _is_precision(value: Scalar) -> bool:
    return isinstance(value, bool) or value in _HALF_NAMES


def _is_float16(value: Scalar) -> bool:
    return isinstance(value, str) and value.endswith(("float16", "fp16")) and "bf" not in value


def _precisions(present: Scalar, machine: Machine) -> _Values:
    if isinstance(present, bool):
        return (False, True) if machine.gpus else (present,)
    return (present, *_useful(_HALF_NAMES[str(present)], machine))


def _useful(precisions: tuple[str, ...], machine: Machine) -> tuple[str, ...]:
    # Without a GPU, float16 is emulated: a quarter of the speed.
    return tuple(name for name in precisions if machine.gpus or not _is_float16(name))


def _half_precision(present: Scalar, machine: Machine) -> _Values:
    if not machine.gpus and not machine.cpu_bfloat16:
        return ()
    if isinstance(present, bool):
        return (True,)
    halves = [value for value in _precisions(present, machine) if value not in _FULL_PRECISION]
    return tuple(sorted((str(value) for value in halves if value != present), key=_is_float16))


_DTYPES = (("float32", "float16", "bfloat16"), ("fp32", "fp16", "bf16"))


def _is_dtype(value: Scalar) -> bool:
    return any(value in spelling for spelling in _DTYPES)


def _dtypes(present: Scalar, machine: Machine) -> _Values:
    (spelling,) = (spelling for spelling in _DTYPES if present in spelling)
    return (present, *_useful(tuple(name for name in spelling if name != present), machine))


def _bfloat16(present: Scalar, machine: Machine) -> _Values:
    if not machine.gpus and not machine.cpu_bfloat16:
        return ()
    return tuple(name for name in _dtypes(present, machine) if name != present and str(name).startswith("bf"))


def _caches(_present: Scalar, _machine: Machine) -> _Values:
    return ("none", "memory", "disk")


KNOWN_KNOBS: tuple[KnownKnob, ...] = (
    KnownKnob(
        kind="native_loading",
        names=("use_tf_native_loading", "tf_native_loading", "native_loading"),
        accepts=_is_switch,
        domain=_both,
        advice=_on,
        label=Label.SAME_TRAINING,
        sentence="read and decode inside TensorFlow instead of in Python",
        effects=_SPEED_ALONE,
        bundled=True,
    ),
    KnownKnob(
        kind="cache",
        names=("cache", "cache_mode"),
        accepts=lambda value: value in ("none", "memory", "disk"),
        domain=_caches,
        advice=lambda _present, _machine: ("memory",),
        label=Label.SAME_TRAINING,
        sentence="keep finished features instead of computing them again in every epoch",
        bundled=True,
        settling=("memory", "disk"),
    ),
    KnownKnob(
        kind="cache_switch",
        names=("cache", "use_cache", "cache_dataset", "cache_in_memory", "allow_cache"),
        accepts=_is_switch,
        domain=_both,
        advice=_on,
        label=Label.SAME_TRAINING,
        sentence="keep finished samples instead of loading them again in every epoch",
        bundled=True,
        settling=(True,),
    ),
    KnownKnob(
        kind="workers",
        names=(
            "num_workers",
            "n_workers",
            "workers",
            "num_parallel_calls",
            "parallel_calls",
            "loader_workers",
            "dataloader_num_workers",
            "num_loader_workers",
        ),
        accepts=_is_count,
        domain=_workers,
        advice=_one_worker_a_core,
        label=Label.SAME_TRAINING,
        sentence="how many samples are prepared at the same time",
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch",
        names=("prefetch_buffer_size", "prefetch_size", "prefetch", "prefetch_factor", "prefetch_batches"),
        accepts=_is_count,
        domain=_buffers,
        advice=_small_buffers,
        label=Label.SAME_TRAINING,
        sentence="how many batches are ready ahead of the step",
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="model_gpu",
        names=("model_gpu", "model_gpu_id", "model_gpu_index"),
        accepts=_is_gpu,
        domain=_as_it_is,  # what is worth trying depends on where the data is: `autotune.space.device_pairs`
        advice=_no_advice,
        label=Label.SAME_TRAINING,
        sentence="which GPU trains, and which one prepares the data",
        effects=Effects(gpu_memory=Demand.VARIES),
    ),
    KnownKnob(
        kind="data_gpu",
        names=("data_gpu", "data_gpu_id", "data_gpu_index"),
        accepts=_is_gpu,
        domain=_as_it_is,
        advice=_no_advice,
        label=Label.SAME_TRAINING,
        sentence="which GPU prepares the data",
    ),
    KnownKnob(
        kind="pipeline_buffer",
        names=("pipeline_buffer_size", "pipeline_buffer"),
        accepts=_is_count,
        domain=lambda present, machine: _buffers(present, machine) if len(machine.gpus) > 1 else (present,),
        advice=lambda present, machine: _small_buffers(present, machine) if len(machine.gpus) > 1 else (),
        label=Label.SAME_TRAINING,
        sentence="how many batches wait between the data GPU and the model GPU",
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch_to_gpu",
        names=("prefetch_to_gpu", "prefetch_to_device"),
        accepts=_is_switch,
        domain=_both_with_gpu,
        advice=_on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence="copy the next batch to the GPU while the present one is computed",
        effects=_SPEED_ALONE,
        bundled=True,
    ),
    KnownKnob(
        kind="graph_mode",
        names=("enable_graph_mode", "graph_mode", "use_graph_mode", "use_tf_function"),
        accepts=_is_switch,
        domain=_both,
        advice=_on,
        label=Label.SAME_TRAINING,
        sentence="compile the step into a graph instead of running it op by op",
        effects=_COMPILER,
        bundled=True,
    ),
    KnownKnob(
        kind="length_buckets",
        names=("bucket_by_length", "group_by_length", "use_bucketing", "length_bucketing"),
        accepts=_is_switch,
        domain=_both,
        advice=_on,
        label=Label.BATCH,  # the same samples, but others share a batch
        sentence="put samples of like length into one batch, so that little of it is padding",
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="batch_size",
        names=(*PLAIN_NAMES, *PER_DEVICE_NAMES, *GLOBAL_NAMES),
        accepts=_is_size,
        domain=_batch_sizes,
        advice=_larger_batches,
        label=Label.BATCH,
        sentence="samples per step",
        effects=Effects(gpu_memory=Demand.GROWS, host_memory=Demand.GROWS, on_step=True),
    ),
    KnownKnob(
        kind="precision",
        names=("mixed_precision", "precision", "amp"),
        accepts=_is_precision,
        domain=_precisions,
        advice=_half_precision,
        label=Label.PRECISION,
        sentence="compute in 16 bits where that is safe",
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="dtype",
        names=("dtype", "amp_dtype", "autocast_dtype", "torch_dtype"),
        accepts=_is_dtype,
        domain=_dtypes,
        advice=_bfloat16,
        label=Label.PRECISION,
        sentence="the type of number that the step computes in",
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="torch_compile",
        names=("torch_compile", "use_torch_compile", "compile", "use_compile", "compile_model"),
        accepts=_is_switch,
        domain=_both_with_gpu,
        advice=_on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence="compile the model with torch.compile",
        effects=_COMPILER,
    ),
    KnownKnob(
        kind="xla",
        names=("enable_xla_compilation", "enable_xla", "use_xla", "xla", "jit_compile"),
        accepts=_is_switch,
        domain=_both,
        advice=_on,
        label=Label.SAME_TRAINING,
        sentence="compile the step with XLA",
        effects=_COMPILER,
        # With variable shapes XLA compiles again for every length: a twentieth of the speed.
        needs={True: {"graph_mode": True, "fixed_length": True}},
        is_one_switch=True,
    ),
    KnownKnob(
        kind="fixed_length",
        names=("pad_to_fixed_length", "fixed_length_padding", "pad_to_max_length"),
        accepts=_is_switch,
        domain=_both,
        advice=_no_advice,
        label=Label.SAME_TRAINING,
        sentence="pad every batch to one length, so that shapes never change",
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="inter_op_threads",
        names=("inter_op_threads", "inter_op_parallelism_threads"),
        accepts=_is_count,
        domain=_threads,
        advice=_no_advice,
        label=Label.SAME_TRAINING,
        sentence="how many ops run at the same time (0: the framework's choice)",
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="intra_op_threads",
        names=("intra_op_threads", "intra_op_parallelism_threads"),
        accepts=_is_count,
        domain=_threads,
        advice=_no_advice,
        label=Label.SAME_TRAINING,
        sentence="threads inside one op (0: the framework's choice)",
        effects=_SPEED_ALONE,
    ),
)
"""Known knobs, in the order in which an expert would turn them."""

_ROWS = {row.kind: row for row in KNOWN_KNOBS}

_VALIDATION = re.compile(r"(?:.*_)?(?:val|valid|validation|eval|evaluation|test|dev|infer|inference|predict)(?:_.*)?")


def known_knob(path: str, present: Scalar) -> KnownKnob | None:
    """Return the row that a key belongs to; None if it is no known knob, or the row does not understand its value."""
    name = key_name(path)
    for row in KNOWN_KNOBS:
        if name in row.names and row.accepts(present):
            return row
    return None


def row_of(knob: Knob) -> KnownKnob | None:
    """Return the row of a knob; None for a knob of the user's own."""
    return _ROWS.get(knob.kind or "")


def effects_of(knob: Knob) -> Effects:
    """Return the effects of a knob."""
    row = row_of(knob)
    return row.effects if row else Effects()


def has_known_name(path: str) -> bool:
    """Return whether a key has the name of a known knob, whatever its value."""
    name = key_name(path)
    return any(name in row.names for row in KNOWN_KNOBS)


def is_for_validation(path: str) -> bool:
    """Return whether a key is in a section for validation, testing or inference, which no trial measures."""
    return any(_VALIDATION.fullmatch(key_name(section)) for section in path.split(".")[:-1])
