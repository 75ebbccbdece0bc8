"""Batches: the number of samples in one, and the loss in a result."""

from typing import Any

import numpy as np
import pytest

from autotune.trainee.batch import BatchSizes, loss_in, sizer

X, Y = np.ones((8, 3)), np.ones(8)


class PerReplica:
    """Like TensorFlow's: a value for each device."""

    def __init__(self, *values: Any) -> None:
        self.values = values


@pytest.mark.parametrize(
    ("batch", "expected", "samples"),
    [
        (X, None, 8),
        ((X, Y), None, 8),
        ({"x": X, "meta": {"y": Y}}, None, 8),
        ({"alphabet": np.ones(26), "x": X, "y": Y}, None, 8),
        ([np.ones((100, 8)), Y], 8, 8),
        ((PerReplica(X, X[:3]), PerReplica(Y, Y[:3])), None, 11),
        ((np.float32(1), "text", None), None, None),
        ((), None, None),
        (object(), None, None),
    ],
)
def test_samples_are_the_leading_dimension(batch: Any, expected: int | None, samples: int | None) -> None:
    """Of most arrays, or of that which has the batch size that the loader names; summed over replicas."""
    assert sizer(batch, expected)(batch) == samples


def test_a_batch_that_is_unlike_the_one_before_is_looked_at_anew() -> None:
    """A function may be called in more ways than one; none of them is an error."""
    sizes = BatchSizes()
    calls = ((X,), {}), ((), {"x": X[:5]}), ((), {}), (("text", Y[:3]), {}), ((X, Y), {"mask": Y})
    assert [sizes.of(call) for call in calls] == [8, 5, None, 3, 8]


@pytest.mark.parametrize(
    ("result", "loss"),
    [
        (np.float32(0.5), 0.5),
        (0.5, 0.5),
        ((np.ones(3), np.float32(0.5)), 0.5),
        ([0.5, 0.9], 0.5),
        ({"accuracy": 0.9, "loss": 0.5}, 0.5),
        ({"accuracy": 0.9, "total_loss": 0.5}, 0.5),
        (np.ones(3), None),
        (np.int64(3), None),
        (None, None),
    ],
)
def test_the_loss_is_found(result: Any, loss: float | None) -> None:
    """By its name, or as the first scalar; what is no scalar is none."""
    assert loss_in(result) == loss
