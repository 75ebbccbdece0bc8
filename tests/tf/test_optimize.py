"""A dataset of the user's own, with what makes it fast around it: the same batches, of one shape, and ahead."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf.feed import optimize, staged_prefetch
from autotune.tf.pipeline import applied, as_written
from tests.until import until


def ragged() -> Any:
    """Batches of two clips of different lengths, with their labels."""
    rows = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]])
    return tf.data.Dataset.from_tensor_slices((rows, [0, 1, 2, 3])).batch(2)


def dense() -> Any:
    """The same, padded to the longest of each batch, as a dict."""
    return ragged().map(lambda x, y: {"y": y, "x": x.to_tensor()})


@pytest.mark.parametrize(
    ("batches", "shapes", "x"),
    [(ragged(), ([4], None), lambda batch: batch[0]), (dense(), {"x": [4], "y": []}, lambda batch: batch["x"])],
    ids=["tuples of ragged ones", "dicts"],
)
def test_batches_get_one_shape(batches: Any, shapes: Any, x: Any) -> None:
    """Zeros stand behind; what has no shape given stays as it is."""
    made = optimize(batches, shapes=shapes)
    assert x(made.element_spec).shape[1:] == [4]
    expected = [[[1, 2, 0, 0], [3, 0, 0, 0]], [[4, 5, 6, 0], [7, 0, 0, 0]]]
    assert [x(batch).numpy().tolist() for batch in made] == expected


def test_a_batch_beyond_the_shape_is_an_error() -> None:
    """Nothing is cut."""
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(optimize(ragged(), shapes=([2], None)))


@pytest.mark.parametrize("shapes", [[4], ([4],), ([4, 1], None), {"x": [4]}])
def test_shapes_of_another_structure_are_an_error(shapes: Any) -> None:
    """It says what an element is made of."""
    with pytest.raises(ValueError, match="as an element is built"):
        optimize(ragged(), shapes=shapes)


def test_the_options_are_those_of_the_pipelines_here() -> None:
    """As it is written, or for throughput; without any of it the batches are the same."""
    batches = tf.data.Dataset.range(10).batch(3)
    assert applied(optimize(batches, parallel_calls=2))["private_threads"] == "2"
    assert applied(optimize(batches, throughput=True))["autotune"] == "true"
    for made in optimize(batches), optimize(batches, prefetch_batches=0), optimize(batches, device="/CPU:0"):
        assert [batch.numpy().tolist() for batch in made] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_keras_trains_on_it() -> None:
    """Without a dataset class of anybody's own."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones((8, 1)))).batch(4)
    assert len(model.fit(optimize(data, shapes=([2], [1])), epochs=2, shuffle=False, verbose=0).history["loss"]) == 2


@pytest.mark.parametrize(
    ("host", "device", "ready"), [(0, 1, 0), (3, 1, 0), (0, 4, 0), (2, 2, 3)], ids=["plain", "host", "device", "all"]
)
def test_each_stage_holds_its_own_batches(host: int, device: int, ready: int) -> None:
    """The batches are on the device, all of them in order, and as many are made ahead as the buffers hold."""
    made: list[int] = []

    def remember(number: np.int64) -> np.int64:
        made.append(int(number))
        return number

    source = tf.data.Dataset.range(40).map(lambda n: tf.ensure_shape(tf.numpy_function(remember, [n], tf.int64), []))
    stages = {"host_batches": host, "device_batches": device, "ready_batches": ready}
    batches = iter(staged_prefetch(source.with_options(as_written(1)), "/CPU:1", **stages))
    first = next(batches)
    until(lambda: len(made) >= 1 + host + device + ready)  # one is in hand
    values = [int(first)]
    for number in batches:
        values.append(int(number))
        assert len(made) <= len(values) + 1 + host + device + ready
    assert values == list(range(40))
    assert first.device.endswith("CPU:1")
