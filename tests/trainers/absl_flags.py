"""A trainer with absl's flags, as many of TensorFlow's models have them: ``python train.py --batch_size=8``."""

import time

from absl import app, flags

from autotune.trainee import step

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 8, "Samples in a batch.", lower_bound=1)
flags.DEFINE_boolean("cache", False, "Whether the data are kept in memory.")


def main(_argv: list[str]) -> None:
    """Trains until it is stopped."""
    step_s = (0.008 + 0.0002 * FLAGS.batch_size) * (0.7 if FLAGS.cache else 1.0)
    for _ in range(100_000):
        time.sleep(step_s)
        step(samples=FLAGS.batch_size)


if __name__ == "__main__":
    app.run(main)
