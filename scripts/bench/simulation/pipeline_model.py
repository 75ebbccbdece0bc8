"""Model of a training's speed: the input pipeline and the step, with the few quantities that decide.

A training is a loader and a step, joined by a queue. The loader is limited by its cores, by Python's lock and by its
waits; the step is launch overhead plus work; the queue makes sequential times overlap. The
form is that of bottleneck analysis (tf.data: Murray et al. 2021, "tf.data: a machine learning data processing
framework"; Williams et al. 2009 for the roofline), smoothed where two stages are about equally fast, because their
jitter then shows.

All functions take arrays as well as numbers, so that all points of a space are computed at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.records import Gpu, Machine, Scalar

Quantity = NDArray[np.float64]
"""One number, or an array with one for each point."""

FLOAT32, FLOAT16, BFLOAT16 = 0.0, 1.0, 2.0
NO_CACHE, MEMORY_CACHE, DISK_CACHE = 0.0, 1.0, 2.0

_CODES: Mapping[Scalar, float] = {
    "float32": FLOAT32,
    "mixed_float16": FLOAT16,
    "mixed_bfloat16": BFLOAT16,
    "none": NO_CACHE,
    "memory": MEMORY_CACHE,
    "disk": DISK_CACHE,
}

_QUEUE_SHARPNESS: Final = 4.0
_RECOMPILING: Final = 20.0  # times slower: XLA with shapes that change (0.05x, measured)
_BUCKET_SLACK: Final = 0.08  # of the padding that random batches have, what length buckets leave
_HALF_MEMORY: Final = 0.58  # of activations; weights and optimizer state stay in 32 bits
_XLA_MEMORY: Final = 0.92
_COPY_LATENCY_S: Final = 1e-4
_MANY_THREADS: Final = 0.04  # slowdown of the loader for each time that its workers outnumber the cores
_ONE_OP_AT_A_TIME: Final = 1.06  # inter_op_threads: 1
_USABLE_GPU_MEMORY: Final = 0.94
_USABLE_HOST_MEMORY: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Parameters of a machine.

    Attributes:
        core_speed: Speed of one core, relative to the one that the costs in `Workload` refer to.
        gpus: Number of GPUs; 0: the step runs on the CPU.
        float16_speed: Speed of matrix operations in float16, relative to float32.
        bfloat16_speed: Speed of matrix operations in bfloat16, relative to float32.
        copy_bytes_per_s: Bandwidth from the host to a GPU, and between GPUs.
    """

    cores: int
    core_speed: float = 1.0
    memory_bytes: float
    gpus: int = 0
    gpu_memory_bytes: float = 0.0
    float16_speed: float
    bfloat16_speed: float
    copy_bytes_per_s: float = 12e9
    disk_bytes_per_s: float = 1e9


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Parameters of a trainer and its data; CPU times are those of one core of speed 1.

    Attributes:
        longest: Length of the longest sample, relative to the mean; 1: all alike.
        locked_share: Fraction of `python_s` that holds Python's lock; 0 where workers are processes.
        cached_share: Fraction of the loading that is left with a warm cache.
        batch_s: CPU time to put a batch together, whatever its size, by one thread.
        step_s: Time of the device for a sample of mean length, in float32. On a CPU, of one core.
        filling: Samples in a batch at which the device works at half its rate.
        parallel_share: On a CPU, fraction of the step that more cores speed up.
        half_share: On a GPU, fraction of the step that 16 bits speed up.
        xla_time: Time of the device with XLA, relative to without.
        eager_launch_s: CPU time to start the operations of a step one by one.
        gpu_transform_s: Time of the GPU to transform a sample before the step.
        model_bytes: Memory of weights, gradients and optimizer state.
    """

    dataset_samples: int
    sample_bytes: float
    longest: float
    python_s: float
    native_s: float
    locked_share: float
    read_wait_s: float = 0.0
    cached_share: float
    batch_s: float = 0.0
    step_s: float
    filling: float
    parallel_share: float = 1.0
    half_share: float = 0.0
    xla_time: float = 1.0
    eager_launch_s: float
    graph_launch_s: float
    xla_launch_s: float
    gpu_transform_s: float = 0.0
    model_bytes: float = 0.0
    activation_bytes: float = 0.0
    host_bytes: float = 1.0e9
    worker_bytes: float = 0.0
    trace_s: float = 0.5
    compile_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Values of the known knobs, by the kinds of `autotune.space.catalog`; switches are 0 or 1.

    Attributes:
        precision: `FLOAT32`, `FLOAT16` or `BFLOAT16`.
        cache: `NO_CACHE`, `MEMORY_CACHE` or `DISK_CACHE`.
    """

    batch_size: Quantity
    workers: Quantity
    prefetch: Quantity
    native_loading: Quantity
    cache: Quantity
    length_buckets: Quantity
    fixed_length: Quantity
    graph_mode: Quantity
    xla: Quantity
    precision: Quantity
    prefetch_to_gpu: Quantity
    pipeline_buffer: Quantity
    inter_op_threads: Quantity
    intra_op_threads: Quantity


