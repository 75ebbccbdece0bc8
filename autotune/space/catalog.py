"""Catalog of known knobs: one row each, found in a config by their usual names, in any section.

A row says which keys it means, which values are worth trying on this machine, what an expert would try first,
and what changing it means for training. To teach autotune a knob, add a row to `KNOWN_KNOBS`.
"""

import re
from collections.abc import Mapping

from autotune.messages import _
from autotune.records import Scalar
from autotune.space import domains
from autotune.space.batch_sizes import GLOBAL_NAMES, PER_DEVICE_NAMES, PLAIN_NAMES
from autotune.space.knob import Demand, Effects, Knob, KnownKnob, Label, key_name

_SPEED_ALONE = Effects(host_memory=Demand.NONE)
_QUEUE = Effects(host_memory=Demand.GROWS)
_COMPILER = Effects(gpu_memory=Demand.VARIES, host_memory=Demand.NONE, on_step=True)
_NUMBERS = Effects(gpu_memory=Demand.VARIES, on_step=True)

_NO_WORKERS: Mapping[str, domains.Choices] = {"workers": (0,)}  # PyTorch's loader raises an error: nobody to do it
KNOWN_KNOBS: tuple[KnownKnob, ...] = (
    KnownKnob(
        kind="native_loading",
        names=("use_tf_native_loading", "tf_native_loading", "native_loading"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("read and decode inside TensorFlow instead of in Python"),
        effects=_SPEED_ALONE,
        bundled=True,
    ),
    KnownKnob(
        kind="cache",
        names=("cache", "cache_mode"),
        accepts=lambda value: value in ("none", "memory", "disk"),
        domain=domains.caches,
        heuristic_values=lambda _present, _machine: ("memory",),
        label=Label.SAME_TRAINING,
        sentence=_("keep finished features instead of computing them again in every epoch"),
        bundled=True,
        settling=("memory", "disk"),
    ),
    KnownKnob(
        kind="cache_switch",
        names=(
            "cache",
            "use_cache",
            "cache_dataset",
            "cache_data",
            "cache_all_data",
            "cache_in_memory",
            "allow_cache",
            "datasets_use_caching",
        ),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("keep finished samples instead of loading them again in every epoch"),
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
            "loader_num_workers",
            "num_loader_workers",
            "dataloader_workers",
            "dataloader_num_workers",
            "num_dataloader_workers",
            "data_loader_workers",
            "data_workers",
            "num_data_workers",
            "ds_workers",
            "workers_per_gpu",
        ),
        accepts=domains.is_count,
        domain=domains.workers,
        heuristic_values=domains.one_worker_a_core,
        label=Label.SAME_TRAINING,
        sentence=_("how many samples are prepared at the same time"),
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch",
        names=(
            "prefetch_buffer_size",
            "prefetch_buffer",
            "prefetch_size",
            "prefetch",
            "prefetch_batches",
            "num_prefetch_batches",
            "datasets_prefetch_buffer_size",
        ),
        accepts=domains.is_count,
        domain=domains.buffers,
        heuristic_values=domains.small_buffers,
        label=Label.SAME_TRAINING,
        sentence=_("how many batches are ready ahead of the step"),
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch_switch",
        names=("prefetch", "use_prefetch", "enable_prefetch", "datasets_use_prefetch"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("prepare the next batch during the present step"),
        effects=_QUEUE,
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch_factor",
        names=("prefetch_factor", "dataloader_prefetch_factor"),
        accepts=domains.is_size,
        domain=domains.worker_buffers,
        heuristic_values=domains.small_buffers,
        label=Label.SAME_TRAINING,
        sentence=_("how many batches each worker of the loader has ready ahead of the step"),
        effects=_QUEUE,
        bundled=True,
        excludes=lambda _value: _NO_WORKERS,
    ),
    KnownKnob(
        kind="pin_memory",
        names=("pin_memory", "use_pin_memory", "pin_mem", "dataloader_pin_memory"),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence=_("load into memory from which the GPU can copy by itself"),
        bundled=True,
    ),
    KnownKnob(
        kind="persistent_workers",
        names=("persistent_workers", "use_persistent_workers", "dataloader_persistent_workers"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("keep the loader's workers from one epoch to the next"),
        bundled=True,
        excludes=lambda value: _NO_WORKERS if value else {},
    ),
    KnownKnob(
        kind="model_gpu",
        names=("model_gpu", "model_gpu_id", "model_gpu_index"),
        accepts=domains.is_gpu,
        domain=domains.as_it_is,  # what is worth trying depends on where the data is: `space.device_pairs`
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("which GPU trains, and which one prepares the data"),
        effects=Effects(gpu_memory=Demand.VARIES),
    ),
    KnownKnob(
        kind="data_gpu",
        names=("data_gpu", "data_gpu_id", "data_gpu_index"),
        accepts=domains.is_gpu,
        domain=domains.as_it_is,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("which GPU prepares the data"),
    ),
    KnownKnob(
        kind="pipeline_buffer",
        names=("pipeline_buffer_size", "pipeline_buffer"),
        accepts=domains.is_count,
        domain=domains.device_buffers,
        heuristic_values=domains.small_device_buffers,
        label=Label.SAME_TRAINING,
        sentence=_("how many batches wait between the data GPU and the model GPU"),
        effects=Effects(gpu_memory=Demand.GROWS, host_memory=Demand.GROWS),
        bundled=True,
    ),
    KnownKnob(
        kind="prefetch_to_gpu",
        names=("prefetch_to_gpu", "prefetch_to_device"),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence=_("copy the next batch to the GPU while the present one is computed"),
        effects=_SPEED_ALONE,
        bundled=True,
    ),
    KnownKnob(
        kind="gpu_prefetch_strategy",
        names=("enhanced_gpu_prefetch",),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence=_("another way of copying batches to the GPU ahead of the step"),
    ),
    KnownKnob(
        kind="pipeline_rewrites",
        names=("optimize_cpu_gpu_overlap",),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("let the input pipeline be rewritten so that loading and the step overlap more"),
    ),
    KnownKnob(
        kind="self_tuned_buffers",
        names=("auto_tune_performance",),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("let the trainer choose sizes of its buffers by the number of workers"),
        effects=Effects(gpu_memory=Demand.VARIES),
    ),
    KnownKnob(
        kind="debugging",
        names=(
            "enable_eager_debug",
            "eager_debug",
            "run_eagerly",
            "run_functions_eagerly",
            "detect_anomaly",
            "enable_check_numerics",
        ),
        accepts=domains.is_switch,
        domain=domains.off_if_on,
        heuristic_values=domains.off,
        label=Label.SAME_TRAINING,
        sentence=_("run op by op, or check every number: for finding bugs, and slow"),
        effects=_COMPILER,
    ),
    KnownKnob(
        kind="graph_mode",
        names=("enable_graph_mode", "graph_mode", "use_graph_mode", "use_tf_function"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("compile the step into a graph instead of running it op by op"),
        effects=_COMPILER,
        bundled=True,
    ),
    KnownKnob(
        kind="length_buckets",
        names=("bucket_by_length", "group_by_length", "use_bucketing", "length_bucketing"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.BATCH,  # the same samples, but others share a batch
        sentence=_("put samples of like length into one batch, so that little of it is padding"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="batch_size",
        names=(*PLAIN_NAMES, *PER_DEVICE_NAMES, *GLOBAL_NAMES),
        accepts=domains.is_size,
        domain=domains.batch_sizes,
        heuristic_values=domains.larger_batches,
        label=Label.BATCH,
        sentence=_("samples per step"),
        effects=Effects(gpu_memory=Demand.GROWS, host_memory=Demand.GROWS, on_step=True),
    ),
    KnownKnob(
        kind="precision",
        names=(
            "mixed_precision",
            "use_mixed_precision",
            "enable_mixed_precision",
            "precision",
            "pl_trainer_precision",
            "half_precision",
            "amp",
            "use_amp",
            "enable_amp",
        ),
        accepts=domains.is_precision,
        domain=domains.precisions,
        heuristic_values=domains.half_precision,
        label=Label.PRECISION,
        sentence=_("compute in 16 bits where that is safe"),
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="bf16",
        names=("bf16", "use_bf16"),
        accepts=domains.is_switch,
        domain=domains.bfloat16_switch,
        heuristic_values=domains.bfloat16_on,
        label=Label.PRECISION,
        sentence=_("compute in bfloat16 where that is safe"),
        effects=_NUMBERS,
        excludes=lambda value: {"fp16": (True,)} if value else {},
    ),
    KnownKnob(
        kind="fp16",
        names=("fp16", "use_fp16", "fp16_run"),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.PRECISION,
        sentence=_("compute in float16 where that is safe"),
        effects=_NUMBERS,
        excludes=lambda value: {"bf16": (True,)} if value else {},
    ),
    KnownKnob(
        kind="tf32",
        names=("tf32", "use_tf32", "allow_tf32", "enable_tf32"),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.PRECISION,
        sentence=_("multiply float32 matrices in TF32, which GPUs since Ampere can"),
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="dtype",
        names=("dtype", "amp_dtype", "autocast_dtype", "torch_dtype", "compute_dtype"),
        accepts=domains.is_dtype,
        domain=domains.dtypes,
        heuristic_values=domains.bfloat16,
        label=Label.PRECISION,
        sentence=_("the type of number that the step computes in"),
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="torch_compile",
        names=(
            "torch_compile",
            "use_torch_compile",
            "enable_torch_compile",
            "compile",
            "use_compile",
            "enable_compile",
            "compile_model",
        ),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence=_("compile the model with torch.compile"),
        effects=_COMPILER,
    ),
    KnownKnob(
        kind="channels_last",
        names=("channels_last", "use_channels_last"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("keep the channels of an image side by side in memory, as fast convolutions want them"),
        effects=_COMPILER,
    ),
    KnownKnob(
        kind="cudnn_benchmark",
        names=(
            "cudnn_benchmark",
            "use_cudnn_benchmark",
            "torch_cudnn_benchmark",
            "cudnn.benchmark",
            "trainer.benchmark",
            "pl_trainer.benchmark",
            "trainer_args.benchmark",
        ),
        accepts=domains.is_switch,
        domain=domains.both_with_gpu,
        heuristic_values=domains.on_with_gpu,
        label=Label.SAME_TRAINING,
        sentence=_("let cuDNN measure which convolution is fastest; each new shape costs a measurement"),
        effects=_COMPILER,
    ),
    KnownKnob(
        kind="xla",
        names=("enable_xla_compilation", "enable_xla", "use_xla", "use_xla_jit", "xla", "xla_compile", "jit_compile"),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.on,
        label=Label.SAME_TRAINING,
        sentence=_("compile the step with XLA"),
        effects=_COMPILER,
        # With variable shapes XLA compiles again for every length: a twentieth of the speed.
        needs={True: {"graph_mode": True, "fixed_length": True}},
        is_one_switch=True,
    ),
    KnownKnob(
        kind="fixed_length",
        names=(
            "pad_to_fixed_length",
            "fixed_length_padding",
            "pad_to_max_length",
            "static_shapes",
            "use_static_shapes",
            "enable_static_shapes",
        ),
        accepts=domains.is_switch,
        domain=domains.both,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("pad every batch to one length, so that shapes never change"),
        effects=_NUMBERS,
    ),
    KnownKnob(
        kind="inter_op_threads",
        names=(
            "inter_op_threads",
            "num_inter_threads",
            "num_interop_threads",
            "inter_op_parallelism",
            "inter_op_parallelism_threads",
        ),
        accepts=domains.is_count,
        domain=domains.threads,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("how many ops run at the same time (0: the framework's choice)"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="intra_op_threads",
        names=(
            "intra_op_threads",
            "num_intra_threads",
            "num_intraop_threads",
            "intra_op_parallelism",
            "intra_op_parallelism_threads",
        ),
        accepts=domains.is_count,
        domain=domains.threads,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("threads inside one op (0: the framework's choice)"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="loader_threads",
        names=("datasets_num_private_threads", "num_private_threads", "private_threadpool_size"),
        accepts=domains.is_count,
        domain=domains.loader_threads,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("threads of the input pipeline's own (0: it shares the step's)"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="threads",
        names=("num_threads", "n_threads", "torch_num_threads", "torch_threads", "cpu_threads", "num_cpu_threads"),
        accepts=domains.is_size,
        domain=domains.own_threads,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("threads that compute at the same time"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="gpu_thread_mode",
        names=("gpu_thread_mode",),
        accepts=domains.GPU_THREAD_MODES.__contains__,
        domain=domains.gpu_thread_modes,
        heuristic_values=domains.private_gpu_threads,
        label=Label.SAME_TRAINING,
        sentence=_("whether a GPU's kernels are launched by threads of their own"),
        effects=_SPEED_ALONE,
    ),
    KnownKnob(
        kind="thread_variable",
        names=(
            "omp_num_threads",
            "mkl_num_threads",
            "openblas_num_threads",
            "tf_num_interop_threads",
            "tf_num_intraop_threads",
        ),
        accepts=domains.is_count,
        domain=domains.own_threads,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("threads of a numerical library"),
        effects=_SPEED_ALONE,
        only_if_listed=True,
    ),
    KnownKnob(
        kind="gpu_thread_variable",
        names=("tf_gpu_thread_mode",),
        accepts=domains.GPU_THREAD_MODES.__contains__,
        domain=domains.gpu_thread_modes,
        heuristic_values=domains.private_gpu_threads,
        label=Label.SAME_TRAINING,
        sentence=_("whether a GPU's kernels are launched by threads of their own"),
        effects=_SPEED_ALONE,
        only_if_listed=True,
    ),
    KnownKnob(
        kind="xla_variable",
        names=("tf_xla_flags", "xla_flags"),
        accepts=domains.is_text,
        domain=domains.as_it_is,
        heuristic_values=domains.no_advice,
        label=Label.SAME_TRAINING,
        sentence=_("flags of the XLA compiler"),
        effects=_COMPILER,
        only_if_listed=True,
    ),
)
"""Known knobs, in the order in which an expert would turn them."""

_ROWS = {row.kind: row for row in KNOWN_KNOBS}

_VALIDATION = re.compile(r"(?:.*_)?(?:val|valid|validation|eval|evaluation|test|dev|infer|inference|predict)(?:_.*)?")


def known_knob(path: str, present: Scalar) -> KnownKnob | None:
    """Return the row that a key belongs to; None if it is no known knob, or the row does not understand its value."""
    names = _names(path)
    for row in KNOWN_KNOBS:
        if not names.isdisjoint(row.names) and row.accepts(present):
            return row
    return None


def _names(path: str) -> set[str]:
    """Return the names of a key that a row may have: its last part, and that with its section."""
    name = key_name(path)
    return {name, f"{key_name(path.rpartition('.')[0])}.{name}"}


def row_of(knob: Knob) -> KnownKnob | None:
    """Return the row of a knob; None for a knob of the user's own."""
    return _ROWS.get(knob.kind or "")


def effects_of(knob: Knob) -> Effects:
    """Return the effects of a knob."""
    row = row_of(knob)
    return row.effects if row else Effects()


def is_searched_unasked(path: str, present: Scalar) -> bool:
    """Return whether a key is a knob of its own accord, without being listed under ``knobs:``."""
    row = known_knob(path, present)
    return row is not None and not row.only_if_listed


def excluded_by(knob: Knob, choice: Scalar) -> Mapping[str, domains.Choices]:
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
