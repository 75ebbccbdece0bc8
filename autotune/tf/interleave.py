"""Parallel interleaved reading of data in several files, e.g. TFRecord shards."""

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

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

    The readers run on the threads of the pipeline: give it as many, `autotune.tf.dataset_options.as_written`, or it has
    one for each core.

    Args:
        files: The files.
        read_file: Opens one.
        open_files: Files that records are taken from in turn.
        parallel_calls: Files that are read at the same time; None reads all that are open.
        block_records: Records in a row from one file.
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
