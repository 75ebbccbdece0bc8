"""Options of tf.data: either nothing moves by itself, or everything that serves throughput does."""

import os

import tensorflow as tf


def as_written(threads: int) -> tf.data.Options:
    """Return options that keep tf.data from changing a pipeline by itself: each setting has its own effect.

    Args:
        threads: Threads of the pipeline's own.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.inject_prefetch = False  # else no prefetch becomes one
    options.autotune.enabled = False  # else buffers and parallelism move by themselves
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # a worker is one thread
    return options


def for_throughput(parallel_calls: int) -> tf.data.Options:
    """Return options that let tf.data reorder examples, assemble batches in parallel, and tune itself while it runs.

    Its autotuner moves what is written as ``tf.data.AUTOTUNE``, within the cores and half of the free memory. The
    pipeline has a thread for each core, or for each of the parallel calls if these are more.

    Args:
        parallel_calls: Least parallelism of each parallel map; above the number of cores for loads that wait more than
            they compute, which the autotuner does not know of.
    """
    options = tf.data.Options()
    options.deterministic = False
    options.autotune.enabled = True
    options.autotune.min_parallelism = parallel_calls
    options.experimental_optimization.inject_prefetch = True
    options.experimental_optimization.parallel_batch = True
    options.threading.private_threadpool_size = max(parallel_calls, len(os.sched_getaffinity(0)))
    options.threading.max_intra_op_parallelism = 1
    return options


def applied(dataset: tf.data.Dataset) -> dict[str, str]:
    """Return the options that a dataset was given, by name, as texts: what TensorFlow has, not what was asked for."""
    options = dataset.options()
    return {
        "deterministic": _said(options.deterministic),
        "autotune": _said(options.autotune.enabled),
        "inject_prefetch": _said(options.experimental_optimization.inject_prefetch),
        "parallel_batch": _said(options.experimental_optimization.parallel_batch),
        "private_threads": _said(options.threading.private_threadpool_size),
        "threads_of_an_operation": _said(options.threading.max_intra_op_parallelism),
    }


def _said(value: bool | int | None) -> str:
    if value is None:
        return "TensorFlow's own"
    return str(value).lower()