def coded(value: Scalar) -> float:
    """Return a config value as the model's options encode it."""
    return _CODES[value] if isinstance(value, str) else float(value or 0)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Prediction of the model for a training.

    Attributes:
        load_s: Time of the loader alone for a batch, once caches are warm.
        step_s: Mean time of a step with its loading, once caches are warm.
        first_pass_step_s: Mean time of a step with its loading during the first epoch.
        epoch_gap_s: Extra time of its first step.
        samples_per_s: Long-run throughput; 0 where memory does not suffice.
        first_pass_wait_fraction: The same fraction before caches are filled.
        gpu_utilization: Fraction of the time that the GPU works; 0 without one.
        first_step_s: Time of the very first step.
        gpu_bytes: Peak GPU memory; 0 without a GPU.
        needs_gpu_memory: True if the GPU has less than that.
        needs_host_memory: True if the host has less than that.
    """

    load_s: Quantity
    compute_s: Quantity
    step_s: Quantity
    first_pass_step_s: Quantity
    epoch_steps: Quantity
    epoch_gap_s: Quantity
    samples_per_s: Quantity
    wait_fraction: Quantity
    first_pass_wait_fraction: Quantity
    gpu_utilization: Quantity
    cpu_cores: Quantity
    first_step_s: Quantity
    gpu_bytes: Quantity
    host_bytes: Quantity
    needs_gpu_memory: NDArray[np.bool_]
    needs_host_memory: NDArray[np.bool_]


def predict(options: Options, workload: Workload, hardware: Hardware) -> Pace:
    """Predict the speed of a training."""
    batch = options.batch_size
    cold_s, cold_cpu_s = _loader(options, workload, hardware, warm=False)
    load_s, load_cpu_s = _loader(options, workload, hardware, warm=True)
    step_s, busy_s, step_cpu_s = _step(options, workload, hardware)

    first_pass_s = _joined(cold_s, step_s, (cold_cpu_s + step_cpu_s) / hardware.cores, options.prefetch)
    whole_s = _joined(load_s, step_s, (load_cpu_s + step_cpu_s) / hardware.cores, options.prefetch)
    epoch_steps = np.maximum(1.0, np.floor(workload.dataset_samples / batch))
    gap_s = load_s  # the first batch of an epoch has nobody to overlap with

    gpu_bytes, host_bytes = _memory(options, workload, hardware)
    needs_gpu = gpu_bytes > _USABLE_GPU_MEMORY * hardware.gpu_memory_bytes
    needs_host = host_bytes > _USABLE_HOST_MEMORY * hardware.memory_bytes
    speed = batch * epoch_steps / (epoch_steps * whole_s + gap_s)
    compiling_s = np.where(_compiled(options), workload.compile_s, 0.0) + workload.trace_s * options.graph_mode
    return Pace(
        load_s=load_s,
        compute_s=step_s,
        step_s=whole_s,
        first_pass_step_s=first_pass_s,
        epoch_steps=epoch_steps,
        epoch_gap_s=gap_s,
        samples_per_s=np.where(needs_gpu | needs_host, 0.0, speed),
        wait_fraction=np.clip(1.0 - step_s / _queued(load_s, step_s, options.prefetch), 0.0, 1.0),
        first_pass_wait_fraction=np.clip(1.0 - step_s / _queued(cold_s, step_s, options.prefetch), 0.0, 1.0),
        gpu_utilization=np.minimum(busy_s / whole_s, 0.99) if hardware.gpus else np.zeros_like(whole_s),
        cpu_cores=np.minimum((load_cpu_s + step_cpu_s) / whole_s, hardware.cores),
        first_step_s=compiling_s / hardware.core_speed + cold_s + 2.0 * step_s,
        gpu_bytes=gpu_bytes,
        host_bytes=host_bytes,
        needs_gpu_memory=needs_gpu,
        needs_host_memory=needs_host,
    )


def _joined(load_s: Quantity, step_s: Quantity, cpu_s: Quantity, prefetch: Quantity) -> Quantity:
    """Return the time of a step with its loading: as the queue allows, at least the CPU time over all cores."""
    return np.maximum(_queued(load_s, step_s, prefetch), cpu_s)


def _queued(load_s: Quantity, step_s: Quantity, prefetch: Quantity) -> Quantity:
    """Return a sum without a queue, nearly the larger of the two behind a deep one: the norm in between."""
    power = 1.0 + _QUEUE_SHARPNESS * np.sqrt(prefetch)
    largest = np.maximum(load_s, step_s)  # taken out, so that high powers of small times do not vanish
    return largest * ((load_s / largest) ** power + (step_s / largest) ** power) ** (1.0 / power)


def _loader(options: Options, workload: Workload, hardware: Hardware, *, warm: bool) -> tuple[Quantity, Quantity]:
    """Return the time to load a batch with nothing else running, and the CPU time in it."""
    is_native = options.native_loading > 0
    cost_s = np.where(is_native, workload.native_s, workload.python_s) / hardware.core_speed
    crowded = 1.0 + _MANY_THREADS * np.maximum(0.0, options.workers / hardware.cores - 1.0)
    cost_s = cost_s * crowded
    locked = np.where(is_native, 0.0, workload.locked_share)
    wait_s = np.full_like(cost_s, workload.read_wait_s)
    disk_s = np.where(options.cache == DISK_CACHE, workload.sample_bytes / hardware.disk_bytes_per_s, 0.0)
    if warm:
        has_cache = options.cache != NO_CACHE
        cost_s = np.where(has_cache, workload.cached_share * workload.native_s / hardware.core_speed, cost_s)
        locked = np.where(has_cache, 0.0, locked)
        wait_s = np.where(has_cache, 0.0, wait_s)

    lanes = np.maximum(1.0, options.workers)
    by_cores_s = cost_s / np.minimum(lanes, hardware.cores)
    by_lanes_s = (cost_s + wait_s) / lanes
    sample_s = np.maximum(np.maximum(cost_s * locked, by_cores_s), np.maximum(by_lanes_s, disk_s))
    batch_s = workload.batch_s / hardware.core_speed
    return batch_s + options.batch_size * sample_s, batch_s + options.batch_size * cost_s


def _step(options: Options, workload: Workload, hardware: Hardware) -> tuple[Quantity, Quantity, Quantity]:
    """Return the time of a step whose data is ready; the device's part of it; and the CPU time in it."""
    batch = options.batch_size
    compiled = _compiled(options)
    launch_s = np.where(options.graph_mode > 0, workload.graph_launch_s, workload.eager_launch_s)
    launch_s = np.where(compiled, workload.xla_launch_s, launch_s) / hardware.core_speed
    launch_s = launch_s * np.where(options.inter_op_threads == 1, _ONE_OP_AT_A_TIME, 1.0)
    padded = batch * _padding(options, workload)
    work_s = workload.step_s * (padded + workload.filling) * np.where(compiled, workload.xla_time, 1.0)
    recompiling = np.where(compiled & (options.fixed_length == 0) & (workload.longest > 1.0), _RECOMPILING, 1.0)
    half_speed = np.select(
        [options.precision == FLOAT16, options.precision == BFLOAT16],
        [hardware.float16_speed, hardware.bfloat16_speed],
        1.0,
    )
    if hardware.gpus == 0:
        work_s = work_s / half_speed / hardware.core_speed
        threads = np.where(options.intra_op_threads > 0, options.intra_op_threads, hardware.cores)
        threads = np.minimum(threads, hardware.cores)
        shared = 1.0 - workload.parallel_share + workload.parallel_share / threads
        return (launch_s + work_s * shared) * recompiling, np.zeros_like(work_s), (launch_s + work_s) * recompiling

    work_s = work_s * (1.0 - workload.half_share + workload.half_share / half_speed)
    copy_s = _COPY_LATENCY_S + padded * workload.sample_bytes / hardware.copy_bytes_per_s
    transform_s = batch * workload.gpu_transform_s
    has_second = (options.pipeline_buffer > 0) & (hardware.gpus > 1)
    copy_alone_s = np.where((options.prefetch_to_gpu > 0) | has_second, 0.0, copy_s)
    one_gpu_s = launch_s + copy_alone_s + transform_s + work_s
    ahead_s = 2.0 * copy_s + transform_s  # on the data GPU, and then over to the model GPU
    two_gpus_s = _queued(ahead_s, launch_s + work_s, options.pipeline_buffer)
    # What is copied ahead of time still has to be copied.
    step_s = np.maximum(np.where(has_second, two_gpus_s, one_gpu_s), copy_s) * recompiling
    return step_s, work_s + np.where(has_second, 0.0, transform_s), launch_s * recompiling + copy_alone_s


