"""Devices that are not there are refused by their key and number; nothing falls back to fewer of them."""

import pytest

from autotune.tf.options import DeviceOptions
from autotune.tf.runtime import Placement, place


def test_devices_are_found_by_their_number() -> None:
    """Logical CPUs where these are asked for; none where nothing is said."""
    assert place(DeviceOptions()) is None
    assert place(DeviceOptions(data_gpu=1, model_gpu=0, logical_cpu_devices=2)) == Placement(
        data="/CPU:1", model="/CPU:0"
    )
    assert place(DeviceOptions(data_gpu=1, model_gpu=1, logical_cpu_devices=2)) == Placement(
        data="/CPU:1", model="/CPU:1"
    )


def test_a_device_that_is_not_there_is_refused() -> None:
    """The sentence says which key, and what TensorFlow sees."""
    with pytest.raises(ValueError, match="model_gpu is 2, but TensorFlow sees 2 logical CPU devices, 0 to 1"):
        place(DeviceOptions(data_gpu=1, model_gpu=2, logical_cpu_devices=2))
    with pytest.raises(ValueError, match=r"data_gpu is 97, but TensorFlow sees \d GPUs"):
        place(DeviceOptions(data_gpu=97, model_gpu=98))
