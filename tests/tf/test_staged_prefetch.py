"""Batches that wait in host memory, on the device, and at the hand of the training loop."""

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf.feed import staged_prefetch
from autotune.tf.pipeline import as_written
from tests.until import until


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