def _compiled(options: Options) -> NDArray[np.bool_]:
    """Return True where XLA compiles anything: it needs a graph."""
    return np.asarray((options.xla > 0) & (options.graph_mode > 0))


def _padding(options: Options, workload: Workload) -> Quantity:
    """Return the length of a padded sample, relative to the mean.

    The longest of n samples is taken as that of a uniform distribution, (n - 1)/(n + 1) of the way from the mean to
    the longest of all.
    """
    longest = workload.longest - 1.0
    at_random = longest * (options.batch_size - 1.0) / (options.batch_size + 1.0)
    variable = np.where(options.length_buckets > 0, _BUCKET_SLACK * at_random, at_random)
    return 1.0 + np.where(options.fixed_length > 0, longest, variable)


def _memory(options: Options, workload: Workload, hardware: Hardware) -> tuple[Quantity, Quantity]:
    """Return the peak memory of the GPU and of the host: the batch of the longest samples comes sooner or later."""
    samples = options.batch_size * workload.longest
    halved = np.where(options.precision != FLOAT32, _HALF_MEMORY, 1.0)
    compact = np.where(_compiled(options), _XLA_MEMORY, 1.0)
    waiting = options.prefetch_to_gpu + options.pipeline_buffer
    device = workload.model_bytes + samples * (
        workload.activation_bytes * halved * compact + waiting * workload.sample_bytes
    )
    host = (
        workload.host_bytes
        + workload.worker_bytes * options.workers
        + (options.prefetch + 1.0) * samples * workload.sample_bytes
        + np.where(options.cache == MEMORY_CACHE, workload.dataset_samples * workload.sample_bytes, 0.0)
    )
    if hardware.gpus == 0:
        return np.zeros_like(device), host + device
    return device, host


