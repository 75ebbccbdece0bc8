"""Trainer on images whose pipeline is written into its code, one after the other: what `scripts.bench code` tunes."""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

_WARM_UP_S = 4.0


def prepare(image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode one image, and change it a little."""
    pixels = tf.image.convert_image_dtype(tf.io.decode_jpeg(image), tf.float32)
    pixels = tf.image.random_flip_left_right(tf.image.resize(pixels, (64, 64)))
    return tf.image.random_brightness(pixels, 0.1), tf.reduce_mean(pixels)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    noise = tf.cast(tf.random.stateless_uniform((64, 256, 256, 3), (0, 0), 0, 256, tf.int32), tf.uint8)
    images = [tf.io.encode_jpeg(one) for one in noise]
    data = tf.data.Dataset.from_tensor_slices(images).repeat().map(prepare).batch(16)
    model = tf.keras.Sequential([tf.keras.layers.Conv2D(8, 3, 2), tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(1e-3)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(pixels: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(pixels)[:, 0] - target) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    began_s, samples = time.monotonic(), 0
    measured_s = began_s
    for pixels, target in data:
        train_step(pixels, target)
        now_s = time.monotonic()
        if now_s - began_s < _WARM_UP_S:
            measured_s = now_s
            continue
        samples += len(target)
        if now_s - began_s > options.seconds:
            print(f"{samples / (now_s - measured_s):.3f}", flush=True)
            os._exit(0)


if __name__ == "__main__":
    main()
