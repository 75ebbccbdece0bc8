"""Small TensorFlow training for checks of an installation: python train.py config.yaml."""

import sys
import time

import numpy as np
import tensorflow as tf
import yaml


def load(number):
    """One sample, from a disk that takes its time."""
    time.sleep(0.002)
    return np.full(32, number, np.float32)


with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)["data"]
samples = tf.data.Dataset.range(64).repeat()
samples = samples.map(
    lambda number: tf.ensure_shape(tf.numpy_function(load, [number], tf.float32), [32]),
    num_parallel_calls=data["num_parallel_calls"],
)
weights = tf.Variable(tf.zeros([32, 1]))


@tf.function
def train(batch):
    """One step."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(batch @ weights - 1.0))
    weights.assign_sub(1e-6 * tape.gradient(loss, weights))
    return loss


for batch in samples.batch(data["batch_size"]):
    train(batch)
