"""Trainers that report steps themselves, or whose observer is broken: one import of TensorFlow, a fork for each case.

Each prints its facts like those of observed_trainers.py, with the case as its style.
"""

import importlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from autotune.trainee import step
from scripts.bench.overhead import observer as observe

sys.path.insert(0, str(Path(observe.__file__).parent))
import observed_trainers as trainers

STEPS = 6
BREAKABLE = (
    "steps.StepMaker.fetched",
    "loop.Loop.digest",
    "steps.StepMaker.take",
    "loop.AggregatedSteps.ended",
    "tensorflow_graphs.GraphFetches.take",
    "report.Report.flush",
    "stream.Stream.write",
)


def facts() -> trainers.Facts:
    """A trainer without sleep, with validation and checkpoints."""
    return trainers.Facts(Namespace(steps=STEPS, batch=8, sleep_ms=0.0, pauses=True))


def reports_in_fit() -> None:
    """A callback that reports what ``fit`` does."""

    class Reports(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            step(samples=100)

    model = trainers.keras_model(tf.keras)
    model.fit(trainers.tf_dataset(facts()), verbose=0, callbacks=[Reports()])


def reports_in_loop() -> None:
    """A loop that reports itself."""
    train, _, _ = trainers.tf_step()
    train = tf.function(train)
    for x, y in trainers.tf_dataset(facts()):
        train(x, y)
        step(samples=100)


def reports_inside() -> None:
    """A loop inside one tf.function, with the line that the observer asks for."""
    train, _, _ = trainers.tf_step()

    @tf.function
    def whole_pass(dataset: tf.data.Dataset) -> None:
        for x, y in dataset:
            train(x, y)
            tf.py_function(lambda: step(samples=100) and None, [], [])

    whole_pass(trainers.tf_dataset(facts()))


def takes_graph_gradients() -> None:
    """A compiled step that takes its gradients without a tape."""
    weights = tf.Variable(tf.ones((trainers.WIDTH, 1)))

    @tf.function(reduce_retracing=True)
    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
        (gradient,) = tf.gradients(loss, [weights])
        weights.assign_sub(0.01 * gradient)
        return loss

    for x, y in trainers.tf_dataset(facts()):
        train(x, y)


def fetches_in_a_graph_of_tensorflow_1() -> None:
    """Compiled functions within a graph: what counts their batches would have to be initialized by the session."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = trainers.tf_dataset(facts())
        total = tf.function(lambda: dataset.reduce(0.0, lambda sum, rows: sum + tf.reduce_sum(rows[0])))()
        iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
        first = tf.function(lambda: iterator.get_next()[0])()
        session.run([total, first])


def trains_with_broken(what: str) -> None:
    """A part of the observer raises at every call."""
    module, owner, name = what.split(".")
    part = getattr(importlib.import_module(f"_autotune_trainee.{module}"), owner)

    def breaks(*args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{what} is broken")

    setattr(part, name, breaks)
    trainers.tf_loop(facts(), compiled=True)()
    trainers.tf_next_inside(facts())()
    if owner in ("AggregatedSteps", "GraphFetches", "Stream"):
        trainers.keras_fit(facts(), steps_per_execution=2)()


def main() -> None:
    """Makes all cases, one after the other."""
    cases: dict[str, Callable[[], None]] = {
        "reports in fit": reports_in_fit,
        "reports in loop": reports_in_loop,
        "reports inside": reports_inside,
        "graph gradients": takes_graph_gradients,
        "a graph of TensorFlow 1": fetches_in_a_graph_of_tensorflow_1,
        **{what: (lambda what=what: trains_with_broken(what)) for what in BREAKABLE},
    }
    for case, train in cases.items():
        child = os.fork()
        if child == 0:
            train()
            print("\n" + json.dumps({"style": case, "pid": os.getpid()}), flush=True)
            return
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{case} failed")


if __name__ == "__main__":
    main()
