"""A small Keras training by `fit`, with a `tf.data` pipeline whose Python code AutoGraph converts while it runs."""

import sys

import keras
import tensorflow as tf
import yaml

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)["data"]


def augment(number):
    """One sample; the `if` is converted by AutoGraph."""
    scale = tf.cast(number, tf.float32) / 1000.0
    if scale > 0.5:
        scale = 1.0 - scale
    return tf.fill([16], scale), scale


samples = tf.data.Dataset.range(1000).repeat().map(augment, num_parallel_calls=data["num_parallel_calls"])
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(samples.batch(data["batch_size"]), steps_per_epoch=1_000_000, verbose=0)
