"""Configuration of TensorFlow's runtime, which is read once, at the first operation."""

import tensorflow as tf

from autotune.tf.options import RuntimeOptions


def configure(options: RuntimeOptions) -> None:
    """Apply the options; call it before the first operation, dataset or variable.

    Raises:
        RuntimeError: TensorFlow has started already and cannot be changed any more.
    """
    tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
    tf.config.threading.set_intra_op_parallelism_threads(options.intra_op_threads)
    if options.gpu_memory_growth:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
