"""Options of the library, validated on construction, without TensorFlow."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Cache(StrEnum):
    """Where computed features are kept between passes over the data."""

    NONE = "none"
    MEMORY = "memory"
    DISK = "disk"


class Precision(StrEnum):
    """Dtype of a step's computations; variables stay float32 (Micikevicius et al. 2018)."""

    FLOAT32 = "float32"
    MIXED_FLOAT16 = "mixed_float16"
    MIXED_BFLOAT16 = "mixed_bfloat16"

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations and matrix products, e.g. ``"bfloat16"``."""
        return self.value.removeprefix("mixed_")


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options of TensorFlow's runtime, applied before it starts; 0 threads are its default."""

    inter_op_threads: int = 0
    intra_op_threads: int = 0
    gpu_memory_growth: bool = False

    def __post_init__(self) -> None:
        require_at_least(0, inter_op_threads=self.inter_op_threads, intra_op_threads=self.intra_op_threads)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Devices of a two-stage pipeline.

    Attributes:
        data_gpu: GPU that computes features, by TensorFlow's number; None for both GPUs lets TensorFlow place
            everything.
        logical_cpu_devices: Logical CPU devices to use instead of GPUs; 0 for GPUs.
        data_gpu_memory_mb: Memory limit in MiB; 0 for none.
    """

    data_gpu: int | None = None
    model_gpu: int | None = None
    logical_cpu_devices: int = 0
    data_gpu_memory_mb: int = 0
    model_gpu_memory_mb: int = 0

    def __post_init__(self) -> None:
        if (self.data_gpu is None) != (self.model_gpu is None):
            named, missing = ("model_gpu", "data_gpu") if self.data_gpu is None else ("data_gpu", "model_gpu")
            raise ValueError(f"{missing} is not set, but {named} is: set both or neither")
        require_at_least(0, **{name: number or 0 for name, number in vars(self).items()})
        if self.limits_mb and (self.logical_cpu_devices or self.data_gpu is None):
            limit = "data_gpu_memory_mb" if self.data_gpu_memory_mb else "model_gpu_memory_mb"
            raise ValueError(f"{limit} limits a GPU, but none is set, or logical_cpu_devices is used instead")
        if self.data_gpu == self.model_gpu and self.data_gpu_memory_mb and self.model_gpu_memory_mb:
            raise ValueError(
                f"data_gpu_memory_mb and model_gpu_memory_mb both limit GPU {self.data_gpu}: set only the second"
            )

    @property
    def limits_mb(self) -> dict[int, int]:
        limits = ((self.data_gpu, self.data_gpu_memory_mb), (self.model_gpu, self.model_gpu_memory_mb))
        return {gpu or 0: limit for gpu, limit in limits if limit}


@dataclass(frozen=True, kw_only=True)
class BufferOptions:
    """Buffer between the two stages, on the features' device.

    Attributes:
        megabytes: Limit in MiB; 0 for none.
        warmup_batches: Batches to buffer before the first is handed out.
    """

    batches: int = 4
    megabytes: int = 0
    warmup_batches: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, pipeline_buffer_size=self.batches)
        require_at_least(0, pipeline_buffer_mb=self.megabytes, pipeline_warmup_batches=self.warmup_batches)

    def depth(self, batch_bytes: int) -> int:
        """Return the number of batches within both limits; raise a ValueError if it is 0."""
        if not self.megabytes:
            return self.batches
        fitting = self.megabytes * 2**20 // max(1, batch_bytes)
        if not fitting:
            needed_mb = -(-batch_bytes // 2**20)
            raise ValueError(f"pipeline_buffer_mb must be at least {needed_mb} for one batch, got {self.megabytes}")
        return min(self.batches, fitting)


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of the input pipeline.

    Attributes:
        batch_size: Examples per batch; every batch is full.
        parallel_calls: Examples loaded in parallel.
        prefetch_batches: Batches prefetched for the training loop.
        fixed_length: Pad to the maximum, or the bucket's upper end, instead of the longest in the batch.
        buckets: Number of length classes of equal width; a batch holds examples of one class.
        one_shape: Pad every feature to its maximum, in buckets too, as `autotune.tf.two_stage` needs.
        seed: Seed of the order of examples, which also depends on ``buckets`` and ``throughput``.
        throughput: Apply `autotune.tf.pipeline.for_throughput`; the numbers above are then minima.
    """

    batch_size: int
    parallel_calls: int = 1
    prefetch_batches: int = 1
    cache: Cache = Cache.NONE
    fixed_length: bool = False
    buckets: int = 1
    one_shape: bool = False
    seed: int = 0
    throughput: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, batch_size=self.batch_size, parallel_calls=self.parallel_calls, buckets=self.buckets)
        require_at_least(0, prefetch_batches=self.prefetch_batches)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Workers of `autotune.tf.text.prepare`.

    Attributes:
        workers: Worker processes; 0 or 1 prepares in the trainer's process.
        threads: Use threads instead, for a function that releases the GIL.
        chunk_lines: Lines per task of a process.
    """

    workers: int = 0
    threads: bool = False
    chunk_lines: int = 64

    def __post_init__(self) -> None:
        require_at_least(0, workers=self.workers)
        require_at_least(1, chunk_lines=self.chunk_lines)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Execution mode of a training step: eager, graph, or XLA, which compiles once per batch shape."""

    graph: bool = True
    xla: bool = False
    precision: Precision = Precision.FLOAT32

    def __post_init__(self) -> None:
        if self.xla and not self.graph:
            raise ValueError("XLA compiles graphs: it needs graph mode, which is off")


def require_at_least(low: int, **values: int) -> None:
    """Raise a ValueError that names the first value that is not an integer, or below ``low``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be an integer, got {value!r}")
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")


CACHE_DIR_VARIABLE = "AUTOTUNE_CACHE_DIR"


def cache_home(near: Path) -> Path:
    """Return the folder of all caches of the project of a file, e.g. its config.

    It is ``AUTOTUNE_CACHE_DIR``, else ``.autotune/cache`` in the nearest folder above with ``.autotune`` or ``.git``,
    else in the working directory, or below ``$XDG_STATE_HOME`` if others can write to that ``.autotune``.
    """
    given = os.environ.get(CACHE_DIR_VARIABLE)
    if given:
        return Path(given)
    above = near.resolve().parents
    project = next((at for at in above if (at / ".autotune").is_dir() or (at / ".git").exists()), Path.cwd())
    state = project / ".autotune"
    with contextlib.suppress(OSError):  # it exists, or the store will report the failure
        state.mkdir(mode=0o700)
        (state / ".gitignore").write_text("*\n")
    if not _is_private(state):  # another user with write access could replace features
        base = os.environ.get("XDG_STATE_HOME", "")
        state = (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "autotune"
        with contextlib.suppress(OSError):
            state.mkdir(mode=0o700, parents=True)
    return state / "cache"


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return True  # it cannot be created; the store will report that
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """Write a temporary file and rename it; an OSError leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines(parts)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
