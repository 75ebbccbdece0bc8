"""Trainer whose features and steps are waits: two devices overlap them, one device has them one after the other.

``python waiting_trainer.py CONFIG``; the devices are logical CPUs.
"""

import itertools
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf
import yaml

from autotune.tf.options import BufferOptions, DeviceOptions, RuntimeOptions
from autotune.tf.runtime import Placement, configure, place
from autotune.tf.two_stage import TwoStageFeed
from autotune.trainee import step

data = yaml.safe_load(Path(sys.argv[1]).read_text())["data"]
options = DeviceOptions(data_gpu=data["data_gpu"], model_gpu=data["model_gpu"], logical_cpu_devices=2)
configure(RuntimeOptions(), options)


def waiting(seconds: float, number: tf.Tensor) -> tf.Tensor:
    """The number, after that time."""

    def wait(value: np.int64) -> np.int64:
        time.sleep(seconds)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])


def features(_: dict[str, tf.Tensor], number: tf.Tensor) -> dict[str, tf.Tensor]:
    """Features that take their time."""
    return {"number": waiting(data["features_s"], number)}


placement = place(options)
one = tf.function(lambda number: waiting(data["step_s"], number), input_signature=[tf.TensorSpec([], tf.int64)])
if placement is None:
    compute = tf.function(features, autograph=False)
    for number in itertools.count():
        one(compute({}, tf.constant(np.array(number)))["number"])
        step(samples=8)
else:
    batches = tf.data.Dataset.range(1 << 40).map(lambda number: {"number": number})
    assert isinstance(placement, Placement)
    with TwoStageFeed(
        batches, features, placement, BufferOptions(batches=data["pipeline_buffer_size"]), work="number"
    ) as feed:
        for fetched in feed:
            with tf.device(placement.model):
                one(fetched.batch["number"])
            step(samples=8, wait_s=fetched.wait_s)
