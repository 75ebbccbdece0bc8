"""A trainer with a loop of its own around a compiled step of TensorFlow, with a loss of its own."""

import sys
from pathlib import Path

import tensorflow as tf
import yaml

config = yaml.safe_load(Path(sys.argv[1]).read_text())
layers = tf.keras.Sequential([tf.keras.layers.Dense(512, activation="relu") for _ in range(3)])
optimizer = tf.keras.optimizers.Adam()
batches = tf.data.Dataset.from_tensors(tf.ones((256, 512))).repeat().prefetch(2)


@tf.function
def train_step(batch: tf.Tensor) -> tf.Tensor:
    """Trains on one batch."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(layers(batch) - batch))
    gradients = tape.gradient(loss, layers.trainable_variables)
    optimizer.apply_gradients(zip(gradients, layers.trainable_variables, strict=True))
    return loss


for number, batch in enumerate(batches):
    loss = train_step(batch)
    if number % config["log_every"] == 0:
        print(float(loss), flush=True)
