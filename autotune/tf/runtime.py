"""Configuration of TensorFlow's runtime, which is read once, at the first operation.

``python -m autotune.tf.runtime`` prints variables to begin with on this machine, for a shell's ``eval``;
``--verify`` looks whether they are in force here, and whether XLA and 16 bits work and pay.
"""

import argparse
import contextlib
import ctypes
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from autotune.tf.options import DeviceOptions, RuntimeOptions


def configure(options: RuntimeOptions, devices: DeviceOptions | None = None) -> None:
    """Apply the options; call it before the first operation, dataset or variable.

    Args:
        devices: Devices of the two stages of a pipeline: the memory that they may use, and the logical CPU devices.

    Raises:
        RuntimeError: TensorFlow has started already and cannot be changed any more.
        ValueError: The memory of a GPU is limited that is not there, to more than it has, or although it grows as
            needed.
    """
    tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
    tf.config.threading.set_intra_op_parallelism_threads(options.intra_op_threads)
    if options.gpu_memory_growth:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    if devices is not None:
        _divide(devices, growing=options.gpu_memory_growth)


def _divide(devices: DeviceOptions, *, growing: bool) -> None:
    if devices.logical_cpu_devices > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * devices.logical_cpu_devices
        )
    gpus = tf.config.list_physical_devices("GPU")
    for number, limit_mb in {} if devices.logical_cpu_devices else devices.limits_mb.items():
        if number >= len(gpus):
            raise ValueError(f"the memory of GPU {number} is limited, but TensorFlow sees {len(gpus)} GPUs")
        if growing:
            raise ValueError(f"gpu_memory_growth and a limit of memory on GPU {number}: TensorFlow takes one of them")
        memory_mb = gpu_memory_mb(number)
        if memory_mb is not None and limit_mb > memory_mb:
            raise ValueError(f"the memory of GPU {number} is limited to {limit_mb} MiB, but it has {memory_mb} MiB")
        limited = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mb)
        tf.config.set_logical_device_configuration(gpus[number], [limited])


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Names of the devices, as `tf.device` takes them.

    Attributes:
        data: Device of the feature work.
    """

    data: str
    model: str


def place(options: DeviceOptions) -> Placement | None:
    """Return the devices that the options name.

    GPUs are counted as TensorFlow sees them: ``CUDA_VISIBLE_DEVICES`` decides which, and in which order. There is no
    falling back to fewer devices, which would only be seen as a training that is slow.

    Returns:
        The devices; None where none are named, and TensorFlow places everything.

    Raises:
        ValueError: One of them is not there.
    """
    if options.data_gpu is None or options.model_gpu is None:
        return None
    kind = "CPU" if options.logical_cpu_devices else "GPU"
    there = len(tf.config.list_logical_devices(kind))
    for key, number in (("data_gpu", options.data_gpu), ("model_gpu", options.model_gpu)):
        if number >= there:
            seen = "logical CPU devices" if options.logical_cpu_devices else "GPUs"
            numbers = f"TensorFlow sees {there} {seen}" + (f", 0 to {there - 1}" if there else " here")
            raise ValueError(f"{key} is {number}, but {numbers}")
    return Placement(data=f"/{kind}:{options.data_gpu}", model=f"/{kind}:{options.model_gpu}")


def require_there(placement: Placement) -> None:
    """See to it that both devices are there: TensorFlow itself would take another one in silence.

    Raises:
        ValueError: One is not.
    """
    there = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    for name in (placement.data, placement.model):
        if name.lstrip("/").removeprefix("device:") not in there:
            raise ValueError(f"device {name} is not there: TensorFlow sees {', '.join(there)}")


def refuse_other_ways() -> None:
    """See to it that nothing else divides the work over the devices or hands memory around between them.

    Raises:
        ValueError: A distribution strategy is in force, or GPU memory comes from cudaMallocAsync.
    """
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(f"{name} places the batches itself: use it, or a pipeline over two devices, not both")
    if os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        raise ValueError(
            "TF_GPU_ALLOCATOR=cuda_malloc_async orders memory by streams, and the batches here pass between those of "
            "two devices: unset it"
        )


# Memory of a GPU, asked of the CUDA driver: TensorFlow says it only when it is too late to set limits.


def gpu_memory_mb(number: int) -> int | None:
    """Return the memory of a GPU in MiB; None if the driver does not say.

    Args:
        number: Number of the GPU as CUDA counts them, and TensorFlow with it: ``CUDA_VISIBLE_DEVICES`` applies.
    """
    with contextlib.suppress(OSError, AttributeError):  # no driver, or one without these functions
        cuda = ctypes.CDLL("libcuda.so.1")
        device, memory_bytes = ctypes.c_int(), ctypes.c_size_t()
        if (
            cuda.cuInit(0) == 0
            and cuda.cuDeviceGet(ctypes.byref(device), number) == 0
            and cuda.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device) == 0
        ):
            return memory_bytes.value >> 20
    return None


# Command: variables for this machine, and whether they are in force.


def variables(*, cores: int, has_gpu: bool) -> dict[str, str]:
    """Return environment variables of TensorFlow to begin with: `autotune search` turns them, and measures."""
    found = {"TF_NUM_INTRAOP_THREADS": str(cores), "TF_NUM_INTEROP_THREADS": str(min(cores, 2))}
    if has_gpu:  # a thread of its own launches kernels; memory is taken as it is needed, beside others
        found |= {"TF_GPU_THREAD_MODE": "gpu_private", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return found


def verify(wanted: dict[str, str]) -> Iterator[tuple[bool, str]]:
    """Yield whether each setting is as wanted, and what was seen of it; XLA and 16 bits are tried on a product."""
    for name, value in wanted.items():
        there = os.environ.get(name)
        yield there == value, f"{name} is {there or 'not set'}" + ("" if there == value else f", not {value}")
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        grows = all(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus) or (
            os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true"
        )
        yield grows, f"memory of {len(gpus)} GPUs is taken {'as it is needed' if grows else 'whole, at the start'}"
    size = 4096 if gpus else 512
    usual_s = _time_s(tf.function(tf.matmul), size, tf.float32)
    try:
        compiled_s = _time_s(tf.function(tf.matmul, jit_compile=True), size, tf.float32)
        yield True, f"XLA works: {usual_s / compiled_s:.2f}x of a product of matrices"
    except tf.errors.OpError as error:
        yield False, f"XLA does not work: {str(error).splitlines()[0]}"
    half_s = _time_s(tf.function(tf.matmul), size, tf.bfloat16)
    pays = "" if half_s < usual_s else ": float32 is the faster one here"
    yield True, f"bfloat16 works: {usual_s / half_s:.2f}x of a product of matrices{pays}"


def _time_s(function: Callable[..., tf.Tensor], size: int, dtype: tf.DType) -> float:
    """Return the shortest of some calls, in seconds."""
    matrix, times_s = tf.cast(tf.random.normal((size, size)), dtype), []
    for _ in range(6):
        begin_s = time.monotonic()
        function(matrix, matrix).numpy()
        times_s.append(time.monotonic() - begin_s)
    return min(times_s[1:])


def main() -> int:
    """Print the variables, or what of them is in force; return 1 where something is not."""
    parser = argparse.ArgumentParser(prog="python -m autotune.tf.runtime", description=__doc__)
    parser.add_argument("--verify", action="store_true", help="look whether they are in force; exit with 1 if not")
    is_verifying = parser.parse_args().verify
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    wanted = variables(cores=len(os.sched_getaffinity(0)), has_gpu=has_gpu)
    if not is_verifying:
        sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in wanted.items())
        return 0
    seen = list(verify(wanted))
    sys.stdout.writelines(f"{'ok  ' if is_so else 'NOT '} {text}\n" for is_so, text in seen)
    return 0 if all(is_so for is_so, _ in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
