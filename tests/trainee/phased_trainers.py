"""Small trainers of known speed that report nothing: ``phased_trainers.py STYLE... [--load-ms N] [--seconds N]``.

A batch takes ``--load-ms`` to load; a step takes next to nothing. Each style trains in passes of 20 batches, several of
them in forks of one process, and prints what it knows of itself. A trainer that divides by the number of batches of a
pass fails if it is given none. A script for any interpreter that has the framework.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

BATCHES = 20
WIDTH = 16


class Facts:
    """Numbers that a trainer knows of itself, and its end."""

    def __init__(self, style: str, arguments: argparse.Namespace) -> None:
        self.style = style
        self.load_s = arguments.load_ms / 1000
        self.seconds = arguments.seconds
        self.steps = 0
        self.passes: list[int] = []
        self.end_s = float("inf")

    def trained(self) -> bool:
        """Count a step; return whether to go on."""
        self.steps += 1
        if self.steps == 3:  # the first ones compile
            self.end_s = time.monotonic() + self.seconds
        return time.monotonic() < self.end_s

    def train(self, one_pass: Any) -> None:
        """Train in passes until the time is over, and print the numbers."""
        while time.monotonic() < self.end_s:
            before = self.steps
            one_pass()
            self.passes.append(self.steps - before)
        facts = {"style": self.style, "pid": os.getpid(), "steps": self.steps, "least": min(self.passes[:-1] or [1])}
        print("\n" + json.dumps(facts), flush=True)


def tf_dataset(facts: Facts) -> Any:
    """Return batches of three lengths, not prefetched."""
    import tensorflow as tf

    def batches() -> Iterator[Any]:
        for number in range(BATCHES):
            time.sleep(facts.load_s)
            size = 4 + number % 3
            yield {"x": tf.ones((size, WIDTH)), "y": tf.ones((size, 1))}

    signature = {"x": tf.TensorSpec((None, WIDTH), tf.float32), "y": tf.TensorSpec((None, 1), tf.float32)}
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)


def tf_step() -> Any:
    """Return a training step in Python."""
    import tensorflow as tf

    weights = tf.Variable(tf.ones((WIDTH, 1)))

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch["x"] @ weights - batch["y"]))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return step


def loop(facts: Facts) -> Any:
    """Loop in Python, which takes its batches apart, with validation over the same data."""
    import tensorflow as tf

    step, dataset = tf.function(tf_step(), reduce_retracing=True), tf_dataset(facts)

    def one_pass() -> None:
        for batch in dataset:
            step({name: batch.pop(name) for name in ("x", "y")})
            if not facts.trained():
                return
        validated = sum(1 for batch in dataset if batch["x"].shape[0])
        assert validated == BATCHES, validated

    return one_pass


def reports(facts: Facts) -> Any:
    """Loop that reports its steps itself."""
    import tensorflow as tf

    from autotune.trainee import step as report

    step, batches = tf.function(tf_step(), reduce_retracing=True), iter(tf_dataset(facts).repeat())

    def one_pass() -> None:
        step(next(batches))
        report(samples=4)
        facts.trained()

    return one_pass


def in_a_thread(facts: Facts) -> Any:
    """Loop whose batches are fetched by a thread of its own."""
    import queue
    import threading

    import tensorflow as tf

    step, batches = tf.function(tf_step(), reduce_retracing=True), tf_dataset(facts).repeat()
    ready: queue.Queue[Any] = queue.Queue(2)

    def fetch() -> None:
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fetch, daemon=True).start()

    def one_pass() -> None:
        step(ready.get())
        facts.trained()

    return one_pass


def next_inside(facts: Facts) -> Any:
    """Compiled step that fetches its batch itself."""
    import tensorflow as tf

    step, dataset = tf_step(), tf_dataset(facts)
    whole = tf.function(lambda batches: step(next(batches)))

    def one_pass() -> None:
        batches = iter(dataset)
        try:
            while True:
                whole(batches)
                if not facts.trained():
                    return
        except tf.errors.OutOfRangeError:
            pass

    return one_pass


def mirrored(facts: Facts) -> Any:
    """Loop over a dataset that is distributed over devices."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        step = tf_step()
    both = tf.function(lambda batch: strategy.run(step, args=(batch,)), reduce_retracing=True)
    dataset = strategy.experimental_distribute_dataset(tf_dataset(facts))

    def one_pass() -> None:
        for batch in dataset:
            both(batch)
            if not facts.trained():
                return

    return one_pass


def fit(facts: Facts, **options: Any) -> Any:
    """Keras's own loop, with validation."""
    import keras

    class Counter(keras.callbacks.Callback):  # type: ignore[misc]
        async_safe = True

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            self.model.stop_training = not facts.trained()

    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    dataset = tf_dataset(facts).map(lambda batch: (batch["x"], batch["y"]))
    validation = dataset.take(2)
    return lambda: model.fit(dataset, epochs=10**6, verbose=0, callbacks=[Counter()], validation_data=validation)


def fit_several(facts: Facts) -> Any:
    """The same, two steps in one call."""
    return fit(facts, steps_per_execution=2)


def own_batches(facts: Facts) -> Any:
    """Loop that makes its batches itself."""
    import tensorflow as tf

    step = tf.function(tf_step(), reduce_retracing=True)

    def one_pass() -> None:
        time.sleep(facts.load_s)
        step({"x": tf.ones((4, WIDTH)), "y": tf.ones((4, 1))})
        facts.trained()

    return one_pass


def torch(facts: Facts, workers: int = 0) -> Any:
    """Loop over a ``DataLoader``, with validation over the same data, by a loader that keeps its iterator."""
    import torch as library

    class Rows:
        def __len__(self) -> int:
            return 4 * BATCHES

        def __getitem__(self, index: int) -> Any:
            if index % 4 == 0:
                time.sleep(facts.load_s)
            return {"x": library.ones(WIDTH), "y": library.ones(1)}

    library.set_num_threads(1)
    rows: Any = Rows()
    training, validation = (
        library.utils.data.DataLoader(rows, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(2)
    )
    model = library.nn.Linear(WIDTH, 1)
    optimizer = library.optim.SGD(model.parameters(), 0.01)

    def one_pass() -> None:
        for batch in training:
            loss = library.nn.functional.mse_loss(model(batch.pop("x")), batch.pop("y"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not facts.trained():
                return
        assert sum(1 for _ in validation) == BATCHES

    return one_pass


def torch_workers(facts: Facts) -> Any:
    """The same with workers."""
    return torch(facts, workers=2)


STYLES = {
    each.__name__: each
    for each in (
        *(loop, reports, in_a_thread, next_inside, mirrored, fit, fit_several, own_batches),
        *(torch, torch_workers),
    )
}


def main() -> None:
    """Train in one style, or in several, each in a fork of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("styles", nargs="+", choices=STYLES, metavar="STYLE")
    parser.add_argument("--load-ms", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--break", dest="broken", action="store_true", help="have the observer's phases fail")
    arguments = parser.parse_args()
    if arguments.broken:
        fails = {"rotate": property(lambda self: self.there_is_no_such_thing)}
        sys.modules["_autotune_trainee.phases"].deque = type("Broken", (deque,), fails)  # type: ignore[attr-defined]
    framework = "torch" if arguments.styles[0].startswith("torch") else "keras"
    __import__(framework)
    for style in arguments.styles:
        child = os.fork() if len(arguments.styles) > 1 else 0
        if child == 0:
            facts = Facts(style, arguments)
            facts.train(STYLES[style](facts))
            return
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{style} failed")


if __name__ == "__main__":
    main()
