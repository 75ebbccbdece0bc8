"""Configuration of TensorFlow's runtime, which is read once, at the first operation."""

import contextlib
import ctypes
import os
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
