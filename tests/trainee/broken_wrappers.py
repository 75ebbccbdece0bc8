"""Breaks each function that the observer has put into a framework, piece by piece, and trains on: ``FRAMEWORK...``.

A piece is whatever of ours such a function uses: what it calls before and after the framework's own function, where it
notes what it saw. One after the other is replaced by something that raises at every touch. Each is printed, as a line
of JSON, with how often that was noticed; so are functions of ours that are found in the framework and were not told.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from scripts.bench.overhead import observer as observe

sys.path.insert(0, str(Path(observe.__file__).parent))
import observed_trainers as trainers

FACTS = Namespace(steps=3, batch=4, sleep_ms=0.0, pauses=False)
OUTPUTS = Path(os.environ["AUTOTUNE_TRIAL_DIR"]) / "outputs"
GUARDS = ("in_graph", "original", "otherwise", "self", "instrumentation")
"""Cells of our functions that are not ours to break: the framework's own function, and what catches errors."""

Workout = Callable[[], object]


class BrokenEnd:
    """Does what another function does, and then raises: what it has to put back it has put back."""

    def __init__(self, end: Callable[..., object]) -> None:
        self._end = end

    def __call__(self, *args: object) -> object:
        """Never returns."""
        self._end(*args)
        raise RuntimeError("broken")


class Broken:
    """Raises, whatever is done with it."""

    def _raise(self, *args: object, **kwargs: object) -> Any:
        raise RuntimeError("broken")

    __call__ = __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = __bool__ = _raise


def pieces(function: Any) -> Iterator[Any]:
    """The cells of a function that hold something of ours."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        if name not in GUARDS and cell.cell_contents is not None:
            yield name, cell


def strays(of: str, ours: set[int]) -> list[str]:
    """Functions of ours in the framework, in modules and in their classes, beside those that are known."""
    found = []
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in (of, "keras"):
            continue
        owners = [module, *(value for value in list(vars(module).values()) if isinstance(value, type))]
        for owner in owners:
            for name, value in list(vars(owner).items()):
                is_ours = isinstance(value, FunctionType) and "_autotune_trainee" in value.__code__.co_filename
                if is_ours and id(value) not in ours:
                    found.append(f"{owner.__name__}.{name}")
    return found


def tensorflow_workouts() -> dict[str, Workout]:
    """Yield calls that reach each of our functions in TensorFlow and Keras."""
    import tensorflow as tf

    facts = trainers.Facts(FACTS)
    strategy = trainers.tf_strategy(2)
    compiled, eager = (trainers.tf_loop(facts, compiled=way) for way in (True, False))
    dataset = trainers.tf_dataset(facts)
    spread = strategy.experimental_distribute_dataset(dataset)
    step, _, weights = trainers.tf_step()
    model = trainers.keras_model(tf.keras)
    rows = tf.ones((4, trainers.WIDTH)), tf.ones((4, 1))

    def loops() -> None:
        compiled()
        tf.function(lambda: 1)()
        compiled()
        eager()

    def in_graph(batches: Any) -> Workout:
        def fetch() -> None:
            @tf.function
            def optional(iterator: Any) -> Any:
                one = iterator.get_next_as_optional()
                return one.has_value(), one.get_value()

            optional(iter(batches))

        return fetch

    def distributed() -> None:
        for _ in spread:
            pass
        tf.function(lambda iterator: iterator.get_next())(iter(spread))

    def whole_pass() -> None:
        @tf.function
        def one() -> None:
            for x, y in dataset:
                step(x, y)

        one()

    def gradients() -> None:
        tf.function(lambda: tf.gradients(weights, weights))()

    def batches_of_keras() -> None:
        from keras.src.trainers.epoch_iterator import EpochIterator

        batches = EpochIterator(x=rows[0], y=rows[1], batch_size=2, shuffle=False)

        # On other backends ``fit`` does this.
        training = loop()
        training.is_suspended = True
        list(batches)
        training.is_suspended = False

    def traces() -> None:
        tf.function(lambda x: x)(1.0)

    def python() -> None:
        tf.function(lambda: tf.numpy_function(lambda: 1.0, [], tf.double))()

    def fit() -> None:
        model.fit(dataset, verbose=0)

    workouts = {
        "OwnedIterator._next_internal": loops,
        "OwnedIterator._create_iterator": loops,
        "Function.__call__": loops,
        "Function.get_concrete_function": lambda: tf.function(lambda x: x).get_concrete_function(1.0),
        "GradientTape.gradient": loops,
        "OwnedIterator.get_next_as_optional": in_graph(dataset),
        "DistributedIteratorBase.get_next": distributed,
        "DistributedIteratorBase.get_next_as_optional": in_graph(spread),
        "_OptionalImpl.get_value": in_graph(dataset),
        "tensorflow.python.ops.gradients_util._GradientsHelper": gradients,
        "DatasetV2.reduce": whole_pass,
        "tensorflow.python.data.ops.dataset_autograph._general_purpose_scan": whole_pass,
        "ResourceExhaustedError.__init__": lambda: tf.errors.ResourceExhaustedError(None, None, "OOM, sorry"),
        "TrackableSaver.save": lambda: tf.train.Checkpoint(w=weights).write(str(OUTPUTS / "checkpoint")),
        "tensorflow.python.eager.polymorphic_function.tracing_compilation._create_concrete_function": traces,
        "FuncRegistry.__call__": python,
        "FuncRegistry.insert": python,
        "Model.train_on_batch": lambda: model.train_on_batch(*rows),
        "Model.evaluate": lambda: model.evaluate(*rows, verbose=0),
        "Model.predict": lambda: model.predict(rows[0], verbose=0),
        "Model.save": lambda: model.save(OUTPUTS / "model.keras"),
        "Model.save_weights": lambda: model.save_weights(OUTPUTS / "model.weights.h5"),
        "EpochIterator.__next__": batches_of_keras,
    }
    of_fit = ("on_train_begin", "on_train_batch_end", "on_epoch_end", "_on_train_batch_end")
    return workouts | {f"CallbackList.{name}": fit for name in of_fit} | {"Model.fit": fit}


def torch_workouts() -> dict[str, Workout]:
    """The same, in PyTorch."""
    import torch

    epoch = trainers.torch_loader(trainers.Facts(FACTS), workers=0)
    with_workers = torch.utils.data.DataLoader([1, 2], num_workers=1)

    def compiles() -> None:
        torch._dynamo.reset()
        torch.compile(lambda x: x, backend="eager")(torch.ones(1))

    return {
        "torch._dynamo.convert_frame._compile": compiles,
        "_MultiProcessingDataLoaderIter.__init__": lambda: list(with_workers),
        "_BaseDataLoaderIter.__next__": epoch,
        "torch.autograd.backward": epoch,
        "torch.save": lambda: torch.save([], OUTPUTS / "model.pt"),
        "OutOfMemoryError.__init__": lambda: torch.cuda.OutOfMemoryError("sorry"),
    }


def jax_workouts() -> dict[str, Workout]:
    """The same, in JAX."""
    import jax

    return {
        "jax.grad": lambda: jax.grad(lambda x: x * x)(1.0),
        "jax.value_and_grad": lambda: jax.value_and_grad(lambda x: x * x)(1.0),
        "jax.vjp": lambda: jax.vjp(lambda x: x * x, 1.0),
        "jax.jit": lambda: jax.jit(lambda x: x * x)(1.0),
    }


def instrumentation() -> Any:
    """Return the instrumentation of this process."""
    return sys.modules["_autotune_trainee.observe"].installed[0]


def loop() -> Any:
    """The observer's idea of the training loop; None where no function of ours has to do with it directly."""
    for one in instrumentation().replaced:
        for name, cell in pieces(one.ours):
            if name == "loop":
                return cell.cell_contents
    return None


