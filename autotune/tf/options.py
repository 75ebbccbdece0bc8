"""Settings of the library: records that are validated when they are made, without TensorFlow."""

import contextlib
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Cache(StrEnum):
    """Place of finished features between passes over the data."""

    NONE = "none"
    MEMORY = "memory"
    DISK = "disk"


class Precision(StrEnum):
    """Dtype of a training step's computations; variables stay in float32 (Micikevicius et al. 2018)."""

    FLOAT32 = "float32"
    MIXED_FLOAT16 = "mixed_float16"
    MIXED_BFLOAT16 = "mixed_bfloat16"

    @property
    def compute_dtype(self) -> str:
        """Name of the dtype of activations and of the matrix products, e.g. ``"bfloat16"``."""
        return self.value.removeprefix("mixed_")


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Settings of TensorFlow's runtime, applied before it starts.

    Attributes:
        inter_op_threads: Operations that run at the same time; 0 leaves it to TensorFlow.
        intra_op_threads: Threads that one operation may use; 0 leaves it to TensorFlow.
        gpu_memory_growth: Take GPU memory as needed instead of all of it at once.
    """

    inter_op_threads: int = 0
    intra_op_threads: int = 0
    gpu_memory_growth: bool = False

    def __post_init__(self) -> None:
        require_at_least(0, inter_op_threads=self.inter_op_threads, intra_op_threads=self.intra_op_threads)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Devices of the two stages of a pipeline: feature work and training; see `autotune.tf.two_stage`.

    Attributes:
        data_gpu: Number of the GPU that computes features, as TensorFlow counts them; None, like
            ``model_gpu``, leaves all placement to TensorFlow. The same number as ``model_gpu`` is allowed.
        logical_cpu_devices: Split the CPU into so many logical devices, and let the numbers above mean these; 0 means
            GPUs.
        data_gpu_memory_mb: Most memory of the data GPU to use, in MiB; 0 sets no limit.

    Raises:
        ValueError: Only one of the GPUs is named; a limit is set for none, or two for the same one.
    """

    data_gpu: int | None = None
    model_gpu: int | None = None
    logical_cpu_devices: int = 0
    data_gpu_memory_mb: int = 0
    model_gpu_memory_mb: int = 0

    def __post_init__(self) -> None:
        if (self.data_gpu is None) != (self.model_gpu is None):
            named, missing = ("model_gpu", "data_gpu") if self.data_gpu is None else ("data_gpu", "model_gpu")
            raise ValueError(f"{missing} is not set, but {named} is: name both, or neither")
        require_at_least(
            0,
            data_gpu=self.data_gpu or 0,
            model_gpu=self.model_gpu or 0,
            logical_cpu_devices=self.logical_cpu_devices,
            data_gpu_memory_mb=self.data_gpu_memory_mb,
            model_gpu_memory_mb=self.model_gpu_memory_mb,
        )
        limit = "data_gpu_memory_mb" if self.data_gpu_memory_mb else "model_gpu_memory_mb"
        if self.limits_mb and self.logical_cpu_devices:
            raise ValueError(f"{limit} limits a GPU, and with logical_cpu_devices none is used")
        if self.limits_mb and self.data_gpu is None:
            raise ValueError(f"{limit} limits the GPU of {limit.removesuffix('_memory_mb')}, which is not set")
        if self.data_gpu == self.model_gpu and self.data_gpu_memory_mb and self.model_gpu_memory_mb:
            raise ValueError(
                f"data_gpu_memory_mb and model_gpu_memory_mb both limit GPU {self.data_gpu}: set the second alone"
            )

    @property
    def limits_mb(self) -> dict[int, int]:
        """Limits of memory in MiB by the number of the GPU."""
        limits = ((self.data_gpu, self.data_gpu_memory_mb), (self.model_gpu, self.model_gpu_memory_mb))
        return {gpu or 0: limit for gpu, limit in limits if limit}


