"""Configuration of TensorFlow's runtime, which it reads once, at the first operation.

``python -m autotune.tf.runtime`` prints initial variables for this machine, for a shell's ``eval``; ``--verify`` checks
that they are set, and that XLA and bfloat16 work and are faster.
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
    """Apply the options, before the first operation, dataset or variable.

    Raises:
        RuntimeError: TensorFlow has already started.
        ValueError: A memory limit does not fit its GPU, or conflicts with memory growth.
    """
    tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
    tf.config.threading.set_intra_op_parallelism_threads(options.intra_op_threads)
    if options.gpu_memory_growth:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    if devices is not None:
        _configure_devices(devices, growing=options.gpu_memory_growth)


def _configure_devices(devices: DeviceOptions, *, growing: bool) -> None:
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
            raise ValueError(f"gpu_memory_growth conflicts with the memory limit of GPU {number}")
        memory_mb = gpu_memory_mb(number)
        if memory_mb is not None and limit_mb > memory_mb:
            raise ValueError(f"the memory limit of GPU {number} is {limit_mb} MiB, but it has {memory_mb} MiB")
        limited = tf.config.LogicalDeviceConfiguration(memory_limit=limit_mb)
        tf.config.set_logical_device_configuration(gpus[number], [limited])


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Devices of the feature and training stages, as names for `tf.device`."""

    data: str
    model: str


def place(options: DeviceOptions) -> Placement | None:
    """Return the devices that the options name; None if TensorFlow places everything.

    Raises:
        ValueError: A device does not exist.
    """
    if options.data_gpu is None or options.model_gpu is None:
        return None
    kind = "CPU" if options.logical_cpu_devices else "GPU"
    count = len(tf.config.list_logical_devices(kind))
    for key, number in (("data_gpu", options.data_gpu), ("model_gpu", options.model_gpu)):
        if number >= count:
            raise ValueError(f"{key} is {number}, but TensorFlow sees {count} {kind} devices, numbered from 0")
    return Placement(data=f"/{kind}:{options.data_gpu}", model=f"/{kind}:{options.model_gpu}")


def require_devices(placement: Placement) -> None:
    """Raise a ValueError if a device does not exist: TensorFlow would silently use another one."""
    names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    for name in (placement.data, placement.model):
        if name.lstrip("/").removeprefix("device:") not in names:
            raise ValueError(f"device {name} does not exist: TensorFlow sees {', '.join(names)}")


def require_no_conflict() -> None:
    """Raise a ValueError for a distribution strategy, or memory from cudaMallocAsync."""
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(f"{name} conflicts with a pipeline over two devices: use only one of them")
    if os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        raise ValueError(
            "TF_GPU_ALLOCATOR=cuda_malloc_async orders memory by streams, but batches pass between streams of two "
            "devices: unset it"
        )


# TensorFlow reports a GPU's memory only when it is too late to set limits, so the CUDA driver is queried.


def gpu_memory_mb(number: int) -> int | None:
    """Return the memory of a GPU in MiB by its CUDA number; None if unknown."""
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


# Command: variables for this machine, and their verification.


def variables(*, cores: int, has_gpu: bool) -> dict[str, str]:
    """Return initial environment variables of TensorFlow; `autotune search` tunes them."""
    found = {"TF_NUM_INTRAOP_THREADS": str(cores), "TF_NUM_INTEROP_THREADS": str(min(cores, 2))}
    if has_gpu:  # a separate thread launches kernels; memory grows as needed, next to other processes
        found |= {"TF_GPU_THREAD_MODE": "gpu_private", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return found


def verify(wanted: dict[str, str]) -> Iterator[tuple[bool, str]]:
    """Yield for each setting whether it is as wanted, and a description."""
    for name, value in wanted.items():
        present = os.environ.get(name)
        yield present == value, f"{name} is {present or 'not set'}" + ("" if present == value else f", not {value}")
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        grows = all(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus) or (
            os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true"
        )
        yield grows, f"memory of {len(gpus)} GPUs is allocated {'as needed' if grows else 'completely at the start'}"
    size = 4096 if gpus else 512
    plain_s = _time_s(tf.function(tf.matmul), size, tf.float32)
    try:
        compiled_s = _time_s(tf.function(tf.matmul, jit_compile=True), size, tf.float32)
        yield True, f"XLA works: {plain_s / compiled_s:.2f}x for a matrix product"
    except tf.errors.OpError as error:
        yield False, f"XLA does not work: {str(error).splitlines()[0]}"
    half_s = _time_s(tf.function(tf.matmul), size, tf.bfloat16)
    slower = "" if half_s < plain_s else ": float32 is faster here"
    yield True, f"bfloat16 works: {plain_s / half_s:.2f}x for a matrix product{slower}"


def _time_s(function: Callable[..., tf.Tensor], size: int, dtype: tf.DType) -> float:
    matrix, times_s = tf.cast(tf.random.normal((size, size)), dtype), []
    for _ in range(6):
        begin_s = time.monotonic()
        function(matrix, matrix).numpy()
        times_s.append(time.monotonic() - begin_s)
    return min(times_s[1:])


def main() -> int:
    """Print the variables, or verify them; return 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m autotune.tf.runtime", description=__doc__)
    parser.add_argument("--verify", action="store_true", help="check that they are set; exit with 1 if not")
    is_verifying = parser.parse_args().verify
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    wanted = variables(cores=len(os.sched_getaffinity(0)), has_gpu=has_gpu)
    if not is_verifying:
        sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in wanted.items())
        return 0
    checks = list(verify(wanted))
    sys.stdout.writelines(f"{'ok  ' if is_ok else 'NOT '} {text}\n" for is_ok, text in checks)
    return 0 if all(is_ok for is_ok, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
