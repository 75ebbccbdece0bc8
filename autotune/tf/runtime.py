"""Configuration of TensorFlow's runtime, which is read once, at the first operation."""

import tensorflow as tf

from autotune.tf.gpu_memory import gpu_memory_mb
from autotune.tf.options import DeviceOptions, RuntimeOptions


def configure(options: RuntimeOptions, devices: DeviceOptions | None = None) -> None:
    """Apply the options; call it before the first operation, dataset or variable.

    Args:
        options: Settings of the runtime.
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
