"""The model of this training: one small layer, and a stand-in for a GPU that is busy with it."""

import os
import time

import tensorflow as tf
from busy_writer import BusyWriter  # of the tests' GPU

_KERNELS_S, _SAMPLE_S = 0.002, 0.0003
_writer = BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"], memory_bytes=9 << 30)
_weights = tf.Variable(tf.zeros([64, 1]))


@tf.function
def _learn(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch @ _weights - batch[:, :1]) ** 2)
    _weights.assign_sub(1e-6 * tape.gradient(loss, _weights))


def train_on(batch):
    """One step: the GPU works for a moment, and for each sample."""
    begin_s = time.monotonic()
    end_s = begin_s + _KERNELS_S + _SAMPLE_S * int(batch.shape[0])
    _writer.kernel(begin_s, end_s)
    _learn(batch)
    time.sleep(max(0.0, end_s - time.monotonic()))
