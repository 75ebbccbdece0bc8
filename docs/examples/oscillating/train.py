"""A training whose files lie far away: python train.py config.yaml"""

import sys
import time

import tensorflow as tf
import yaml

import gpu

FILES, SAMPLES = 64, 512


def config_of(path):
    with open(path) as file:
        return yaml.safe_load(file)


def open_file(number):
    """Opening a file on the network drive takes its time; then its samples come at once."""
    time.sleep(0.6)
    return tf.fill([SAMPLES, 64], float(number)).numpy()


def samples_of(number):
    samples = tf.numpy_function(open_file, [number], tf.float32)
    return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(samples, [SAMPLES, 64]))


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
