"""A training whose files lie far away: python train.py config.yaml"""

import sys

import tensorflow as tf
import yaml
from tensorflow.python.data.experimental.ops import testing

import gpu

FILES, SAMPLES, OPENING_US = 64, 256, 500_000


def config_of(path):
    with open(path) as file:
        return yaml.safe_load(file)


def samples_of(number):
    """Opening a file on the network drive takes its time; then its samples come at once."""
    file = tf.data.Dataset.from_tensors(tf.fill([SAMPLES, 64], tf.cast(number, tf.float32)))
    return file.apply(testing.sleep(OPENING_US)).unbatch()


def dataset_of(data):
    files = tf.data.Dataset.range(FILES).repeat()
    samples = files.interleave(
        samples_of, cycle_length=data["num_workers"], block_length=SAMPLES, num_parallel_calls=data["num_workers"]
    )
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # prefetch: 0 shall mean none
    return samples.batch(data["batch_size"]).prefetch(data["prefetch"]).with_options(options)


def main(config):
    for batch in dataset_of(config["data"]):
        gpu.train_on(batch)


if __name__ == "__main__":
    main(config_of(sys.argv[1]))
