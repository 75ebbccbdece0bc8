"""Small trainers in common styles: ``python observed_trainers.py STYLE... [options]``; see `main`.

A script for any interpreter that has the framework, for the benchmark and the tests of the observer. Nothing in here
reports steps. Each style prints its own numbers as a line of JSON: the steps that an observer should have seen, or,
with ``--turns``, the observer's cost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

WIDTH = 64
READING_S = 0.3
"""Time within which a reader has read the steps: it looks four times a second."""

Epoch = Callable[[], object]


class Facts:
    """Numbers that a trainer measures of itself."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.steps: int = arguments.steps
        self.batch: int = arguments.batch
        self.sleep_s: float = arguments.sleep_ms / 1000
        self.pauses: bool = arguments.pauses
        self.waited_s: float | None = 0.0

    def load(self, number: int) -> int:
        """Wait as long as loading a batch takes, and return its size; the last batch is only half full."""
        if self.sleep_s:
            begin_s = time.monotonic()
            time.sleep(self.sleep_s)
            if self.waited_s is not None:
                self.waited_s += time.monotonic() - begin_s
        size = self.batch - (self.batch // 2 if number == self.steps - 1 else 0)
        return size

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the same batches and measure the waits for them, which is more exact than adding up the loads."""
        waited_s, self.waited_s = self.waited_s, None
        assert waited_s is not None
        iterator = iter(batches)
        while True:
            begin_s = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            waited_s += time.monotonic() - begin_s
            yield batch
        self.waited_s = waited_s

    def arrays(self) -> Iterator[Any]:
        """Yield batches as NumPy arrays, made by a generator."""
        import numpy as np

        x, y = np.ones((self.batch, WIDTH), "float32"), np.ones((self.batch, 1), "float32")
        for number in range(self.steps):
            size = self.load(number)
            yield x[:size], y[:size]


# TensorFlow.


def tf_dataset(facts: Facts) -> Any:
    """Return a dataset without prefetching."""
    import tensorflow as tf

    if facts.sleep_s:
        signature = (tf.TensorSpec((None, WIDTH), tf.float32), tf.TensorSpec((None, 1), tf.float32))
        dataset = tf.data.Dataset.from_generator(facts.arrays, output_signature=signature)
    else:
        rows = facts.steps * facts.batch
        dataset = tf.data.Dataset.from_tensor_slices((tf.ones((rows, WIDTH)), tf.ones((rows, 1)))).batch(facts.batch)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    return dataset.with_options(options)


def tf_step() -> tuple[Any, Any, Any]:
    """Return a model of plain variables, and its training step."""
    import tensorflow as tf

    weights = tf.Variable(tf.random.stateless_normal((WIDTH, 1), (1, 2)))

    def loss_of(x: Any, y: Any) -> Any:
        return tf.reduce_mean(tf.square(x @ weights - y))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    return step, loss_of, weights


def tf_loop(facts: Facts, *, compiled: bool) -> Epoch:
    """Loop over a dataset, with validation and checkpoints if asked for."""
    import tensorflow as tf

    step, loss_of, weights = tf_step()
    if compiled:
        step, loss_of = tf.function(step, reduce_retracing=True), tf.function(loss_of, reduce_retracing=True)
    dataset, validation = (
        tf_dataset(facts),
        tf.data.Dataset.from_tensor_slices((tf.ones((32, WIDTH)), tf.ones((32, 1)))).batch(4),
    )
    checkpoint = tf.train.Checkpoint(weights=weights)

    def epoch() -> None:
        for x, y in facts.timed(dataset):
            step(x, y)
        if facts.pauses:
            for x, y in validation:
                loss_of(x, y)
            checkpoint.write(os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "outputs", "checkpoint"))

    return epoch


def tf_next_inside(facts: Facts) -> Epoch:
    """Train with a compiled function that fetches its batch itself."""
    import tensorflow as tf

    step, _, _ = tf_step()
    dataset = tf_dataset(facts)

    @tf.function  # type: ignore[untyped-decorator]
    def fetch_and_step(iterator: Any) -> Any:
        return step(*next(iterator))

    def epoch() -> None:
        iterator = iter(dataset)
        for _ in range(facts.steps):
            fetch_and_step(iterator)

    return epoch


def tf_loop_inside(facts: Facts) -> Epoch:
    """Train a whole pass over the data in one compiled function."""
    import tensorflow as tf

    step, _, _ = tf_step()

    @tf.function  # type: ignore[untyped-decorator]
    def whole_pass(dataset: Any) -> None:
        for x, y in dataset:
            step(x, y)

    dataset = tf_dataset(facts)
    return lambda: whole_pass(dataset)


def tf_arrays(facts: Facts) -> Epoch:
    """Train with a compiled step and batches from the user's own generator."""
    import tensorflow as tf

    step, _, _ = tf_step()
    step = tf.function(step, reduce_retracing=True)

    def epoch() -> None:
        for x, y in facts.arrays():
            step(tf.constant(x), tf.constant(y))

    return epoch


def tf_strategy(devices: int) -> Any:
    """Return a strategy with that many replicas on one machine."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(devices)])


def tf_mirrored(facts: Facts, *, compiled: bool) -> Epoch:
    """Train two replicas on one machine, in the user's own loop."""
    import tensorflow as tf

    strategy = tf_strategy(2)
    with strategy.scope():
        weights = tf.Variable(tf.ones((WIDTH, 1)))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - y))
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.01 * gradient)
        return loss

    def both(batch: Any) -> Any:
        return strategy.run(step, args=batch)

    if compiled:
        both = tf.function(both, reduce_retracing=True)
    dataset = strategy.experimental_distribute_dataset(tf_dataset(facts))

    def epoch() -> None:
        for batch in facts.timed(dataset):
            both(batch)

    return epoch


