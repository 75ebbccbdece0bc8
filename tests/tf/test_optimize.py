"""A dataset of the user's own, with what makes it fast around it: the same batches, of one shape, and ahead."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf.feed import optimize


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
    with pytest.raises(ValueError, match="have the structure of an element"):
        optimize(ragged(), shapes=shapes)


def test_keras_trains_on_it() -> None:
    """Without a dataset class of anybody's own."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((8, 2)), np.ones((8, 1)))).batch(4)
    assert len(model.fit(optimize(data, shapes=([2], [1])), epochs=2, shuffle=False, verbose=0).history["loss"]) == 2
