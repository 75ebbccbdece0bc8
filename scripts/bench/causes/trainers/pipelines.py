"""Input pipelines over tf.data, each of which loads its samples in another way."""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from scripts.bench.causes.trainers.recipe import Recipe

_SAMPLES = 1 << 40  # of an epoch that never ends
_IMAGE = 64
_FILES = 2000
_READ_BYTES = 4096
_BLOCK = 200_000  # numbers of the TensorFlow map


def batches_of(recipe: Recipe) -> Any:
    """Return the dataset: batches of features, float32 of shape (batch, width)."""
    samples = recipe.epoch_batches * recipe.batch_size or _SAMPLES
    if recipe.load == "generator":
        dataset = tf.data.Dataset.from_generator(
            partial(_generated, recipe, samples), output_signature=tf.TensorSpec([recipe.width], tf.float32)
        )
    elif recipe.load == "memory":
        dataset = tf.data.Dataset.range(samples // recipe.batch_size)
        features = tf.random.stateless_normal([recipe.batch_size, recipe.width], (0, 1))
        dataset = dataset.map(lambda number: features + 1e-9 * tf.cast(number, tf.float32))
    else:
        load = LOADERS[recipe.load](recipe)
        dataset = tf.data.Dataset.range(samples).map(load, num_parallel_calls=recipe.parallel or None)
    if recipe.shuffle:
        dataset = dataset.shuffle(recipe.shuffle)
    if recipe.load != "memory":
        dataset = dataset.batch(recipe.batch_size, drop_remainder=True)
    if recipe.prefetch:
        dataset = dataset.prefetch(recipe.prefetch)
    options = tf.data.Options()
    # Else tf.data loads ahead by itself: a map that is fused with its batches runs while training does.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_and_batch_fusion = False
    # Else loading takes the threads that the step's operations are to run on, as many as there are cores.
    options.threading.private_threadpool_size = 4
    return dataset.with_options(options)


def busy(duration_s: float) -> None:
    """Compute in Python for a time: CPU time, since neighbours must not make it less work."""
    ends_s = time.thread_time() + duration_s
    while time.thread_time() < ends_s:
        sum(range(200))


def _generated(recipe: Recipe, samples: int) -> Iterator[Any]:
    features = np.ones(recipe.width, np.float32)
    for _ in range(samples):
        busy(recipe.load_ms / 1000)
        yield features


def _python(recipe: Recipe, *, work: Callable[[float], None]) -> Callable[[Any], Any]:
    """Load in a Python function that takes its time."""
    features = np.ones(recipe.width, np.float32)

    def load(_number: Any) -> Any:
        work(recipe.load_ms / 1000)
        return features

    return lambda number: tf.ensure_shape(tf.numpy_function(load, [number], tf.float32), [recipe.width])


def _py_function(recipe: Recipe) -> Callable[[Any], Any]:
    """Load by operations of TensorFlow that are carried out one by one from Python."""

    def load(number: Any) -> Any:
        features = tf.ones([recipe.width])
        ends_s = time.thread_time() + recipe.load_ms / 1000
        while time.thread_time() < ends_s:
            features = tf.math.sin(features) + 0.0 * tf.cast(number, tf.float32)
        return features

    return lambda number: tf.ensure_shape(tf.py_function(load, [number], tf.float32), [recipe.width])


def _tensorflow(recipe: Recipe) -> Callable[[Any], Any]:
    """Load by operations of TensorFlow in the pipeline's graph; `load_ms` is about what they take."""
    rounds = max(1, round(recipe.load_ms))

    def load(number: Any) -> Any:
        values = tf.ones([_BLOCK]) * tf.cast(number % 7, tf.float32)
        for _ in range(rounds):
            values = tf.math.sin(values)
        return values[: recipe.width]

    return load


def _decode(recipe: Recipe) -> Callable[[Any], Any]:
    """Decode a JPEG of `amount` pixels a side."""
    pixels = tf.random.stateless_uniform([recipe.amount, recipe.amount, 3], (0, 1), maxval=255, dtype=tf.int32)
    encoded = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8))

    def load(number: Any) -> Any:
        # With the number, for the result not to be one constant that is computed once.
        text = tf.strings.join([encoded, tf.strings.as_string(number)])
        image = tf.io.decode_jpeg(text, channels=3, try_recover_truncated=True)
        return tf.cast(tf.reshape(image, [-1])[: recipe.width], tf.float32) / 255.0

    return load


def _augment(recipe: Recipe) -> Callable[[Any], Any]:
    """Augment an image `amount` times over."""
    picture = tf.random.stateless_uniform([_IMAGE, _IMAGE, 3], (0, 1))

    def load(number: Any) -> Any:
        image = picture + 1e-9 * tf.cast(number, tf.float32)
        for _ in range(recipe.amount):
            image = tf.image.random_flip_left_right(image)
            image = tf.image.random_hue(image, 0.1)
            image = tf.image.random_contrast(image, 0.8, 1.2)
            image = tf.image.resize(tf.image.random_crop(image, [_IMAGE - 8, _IMAGE - 8, 3]), [_IMAGE, _IMAGE])
        return tf.reshape(image, [-1])[: recipe.width]

    return load


def _throttled(recipe: Recipe) -> Callable[[Any], Any]:
    """Read from a file whose disk gives `_READ_BYTES` in `load_ms`."""
    path = Path(tempfile.mkdtemp()) / "samples"
    path.write_bytes(bytes(_READ_BYTES) * _FILES)
    file = path.open("rb", buffering=0)

    def load(number: Any) -> Any:
        begin_s = time.monotonic()
        file.seek(int(number) % _FILES * _READ_BYTES)
        raw = file.read(_READ_BYTES)
        time.sleep(max(0.0, recipe.load_ms / 1000 - (time.monotonic() - begin_s)))
        return np.frombuffer(raw, np.uint8, recipe.width).astype(np.float32)

    return lambda number: tf.ensure_shape(tf.numpy_function(load, [number], tf.float32), [recipe.width])


def _many_files(recipe: Recipe) -> Callable[[Any], Any]:
    """Read `amount` tiny files for each sample."""
    folder = Path(tempfile.mkdtemp())
    for number in range(_FILES):
        (folder / f"{number}.bin").write_bytes(bytes(4 * recipe.width))

    def load(number: Any) -> Any:
        total = tf.zeros([recipe.width])
        for part in range(recipe.amount):
            name = tf.strings.as_string((number * recipe.amount + part) % _FILES)
            raw = tf.io.read_file(tf.strings.join([str(folder), "/", name, ".bin"]))
            total += tf.ensure_shape(tf.io.decode_raw(raw, tf.float32), [recipe.width])
        return total

    return load


LOADERS: dict[str, Callable[[Recipe], Callable[[Any], Any]]] = {
    "python": partial(_python, work=busy),
    "slow disk": partial(_python, work=time.sleep),
    "py_function": _py_function,
    "tensorflow": _tensorflow,
    "decode": _decode,
    "augment": _augment,
    "throttled": _throttled,
    "many files": _many_files,
}
"""Ways to load a sample, by their name in a recipe; ``memory`` and ``generator`` are no maps, see `batches_of`."""