# Keras.


def keras_model(keras: Any, **options: Any) -> Any:
    """Return a compiled model."""
    model = keras.Sequential([keras.layers.Input((WIDTH,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def keras_fit(facts: Facts, *, devices: int = 1, **options: Any) -> Epoch:
    """Train with ``fit``, one epoch at a time."""
    import tensorflow as tf

    keras = tf.keras
    if devices > 1:
        with tf_strategy(devices).scope():
            model = keras_model(keras, **options)
    else:
        model = keras_model(keras, **options)
    dataset = tf_dataset(facts)
    validation = tf.data.Dataset.from_tensor_slices((tf.ones((32, WIDTH)), tf.ones((32, 1)))).batch(4)

    def epoch() -> None:
        model.fit(dataset, verbose=0, validation_data=validation if facts.pauses else None)
        if devices > 1:
            facts.waited_s = None  # TensorFlow fetches for several devices in the background

    return epoch


def keras_on_batch(facts: Facts) -> Epoch:
    """Train with ``train_on_batch``, on batches from the user's own generator."""
    import tensorflow as tf

    model = keras_model(tf.keras)

    def epoch() -> None:
        for x, y in facts.arrays():
            model.train_on_batch(x, y)

    return epoch


# PyTorch.


def torch_loader(facts: Facts, *, workers: int, loader: bool = True) -> Epoch:
    """Loop over a ``DataLoader``, with validation and checkpoints if asked for; or over a generator."""
    torch = import_module("torch")

    class Rows:
        def __len__(self) -> int:
            return facts.steps * facts.batch - facts.batch // 2

        def __getitem__(self, index: int) -> Any:
            if facts.sleep_s and index % facts.batch == 0:
                time.sleep(facts.sleep_s)
            return torch.ones(WIDTH), torch.ones(1)

    torch.set_num_threads(1)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = torch.utils.data.DataLoader(Rows(), batch_size=facts.batch, num_workers=workers)

    def train(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    def epoch() -> None:
        if not loader:
            for x, y in facts.arrays():
                train(torch.from_numpy(x), torch.from_numpy(y))
            return
        for batch in facts.timed(batches):
            train(*batch)
        if facts.pauses:
            with torch.no_grad():
                for x, _ in torch.utils.data.DataLoader(Rows(), batch_size=facts.batch):
                    model(x)
            torch.save(model.state_dict(), os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "outputs", "model.pt"))

    return epoch


# JAX.


def jax_loop(facts: Facts) -> Epoch:
    """Run a compiled step over a dataset of ``tf.data``."""
    jax = import_module("jax")
    dataset = tf_dataset(facts)

    @jax.jit  # type: ignore[untyped-decorator]
    def step(weights: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda weights: ((x @ weights - y) ** 2).mean())(weights)
        return weights - 0.01 * gradient

    weights = jax.numpy.ones((WIDTH, 1))

    def epoch() -> None:
        nonlocal weights
        for x, y in dataset.as_numpy_iterator():
            weights = step(weights, x, y)

    return epoch


STYLES: dict[str, Callable[[Facts], Epoch]] = {
    "fit": keras_fit,
    "fit-several-steps": lambda facts: keras_fit(facts, steps_per_execution=4),
    "fit-xla": lambda facts: keras_fit(facts, jit_compile=True),
    "fit-eager": lambda facts: keras_fit(facts, run_eagerly=True),
    "fit-mirrored": lambda facts: keras_fit(facts, devices=2),
    "train-on-batch": keras_on_batch,
    "loop-compiled": lambda facts: tf_loop(facts, compiled=True),
    "loop-eager": lambda facts: tf_loop(facts, compiled=False),
    "loop-mirrored": lambda facts: tf_mirrored(facts, compiled=True),
    "loop-mirrored-eager": lambda facts: tf_mirrored(facts, compiled=False),
    "loop-own-batches": tf_arrays,
    "next-inside": tf_next_inside,
    "loop-inside": tf_loop_inside,
    "torch": lambda facts: torch_loader(facts, workers=0),
    "torch-workers": lambda facts: torch_loader(facts, workers=2),
    "torch-own-batches": lambda facts: torch_loader(facts, workers=0, loader=False),
    "jax": jax_loop,
}


def run(style: str, arguments: argparse.Namespace) -> None:
    """Train, and print the facts."""
    facts = Facts(arguments)
    epoch = STYLES[style](facts)
    for _ in range(arguments.epochs):
        epoch()
    half = facts.batch // 2 if facts.sleep_s or "torch" in style else 0
    about = {
        "style": style,
        "pid": os.getpid(),
        "steps": facts.steps * arguments.epochs,
        "samples": (facts.steps * facts.batch - half) * arguments.epochs,
        "waited_s": facts.waited_s,
    }
    print("\n" + json.dumps(about), flush=True)


def run_in_turns(style: str, arguments: argparse.Namespace) -> None:
    """Train many epochs, alternately with and without the observer, and print the time of each.

    There is a trainer for each, since compiled functions keep the state in which they were compiled. Two processes
    would differ by more than the cost: in memory layout, and in the machine's other load.
    """
    trainers: dict[bool, Epoch] = {}
    epochs_s: dict[bool, list[float]] = {}
    for observed in (True, False):
        _observe(observed)
        facts = Facts(arguments)
        trainers[observed], epochs_s[observed] = STYLES[style](facts), []
        for _ in range(2):
            trainers[observed]()
    for turn in range(arguments.turns):
        for observed in (turn % 2 == 0, turn % 2 != 0):  # ABBA: neither is always the first
            _observe(observed)
            begin_s = time.monotonic()
            trainers[observed]()
            epochs_s[observed].append(time.monotonic() - begin_s)
            time.sleep(READING_S)
    pairs_s = [(epochs_s[True][turn], epochs_s[False][turn]) for turn in range(arguments.turns)]
    own_s = Stopwatch().time(trainers[True], arguments.turns)
    print("\n" + json.dumps({"style": style, "pairs_s": pairs_s, "own_s": own_s}), flush=True)


class Stopwatch:
    """Timer of the observer's functions besides the framework's own, in the places where both are."""

    def __init__(self) -> None:
        self._own_s = 0.0
        self._ways: dict[bool, list[tuple[Any, str, Any]]] = {True: [], False: []}
        for place in _places():
            original = self._timed(place.original, -1.0)
            self._ways[True].append((place.owner, place.name, self._timed(place.ours, 1.0)))
            self._ways[False].append((place.owner, place.name, self._timed(_like(original), 1.0)))
            for cell in _cells_with(place.original, place.ours):
                cell.cell_contents = original

    def time(self, epoch: Epoch, turns: int) -> list[float]:
        """Return the seconds that each epoch spends in them, less those of plain forwarding functions."""
        own_s = []
        for _ in range(turns):
            taken_s = {}
            for observed, functions in self._ways.items():
                for owner, name, function in functions:
                    setattr(owner, name, function)
                self._own_s = 0.0
                epoch()
                taken_s[observed] = self._own_s
            own_s.append(taken_s[True] - taken_s[False])
        return own_s

    def _timed(self, function: Callable[..., Any], sign: float) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._own_s += sign * (time.perf_counter() - begin_s)

        return timed


def _like(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: original(*args, **kwargs)


def _cells_with(original: Callable[..., Any], function: Any) -> Iterator[Any]:
    """Yield the cells by which an observer function, or one that it may call, refers to the framework's."""
    for cell in function.__closure__ or ():
        if cell.cell_contents is original:
            yield cell
        elif getattr(cell.cell_contents, "__wrapped__", None) is original:
            yield from _cells_with(original, cell.cell_contents)


def _places() -> list[Any]:
    return [
        place
        for instrumentation in sys.modules["_autotune_trainee.observe"].installed
        for place in instrumentation.replaced
    ]


def _observe(on: bool) -> None:
    """Install the observer's functions in place of the framework's, or restore these."""
    for place in _places():
        setattr(place.owner, place.name, place.ours if on else place.original)


def main() -> None:
    """Train in one style, or in several, each in a fork of this process after the requested imports."""
    parser = argparse.ArgumentParser()
    parser.add_argument("styles", nargs="+", choices=STYLES, metavar="STYLE")
    parser.add_argument("--steps", type=int, default=20, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sleep-ms", type=float, default=20.0, help="what loading a batch takes")
    parser.add_argument("--pauses", action="store_true", help="validation and checkpoints")
    parser.add_argument("--turns", type=int, default=0, help="epochs with the observer, and as many without")
    parser.add_argument("--imports", default="", help="before the forks")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    train = run_in_turns if arguments.turns else run
    if len(arguments.styles) == 1:
        train(arguments.styles[0], arguments)
        return
    for package in filter(None, arguments.imports.split(",")):
        __import__(package)
    for style in arguments.styles:
        child = os.fork()
        if child == 0:
            train(style, arguments)
            return
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{style} failed")


if __name__ == "__main__":
    main()