@dataclass(frozen=True, kw_only=True)
class BufferOptions:
    """Buffer between the two stages of a pipeline, on the device of the features.

    Attributes:
        megabytes: Most MiB in it; 0 sets no limit. The lower of the two counts.
        warmup_batches: Batches to be there before the first one is handed out, as far as the buffer holds them; 0
            begins at once.
    """

    batches: int = 4
    megabytes: int = 0
    warmup_batches: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, pipeline_buffer_size=self.batches)
        require_at_least(0, pipeline_buffer_mb=self.megabytes, pipeline_warmup_batches=self.warmup_batches)

    def depth(self, batch_bytes: int) -> int:
        """Return the number of batches that both limits allow.

        Raises:
            ValueError: Not even one.
        """
        if not self.megabytes:
            return self.batches
        fitting = self.megabytes * 2**20 // max(1, batch_bytes)
        if not fitting:
            needed_mb = -(-batch_bytes // 2**20)
            raise ValueError(f"pipeline_buffer_mb must be at least {needed_mb} for one batch, got {self.megabytes}")
        return min(self.batches, fitting)


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Settings of the input pipeline.

    Attributes:
        batch_size: Examples per batch; every batch is full, whatever the size of the data.
        parallel_calls: Examples loaded at the same time, each on a thread of the pipeline's own.
        prefetch_batches: Finished batches kept ready ahead of the training loop; 0 means none.
        cache: Place of loaded examples for the next pass.
        fixed_length: Pad to the longest there can be, so that every batch has the same static shape,
            instead of to the longest of the batch. Together with buckets: to the upper end of the
            bucket.
        buckets: Batches hold examples of like length, in so many classes of equal width; 1 is any
            length with any.
        one_shape: Pad every feature to the longest there can be, in buckets too: for a pipeline over two devices, see
            `autotune.tf.two_stage`.
        seed: Seed of the order of the examples, which differs in each pass and depends on nothing else here but
            ``buckets`` and ``throughput``.
        throughput: Leave to tf.data what `autotune.tf.pipeline.for_throughput` says: examples come in the order
            in which they are ready, and parallelism and prefetch are at least the numbers above.
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
    """Workers of the preparation of texts, see `autotune.tf.text.prepare`.

    Attributes:
        workers: Worker processes; 0 or 1 prepares in the trainer's own process.
        threads: Threads instead of processes: for a function that releases Python's lock.
        chunk_lines: Lines that a process is handed at a time; for no more than these none is started.
    """

    workers: int = 0
    threads: bool = False
    chunk_lines: int = 64

    def __post_init__(self) -> None:
        require_at_least(0, workers=self.workers)
        require_at_least(1, chunk_lines=self.chunk_lines)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Execution mode of a training step.

    Attributes:
        graph: Trace the step into a graph once, instead of running it operation by operation.
        xla: Compile that graph with XLA; a new shape of batch is a new compilation.

    Raises:
        ValueError: XLA without graph mode: only a traced step can be compiled.
    """

    graph: bool = True
    xla: bool = False
    precision: Precision = Precision.FLOAT32

    def __post_init__(self) -> None:
        if self.xla and not self.graph:
            raise ValueError("XLA compiles graphs: it needs graph mode, which is off")


def require_at_least(low: int, **values: int) -> None:
    """Raise a ValueError that names the first of the values that is no whole number, or below ``low``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")


CACHE_DIR_VARIABLE = "AUTOTUNE_CACHE_DIR"


def cache_home(near: Path) -> Path:
    """Return the folder in which each cache has a folder of its own.

    Args:
        near: A file of the project, e.g. its config. It is the folder that ``AUTOTUNE_CACHE_DIR`` names, else
            ``.autotune/cache`` of the nearest folder above this file that holds ``.autotune`` or ``.git``, else of the
            working directory; where that one is a link, another user's, or open to others, below ``$XDG_STATE_HOME``.
    """
    given = os.environ.get(CACHE_DIR_VARIABLE)
    if given:
        return Path(given)
    above = near.resolve().parents
    project = next((at for at in above if (at / ".autotune").is_dir() or (at / ".git").exists()), Path.cwd())
    state = project / ".autotune"
    with contextlib.suppress(OSError):  # it is there; or the store says that nothing can be written
        state.mkdir(mode=0o700)
        (state / ".gitignore").write_text("*\n")
    if not _is_ours_alone(state):  # another user with write access could put other features into it
        base = os.environ.get("XDG_STATE_HOME", "")
        state = (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "autotune"
        with contextlib.suppress(OSError):
            state.mkdir(mode=0o700, parents=True)
    return state / "cache"


def _is_ours_alone(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return True  # it cannot be made, and the store will say so
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file aside and move it into place: nobody reads half of it, and the last of several writers wins.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.writelines(parts)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
