"""Input pipeline: from the indices of the examples to batches, assembled from a `PipelineOptions`."""

from collections.abc import Mapping

import tensorflow as tf

from autotune.tf.cache import Load, Store, cached
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
        examples: Number of examples.
        load: Function from an index below that to the features of the example, the first dimension of some unknown.
        options: Settings of the pipeline.
        maxima: Largest first dimension of each such feature.
        length_of: The feature whose first dimension is the length of an example, for buckets.
        store: Store of loaded examples; None loads everything anew in each pass.

    Returns:
        A dataset that never ends: passes follow each other, each in another order, also within a batch.
    """
    order = tf.data.Dataset.range(examples).shuffle(examples, seed=options.seed)
    # Deterministic, so that the number of workers does not change what is trained on.
    loaded = order.repeat().map(
        cached(load, store) if store else load,
        num_parallel_calls=options.parallel_calls,
        deterministic=True,
    )
    batches = _batch(loaded, options, maxima, length_of)
    if options.prefetch_batches > 0:
        batches = batches.prefetch(options.prefetch_batches)
    return batches.with_options(_as_written(options.parallel_calls))


def _batch(
    loaded: tf.data.Dataset, options: PipelineOptions, maxima: Mapping[str, int], length_of: str
) -> tf.data.Dataset:
    shapes = {name: spec.shape for name, spec in loaded.element_spec.items()}
    if options.fixed_length:
        fixed = {name: [top, *shapes[name][1:]] for name, top in maxima.items()}
        # A bucket pads its own length to the bucket's end; all other lengths are the same in every batch.
        shapes |= {name: shape for name, shape in fixed.items() if options.buckets == 1 or name != length_of}
    if options.buckets == 1:
        return loaded.padded_batch(options.batch_size, shapes, drop_remainder=True)
    longest = maxima[length_of]
    # An example goes where its length is BELOW the boundary, and padding is to the boundary minus one.
    boundaries = sorted({longest * bucket // options.buckets + 1 for bucket in range(1, options.buckets + 1)})
    return loaded.bucket_by_sequence_length(
        lambda features: tf.shape(features[length_of])[0],
        bucket_boundaries=boundaries,
        bucket_batch_sizes=[options.batch_size] * (len(boundaries) + 1),
        padded_shapes=shapes,
        pad_to_bucket_boundary=options.fixed_length,
        drop_remainder=True,
    )


def _as_written(parallel_calls: int) -> tf.data.Options:
    """Return options that keep tf.data from changing the pipeline by itself."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # else no prefetch becomes one
    options.autotune.enabled = False  # else buffers and parallelism move by themselves
    options.threading.private_threadpool_size = parallel_calls
    options.threading.max_intra_op_parallelism = 1  # a worker is one thread
    return options
