"""Trainer of TensorFlow, a loop of its own or Keras' fit, with one staged cause: ``tensorflow_trainer.py CONFIG``."""

import itertools
import sys
import time

import numpy as np
import tensorflow as tf
import yaml

with open(sys.argv[1]) as _file:
    CONFIG = yaml.safe_load(_file)
CAUSE, DATA, WIDTH = CONFIG["staged"], CONFIG["data"], CONFIG["model"]["width"]
SIZE, LABELS = 24, 10


def prepare(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One image with its label."""
    image = tf.reshape(tf.cast(number % 7, tf.float32) + tf.linspace(0.0, 1.0, SIZE * SIZE), (SIZE, SIZE, 1))
    if CAUSE in ("reading", "no_overlap", "python"):
        image = tf.ensure_shape(tf.numpy_function(_slow, [image], tf.float32), (SIZE, SIZE, 1))
    elif CAUSE in ("preparing", "refill"):
        for _ in range(12 if CAUSE == "preparing" else 3):
            image = tf.math.real(
                tf.signal.ifft2d(tf.signal.fft2d(tf.cast(tf.tile(image[..., 0], (4, 4)), tf.complex64)))
            )
            image = image[:SIZE, :SIZE, None]
    return image, tf.cast(number % LABELS, tf.int32)


def _slow(image: np.ndarray) -> np.ndarray:
    if CAUSE == "python":
        return np.array(
            [value * 0.5 + place % 3 for place, value in enumerate(image.ravel().tolist() * 4)], np.float32
        )[: SIZE * SIZE].reshape(SIZE, SIZE, 1)
    time.sleep(0.004 if CAUSE == "reading" else 0.0008)
    return image


def batches() -> tf.data.Dataset:
    """Endless batches, or those of a pass that begins by filling a buffer; made as the config says."""
    passes = CAUSE == "refill"
    data = tf.data.Dataset.range(2048 if passes else 1 << 40)
    data = data.map(prepare, num_parallel_calls=DATA["num_workers"], deterministic=True)
    data = data.shuffle(2048) if passes else data
    data = data.batch(DATA["batch_size"])
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return data.with_options(options).prefetch(DATA["prefetch"]) if DATA["prefetch"] else data.with_options(options)


def make_model() -> tf.keras.Model:
    """Many small layers, or few large ones."""
    width, depth = (8, 60) if CAUSE == "launches" else (WIDTH, 3)
    layers = [tf.keras.layers.Dense(width, "tanh") for _ in range(depth)]
    return tf.keras.Sequential([tf.keras.layers.Flatten(), *layers, tf.keras.layers.Dense(LABELS)])


def train_in_a_loop() -> None:
    """Train for ever, with a compiled step."""
    model, optimizer = make_model(), tf.keras.optimizers.SGD(0.01)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def update(images: tf.Tensor, labels: tf.Tensor, rate: float) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) * rate
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    step = update if CAUSE == "launches" else tf.function(update)
    evaluate = tf.function(lambda images: model(images, training=False))
    seen = np.empty(0, np.float32)
    data = batches()
    endless = itertools.chain.from_iterable(itertools.repeat(data)) if CAUSE == "refill" else data
    for number, (images, labels) in enumerate(endless):
        if CAUSE == "compiling" and number % 8 == 0:
            step(images, labels, 1.0 - 1e-6 * number)  # a Python number: traced anew for each
        else:
            step(images, labels, 1.0)
        if CAUSE == "stalls" and number % 40 == 39:
            np.save("/dev/null", np.sort(np.random.default_rng(0).random(3_000_000)))
        if CAUSE == "drift":
            seen = np.concatenate([seen, images.numpy().ravel()])
            seen.std()
        if CAUSE == "outside" and number % 60 == 59:
            for _ in range(300):
                evaluate(images).numpy()


class Sorting(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Something slow now and then."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Sort many numbers."""
        if batch % 40 == 39:
            np.sort(np.random.default_rng(0).random(3_000_000))


class Keeping(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Something that takes longer each time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = np.empty(0, np.float32)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Keep some numbers, and go through all of them."""
        self.seen = np.concatenate([self.seen, np.ones(4096, np.float32)])
        self.seen.std()


def train_with_fit() -> None:
    """Train for ever, with Keras."""
    model = make_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=CAUSE == "launches", jit_compile=CAUSE == "compiling")
    data = batches()
    if CAUSE == "compiling":
        data = data.unbatch().apply(_of_many_sizes)
    validation = data.take(200) if CAUSE == "outside" else None
    callbacks = [Sorting()] if CAUSE == "stalls" else [Keeping()] if CAUSE == "drift" else []
    model.fit(
        data,
        steps_per_epoch=None if CAUSE == "refill" else 100,
        epochs=1 << 20,
        validation_data=validation,
        callbacks=callbacks,
        verbose=0,
    )


def _of_many_sizes(data: tf.data.Dataset) -> tf.data.Dataset:
    def generate() -> object:
        rows = iter(data)
        while True:
            for size in (4 + 7 * number % 512 for number in range(512)):  # hardly one comes again within a trial
                images, labels = zip(*(next(rows) for _ in range(size)), strict=True)
                yield tf.stack(images), tf.stack(labels)

    shapes = (tf.TensorSpec((None, SIZE, SIZE, 1)), tf.TensorSpec((None,), tf.int32))
    return tf.data.Dataset.from_generator(generate, output_signature=shapes)


if __name__ == "__main__":
    (train_with_fit if CONFIG["training"]["fit"] else train_in_a_loop)()
