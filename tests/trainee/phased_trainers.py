"""Small trainers that report nothing, to be taken through phases; as a script, ``phased_trainers.py STYLE``.

They train in passes of 20 batches, until they have been through all phases, and know when their loader was asked for a
batch and when a step ended. A trainer that divides by the number of batches of a pass fails if it is given none.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCHES = 20
WIDTH = 16
MOST_STEPS = 3000


class Facts:
    """Times that a trainer knows of itself, and its end.

    Args:
        steps: Steps after which it ends; None is once it has begun the first phase for the second time, and drawn.
    """

    def __init__(self, steps: int | None = None) -> None:
        self.loads_s: list[float] = []
        self.steps_s: list[float] = []
        self.least = MOST_STEPS
        self._steps = steps
        self._folder = Path(os.environ["AUTOTUNE_TRIAL_DIR"])

    def load(self) -> None:
        """Count a batch that the loader makes."""
        time.sleep(0.001)
        self.loads_s.append(time.monotonic())

    def trained(self) -> bool:
        """Count a step; return whether to go on."""
        self.steps_s.append(time.monotonic())
        assert len(self.steps_s) < MOST_STEPS
        if self._steps is not None:
            return len(self.steps_s) < self._steps
        written = "".join(file.read_text() for file in self._folder.glob("steps.*"))
        return written.count('"phase": "replay"') < 2 or '"k": "load"' not in written

    def train(self, style: str) -> None:
        """Train in passes until it ends."""
        one_pass = STYLES[style](self)
        while True:
            before = len(self.steps_s)
            if one_pass() is False:
                return
            self.least = min(self.least, len(self.steps_s) - before)


def tf_dataset(facts: Facts) -> Any:
    """Return batches of three lengths, not prefetched."""
    import tensorflow as tf

    def batches() -> Iterator[Any]:
        for number in range(BATCHES):
            facts.load()
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


def compiled_step() -> Any:
    """Return a compiled training step."""
    import tensorflow as tf

    return tf.function(tf_step(), reduce_retracing=True)


def loop(facts: Facts) -> Any:
    """Loop in Python, which takes its batches apart, with validation over the same data."""
    step, dataset = compiled_step(), tf_dataset(facts)

    def one_pass() -> bool:
        for batch in dataset:
            step({name: batch.pop(name) for name in ("x", "y")})
            if not facts.trained():
                return False
        loads = len(facts.loads_s)
        validated = sum(1 for batch in dataset if batch["x"].shape[0])
        assert validated == BATCHES, validated
        del facts.loads_s[loads:]
        return True

    return one_pass


def reports(facts: Facts) -> Any:
    """Loop that reports its steps itself."""
    from autotune.trainee import step as report

    step, batches = compiled_step(), iter(tf_dataset(facts).repeat())

    def one_pass() -> bool:
        step(next(batches))
        report(samples=4)
        return facts.trained()

    return one_pass


def in_a_thread(facts: Facts) -> Any:
    """Loop whose batches are fetched by a thread of its own."""
    import queue
    import threading

    step, batches = compiled_step(), tf_dataset(facts).repeat()
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    is_over = threading.Event()

    def fetch() -> None:
        for batch in batches:
            ready.put(batch)
            if is_over.is_set():
                return

    thread = threading.Thread(target=fetch)
    thread.start()

    def one_pass() -> bool:
        step(ready.get())
        if facts.trained():
            return True
        is_over.set()
        thread.join()
        return False

    return one_pass


def next_inside(facts: Facts) -> Any:
    """Compiled step that fetches its batch itself."""
    import tensorflow as tf

    step, dataset = tf_step(), tf_dataset(facts)
    whole = tf.function(lambda batches: step(next(batches)))

    def one_pass() -> bool:
        batches = iter(dataset)
        try:
            while True:
                whole(batches)
                if not facts.trained():
                    return False
        except tf.errors.OutOfRangeError:
            return True

    return one_pass


def mirrored(facts: Facts) -> Any:
    """Loop over a dataset that is distributed over devices."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        step = tf_step()
    both = tf.function(lambda batch: strategy.run(step, args=(batch,)), reduce_retracing=True)
    dataset = strategy.experimental_distribute_dataset(tf_dataset(facts))

    def one_pass() -> bool:
        for batch in dataset:
            both(batch)
            if not facts.trained():
                return False
        return True

    return one_pass


def fit(facts: Facts, **options: Any) -> Any:
    """Keras's own loop."""
    import keras

    class Counter(keras.callbacks.Callback):  # type: ignore[misc]
        async_safe = True

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            self.model.stop_training = not facts.trained()

    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    dataset = tf_dataset(facts).map(lambda batch: (batch["x"], batch["y"]))
    return lambda: model.fit(dataset, epochs=10**6, verbose=0, callbacks=[Counter()]) is None


def fit_several(facts: Facts) -> Any:
    """The same, two steps in one call."""
    return fit(facts, steps_per_execution=2)


def own_batches(facts: Facts) -> Any:
    """Loop that makes its batches itself."""
    import tensorflow as tf

    step = compiled_step()

    def one_pass() -> bool:
        facts.load()
        step({"x": tf.ones((4, WIDTH)), "y": tf.ones((4, 1))})
        return facts.trained()

    return one_pass


def torch(facts: Facts, workers: int = 0) -> Any:
    """Loop over a ``DataLoader``, with validation over the same data, by a loader that keeps its iterator."""
    import torch as library

    class Rows:
        def __len__(self) -> int:
            return 4 * BATCHES

        def __getitem__(self, index: int) -> Any:
            if index % 4 == 0:
                facts.load()
            return {"x": library.ones(WIDTH), "y": library.ones(1)}

    library.set_num_threads(1)
    rows: Any = Rows()
    training, validation = (
        library.utils.data.DataLoader(rows, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(2)
    )
    model = library.nn.Linear(WIDTH, 1)
    optimizer = library.optim.SGD(model.parameters(), 0.01)

    def one_pass() -> bool:
        for batch in training:
            loss = library.nn.functional.mse_loss(model(batch.pop("x")), batch.pop("y"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not facts.trained():
                return False
        loads = len(facts.loads_s)
        assert sum(1 for _ in validation) == BATCHES
        del facts.loads_s[loads:]
        return True

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

if __name__ == "__main__":
    facts = Facts()
    facts.train(sys.argv[1])
    about = {"style": sys.argv[1], "pid": os.getpid(), "loads_s": facts.loads_s, "steps_s": facts.steps_s}
    print(json.dumps({**about, "least": facts.least}))