def name_of(one: Any) -> str:
    """Return the name of a place in this script's output."""
    return f"{one.owner.__name__}.{one.name}"


def main() -> None:
    """Breaks one piece after the other."""
    framework = sys.argv[1]
    workouts = {"tensorflow": tensorflow_workouts, "torch": torch_workouts, "jax": jax_workouts}[framework]()
    failures: list[Exception] = []
    instrumentation().failed = failures.append  # and it never switches itself off
    sys.modules["_autotune_trainee.loop"].DIGEST_EVERY_S = 0.0
    sys.modules["_autotune_trainee.loop"].READ_EVERY_S = 0.0
    unknown = strays(framework, {id(one.ours) for one in instrumentation().replaced})
    print(
        json.dumps(
            {
                "strays": unknown,
                "without a workout": [
                    name_of(one) for one in instrumentation().replaced if name_of(one) not in workouts
                ],
            }
        )
    )
    training = loop()
    for one in instrumentation().replaced:
        workout = workouts[name_of(one)]
        workout()  # with nothing broken: what is usual is known from then on
        for name, cell in pieces(one.ours):
            if training is not None:
                training.report.loss_due_s = 0.0
            before = len(failures)
            whole = cell.cell_contents
            cell.cell_contents = BrokenEnd(whole) if name == "end" else Broken()
            try:
                workout()
            finally:
                cell.cell_contents = whole
            print(json.dumps({"place": name_of(one), "piece": name, "noticed": len(failures) - before}), flush=True)
            if training is not None:
                training.recorded.clear()
            before = len(failures)
            workout()
            assert len(failures) == before, (name_of(one), name, failures[-1])


if __name__ == "__main__":
    main()
