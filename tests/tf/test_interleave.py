"""Interleaved reading gives every record once, from several files at a time, in an order that can be relied on."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf.options import PipelineOptions
from autotune.tf.pipeline import as_written, batched, interleaved

RECORDS = 7


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five TFRecord files of seven records each: ``file.record``."""
    folder = tmp_path_factory.mktemp("shards") / "it's a folder"
    folder.mkdir()
    files = [folder / f"{number}.tfrecord" for number in range(5)]
    for number, file in enumerate(files):
        with tf.io.TFRecordWriter(str(file)) as writer:
            for record in range(RECORDS):
                writer.write(f"{number}.{record}".encode())
    return files


def read(dataset: tf.data.Dataset) -> list[str]:
    """The records of one pass."""
    return [record.decode() for record in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("open_files", "block_records"), [(1, 1), (2, 3), (3, 1), (9, 2)])
def test_every_record_comes_once(shards: list[Path], open_files: int, block_records: int, in_order: bool) -> None:
    """Whatever the numbers, a pass is a pass."""
    dataset = interleaved(
        shards, tf.data.TFRecordDataset, open_files=open_files, block_records=block_records, in_order=in_order
    )
    assert sorted(read(dataset)) == [f"{file}.{record}" for file in range(5) for record in range(RECORDS)]


def test_records_come_from_open_files_in_turn(shards: list[Path]) -> None:
    """With two files open and blocks of two, each gives two in a row; how many are read at once changes nothing."""
    orders = [
        read(interleaved(shards, tf.data.TFRecordDataset, open_files=2, block_records=2, parallel_calls=parallel_calls))
        for parallel_calls in (1, 2, None)
    ]
    assert orders[0][:6] == ["0.0", "0.1", "1.0", "1.1", "0.2", "0.3"]
    assert orders[0] == orders[1] == orders[2]


def test_the_order_of_files_follows_the_seed(shards: list[Path]) -> None:
    """The same seed is the same order, in which the passes differ; no seed is the order given."""

    def passes(seed: int | None) -> list[list[str]]:
        dataset = interleaved(shards, tf.data.TFRecordDataset, open_files=1, seed=seed)
        return [[record for record in read(dataset) if record.endswith(".0")] for _ in range(4)]

    assert passes(3) == passes(3) != passes(4)
    assert len({tuple(order) for order in passes(3)}) > 1
    assert passes(None) == [["0.0", "1.0", "2.0", "3.0", "4.0"]] * 4


def test_files_are_read_at_the_same_time(shards: list[Path]) -> None:
    """Three files are opened before any of them gives a record."""
    together = threading.Barrier(3)

    def wait_for_others(record: bytes) -> bytes:
        if record.endswith(b".0"):
            together.wait(timeout=60)  # breaks, with an error, unless three readers meet here
        return record

    def slow(path: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path).map(
            lambda record: tf.ensure_shape(tf.numpy_function(wait_for_others, [record], tf.string), [])
        )

    dataset = interleaved(shards[:3], slow, open_files=3).with_options(as_written(3))
    assert len(read(dataset)) == 3 * RECORDS


def test_records_become_batches_like_other_examples(shards: list[Path]) -> None:
    """The part of the pipeline behind the loading takes them: fixed shapes, prefetch, options."""
    records = interleaved(shards, tf.data.TFRecordDataset, open_files=2).repeat()
    examples = records.map(lambda record: {"characters": tf.strings.unicode_decode(record, "UTF-8")})
    options = PipelineOptions(batch_size=4, fixed_length=True)
    dataset = batched(examples, options, maxima={"characters": 5}, length_of="characters")
    (batch,) = dataset.take(1)
    assert dataset.element_spec["characters"].shape == (4, 5)
    np.testing.assert_array_equal(batch["characters"][1], [ord("1"), ord("."), ord("0"), 0, 0])