_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class SimulatedMachine:
    """Machine with its visible conditions and its true speed.

    Attributes:
        import_s: Time to import the trainer's frameworks in a fresh process.
    """

    name: str
    machine: Machine
    hardware: Hardware
    import_s: float
    fork_s: float


def _gpus(name: str, count: int, memory_bytes: int) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(name=name, uuid=f"GPU-00000000-0000-0000-0000-{index:012d}", memory_bytes=memory_bytes)
        for index in range(count)
    )


MACHINES: tuple[SimulatedMachine, ...] = (
    SimulatedMachine(
        name="2 cores, no GPU",
        machine=Machine(cpu_cores=2, cpu_model="simulated, 2 cores", memory_bytes=8 * _GIB, cpu_bfloat16=True),
        # Half precision as measured with TensorFlow 2.21: float16 is emulated, bfloat16 is not.
        hardware=Hardware(
            cores=2, memory_bytes=8 * _GIB, float16_speed=0.26, bfloat16_speed=1.28, disk_bytes_per_s=4e8
        ),
        import_s=5.8,
        fork_s=0.35,
    ),
    SimulatedMachine(
        name="8 cores, RTX 4090",
        machine=Machine(
            cpu_cores=8,
            cpu_model="simulated, 8 cores",
            memory_bytes=64 * _GIB,
            cpu_bfloat16=False,
            gpus=_gpus("NVIDIA GeForce RTX 4090", 1, 24 * _GIB),
        ),
        hardware=Hardware(
            cores=8,
            core_speed=1.3,
            memory_bytes=64 * _GIB,
            gpus=1,
            gpu_memory_bytes=24 * _GIB,
            float16_speed=2.2,
            bfloat16_speed=2.1,
            copy_bytes_per_s=12e9,
            disk_bytes_per_s=2e9,
        ),
        import_s=4.5,
        fork_s=0.25,
    ),
    SimulatedMachine(
        name="16 cores, A100",
        machine=Machine(
            cpu_cores=16,
            cpu_model="simulated, 16 cores",
            memory_bytes=128 * _GIB,
            cpu_bfloat16=True,
            gpus=_gpus("NVIDIA A100-SXM4-40GB", 1, 40 * _GIB),
        ),
        hardware=Hardware(
            cores=16,
            core_speed=0.9,
            memory_bytes=128 * _GIB,
            gpus=1,
            gpu_memory_bytes=40 * _GIB,
            float16_speed=2.6,
            bfloat16_speed=2.6,
            copy_bytes_per_s=15e9,
            disk_bytes_per_s=1e9,
        ),
        import_s=7.0,
        fork_s=0.4,
    ),
    SimulatedMachine(
        name="32 cores, 2 GPUs",
        machine=Machine(
            cpu_cores=32,
            cpu_model="simulated, 32 cores",
            memory_bytes=256 * _GIB,
            cpu_bfloat16=True,
            gpus=_gpus("NVIDIA L40S", 2, 48 * _GIB),
        ),
        hardware=Hardware(
            cores=32,
            core_speed=1.0,
            memory_bytes=256 * _GIB,
            gpus=2,
            gpu_memory_bytes=48 * _GIB,
            float16_speed=2.0,
            bfloat16_speed=2.0,
            copy_bytes_per_s=10e9,
            disk_bytes_per_s=2e9,
        ),
        import_s=6.5,
        fork_s=0.4,
    ),
)
"""Machines, from small to large."""
