"""Input pipeline: from the indices of the examples to batches, assembled from a `PipelineOptions`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from autotune.tf.cache import Features, Load, Store, cached
from autotune.tf.options import PipelineOptions


def build(
    examples: int,
    load: Load,
    options: PipelineOptions,
    *,
    maxima: Mapping[str, int],
    length_of: str,
    store: Store | None = None,
) -> tf.data.Dataset:
    """Assemble the endless stream of batches: draw an order, load (or look up), batch, prefetch.

    Args:
        load: Function from an index below that to the features of the example, the first dimension of some unknown.
        maxima: Largest first dimension of each such feature.
        length_of: The feature whose first dimension is the length of an example, for buckets.
        store: Store of loaded examples; None loads everything anew in each pass.

    Returns:
        A dataset that never ends: passes follow each other, each in another order, also within a batch.
    """
    order = tf.data.Dataset.range(examples).shuffle(examples, seed=options.seed)
    loaded = order.repeat().map(
        cached(load, store) if store else load,
        num_parallel_calls=tf.data.AUTOTUNE if options.throughput else options.parallel_calls,
        # By default in order, so that the number of workers does not change what is trained on.
        deterministic=not options.throughput,
    )
    return batched(loaded, options, maxima=maxima, length_of=length_of)


def batched(
    loaded: tf.data.Dataset, options: PipelineOptions, *, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    """Return batches of loaded examples, from whatever source: the part of `build` behind the loading.

    Args:
        loaded: Features of single examples, e.g. from `autotune.tf.pipeline.interleaved`.
    """
    batches = _batch(loaded, options, maxima, length_of)
    if options.prefetch_batches > 0:
        batches = batches.prefetch(options.prefetch_batches)
    if options.throughput:
        return batches.prefetch(tf.data.AUTOTUNE).with_options(for_throughput(options.parallel_calls))
    return batches.with_options(as_written(options.parallel_calls))


def _batch(
    loaded: tf.data.Dataset, options: PipelineOptions, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    shapes = {name: spec.shape for name, spec in loaded.element_spec.items()}
    if options.fixed_length or options.one_shape:
        fixed = {name: [top, *shapes[name][1:]] for name, top in maxima.items()}
        # A bucket pads its own length to the bucket's end; all other lengths are the same in every batch.
        one_shape = options.one_shape or options.buckets == 1
        shapes |= {name: shape for name, shape in fixed.items() if one_shape or name != length_of}
    if options.buckets == 1:
        return loaded.padded_batch(options.batch_size, shapes, drop_remainder=True)
    longest = maxima[length_of]
    # An example goes where its length is BELOW the boundary, and padding is to the boundary minus one.
    boundaries = sorted({longest * bucket // options.buckets + 1 for bucket in range(1, options.buckets + 1)})
    batches = loaded.bucket_by_sequence_length(
        lambda features: tf.shape(features[length_of])[0],
        bucket_boundaries=boundaries,
        bucket_batch_sizes=[options.batch_size] * (len(boundaries) + 1),
        padded_shapes=shapes,
        pad_to_bucket_boundary=options.fixed_length and not options.one_shape,
        drop_remainder=True,
    )
    if not options.one_shape:
        return batches

    def shaped(batch: Features) -> Features:
        return {name: tf.ensure_shape(value, [options.batch_size, *shapes[name]]) for name, value in batch.items()}

    return batches.map(shaped)  # buckets could have batches of different sizes, as far as TensorFlow knows


# Parallel interleaved reading of data in several files, e.g. TFRecord shards.


ReadFile = Callable[[tf.Tensor], tf.data.Dataset]
"""Function from the path of a file (string scalar) to its records, e.g. ``tf.data.TFRecordDataset``."""


def interleaved(
    files: Sequence[str | Path],
    read_file: ReadFile,
    *,
    open_files: int,
    parallel_calls: int | None = None,
    block_records: int = 1,
    in_order: bool = True,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Return one pass over the records of all files, read from several at the same time and in turn.

    The readers run on the threads of the pipeline: give it as many, `as_written`, or it has
    one for each core.

    Args:
        open_files: Files that records are taken from in turn.
        parallel_calls: Files that are read at the same time; None reads all that are open.
        in_order: Keep the turns, so that the order depends on the files and the seed alone; off, whichever file has a
            record ready gives it.
        seed: Seed of the order of the files, which differs in each pass; None keeps the order given.

    Raises:
        ValueError: There are no files, or one of the numbers is below 1.
    """
    parallel_calls = open_files if parallel_calls is None else parallel_calls
    if not files or min(open_files, parallel_calls, block_records) < 1:
        raise ValueError(
            f"needs files, and numbers of at least 1; got {len(files)} files, open_files={open_files}, "
            f"parallel_calls={parallel_calls}, block_records={block_records}"
        )
    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    if seed is not None:
        paths = paths.shuffle(len(files), seed=seed)
    return paths.interleave(
        read_file,
        cycle_length=min(open_files, len(files)),
        block_length=block_records,
        num_parallel_calls=min(parallel_calls, open_files, len(files)),
        deterministic=in_order,
    )


def as_written(threads: int) -> tf.data.Options:
    """Return options that keep tf.data from changing a pipeline by itself: each setting has its own effect."""
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
