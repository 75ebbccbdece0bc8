"""Parts of a step of Keras 3's ``fit`` and ``train_on_batch`` on TensorFlow."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Callable

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.operation_places import placed_operations
from autotune.trainee.step_phases_profile import StepParts, StepProfiler
from autotune.trainee.step_phases_tensors import (
    MOST_BATCHES,
    KeptBatches,
    accelerator,
    batch_size,
    copied,
    is_on_host,
    one_of_each_shape,
    same_shapes,
    wait,
)

_OWN_STEP = "the model's train_step is its own, and parts of it cannot be told apart"
_SEVERAL_DEVICES = "the step is spread over several devices"
_LONGEST_DRAWING_S = 10.0


def observe(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    """Profile a step of Keras, which has been imported, on TensorFlow.

    Raises:
        RuntimeError: It is an older one, or on another backend.
    """
    keras: Any = sys.modules["keras"]
    if int(keras.__version__.partition(".")[0]) < 3 or keras.config.backend() != "tensorflow":
        raise RuntimeError("steps of Keras are profiled with Keras 3 on TensorFlow alone")
    from importlib import import_module

    trainer = import_module("keras.src.backend.tensorflow.trainer").TensorFlowTrainer

    def begin(args: Any, kwargs: Any) -> Any:
        return args[0]

    def end(model: Any, result: Any, error: BaseException | None) -> None:
        made = model.train_function
        if error is None and made is not None and not hasattr(made, "autotune_profiles"):
            model.train_function = _profiling(model, made, profiler)

    instrumentation.around(trainer, "make_train_function", begin, end)


def _profiling(model: Any, made: Callable[[Any], Any], profiler: StepProfiler) -> Callable[[Any], Any]:
    """Return the model's training function, which makes the profile before one of its calls."""
    kept = KeptBatches()

    def train_function(iterator: Any) -> Any:
        if profiler.is_over:
            return made(iterator)
        is_dataset = hasattr(iterator, "get_next")
        if not is_dataset:  # of train_on_batch: a generator of its one batch
            batches = list(iterator)
            iterator = iter(batches)
            for batch in batches:
                kept.add(batch)
        if profiler.is_due():
            profiler.make(lambda: _parts_of_fit(model, iterator) if is_dataset else parts_of(model, kept.batches))
        return made(iterator)

    train_function.autotune_profiles = True  # type: ignore[attr-defined]
    return train_function


def _parts_of_fit(model: Any, iterator: Any) -> StepParts:
    source = iterator

    def draw() -> Any:
        nonlocal source
        try:
            return next(source)
        except StopIteration:  # the pass over the data has ended; ``fit`` will notice
            source = iter(iterator._dataset)
            return next(source)

    kept, began_s = KeptBatches(), time.monotonic()
    while len(kept.batches) < MOST_BATCHES and time.monotonic() < began_s + _LONGEST_DRAWING_S:
        before = len(kept.batches)
        kept.add(draw())
        if len(kept.batches) == before:
            break
    parts = parts_of(model, kept.batches)
    parts.draw = draw
    return parts


def parts_of(model: Any, batches: Sequence[Any]) -> StepParts:
    """Return the parts of a step of a compiled model.

    Args:
        batches: Batches as ``fit`` gives them to ``train_step``, at least one.
    """
    tf: Any = sys.modules["tensorflow"]
    if model.jit_compile and not model.run_eagerly:
        batches = same_shapes(batches)
    device = accelerator()
    on_device = [copied(batch, device) for batch in batches]
    functions, why_not = _functions(model)
    must_copy = device is not None and is_on_host(batches[0])
    if not must_copy:
        why_not["copy"] = (
            "there is no GPU" if device is None else "the batches are on the device before the step begins"
        )
    variables = [*model.variables, *model.optimizer.variables, *(v for m in model.metrics for v in m.variables)]
    values = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values):  # noqa: B905 -- Python 3.9 has no strict
            variable.assign(value)

    return StepParts(
        of=f"Keras's {type(model).__name__} {model.name!r}",
        compiled=_compiled(model),
        device=device or "CPU",
        batch_size=batch_size(batches[0]),
        functions={name: _as_trained(model, function, tf) for name, function in functions.items()},
        batches=on_device,
        warm_up_on=one_of_each_shape(on_device),
        why_not=why_not,
        wait=wait,
        copy=(lambda batch: copied(batch, device)) if must_copy else None,
        on_host=batches,
        restore=restore,
        places=lambda: placed_operations(_as_trained(model, model.train_step, tf), on_device[0]) if device else [],
    )


def _functions(model: Any) -> tuple[dict[str, Callable[[Any], Any]], dict[str, str]]:
    """Return functions that do more and more of ``TensorFlowTrainer.train_step``, and why some are missing."""
    tf: Any = sys.modules["tensorflow"]
    trainer: Any = sys.modules["keras.src.backend.tensorflow.trainer"]
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return {}, dict.fromkeys(("forward", "loss", "gradients", "update"), _SEVERAL_DEVICES)
    if type(model).train_step is not trainer.TensorFlowTrainer.train_step:
        return {"whole": model.train_step}, dict.fromkeys(("forward", "loss", "gradients", "update"), _OWN_STEP)

    def call(x: Any) -> Any:
        return model(x, training=True) if model._call_has_training_arg else model(x)

    def forward(data: Any) -> Any:
        return call(_unpacked(data)[0])

    def loss(data: Any) -> Any:
        x, y, weight = _unpacked(data)
        return model._compute_loss(x=x, y=y, y_pred=call(x), sample_weight=weight, training=True)

    def gradients(data: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            scaled = model.optimizer.scale_loss(loss(data))
        # Returned, since what is not needed for a function's result is left out of its graph.
        return scaled, tape.gradient(scaled, model.trainable_weights)

    def update(data: Any) -> Any:
        scaled, found = gradients(data)
        model.optimizer.apply(found, model.trainable_weights)
        return scaled

    made = {"forward": forward, "loss": loss, "gradients": gradients, "update": update, "metrics": model.train_step}
    return made, {}


def _unpacked(data: Any) -> Any:
    return sys.modules["keras"].utils.unpack_x_y_sample_weight(data)


def _as_trained(model: Any, function: Callable[[Any], Any], tf: Any) -> Callable[[Any], Any]:
    if model.run_eagerly:
        return function
    inner = tf.function(function, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
    made: Callable[[Any], Any] = tf.function(lambda data: inner(data), reduce_retracing=True, autograph=False)
    return made


def _compiled(model: Any) -> str:
    traced = "graph, compiled by XLA" if model.jit_compile else "graph"
    policy = getattr(model, "dtype_policy", None)
    return f"{'eager' if model.run_eagerly else traced}, {getattr(policy, 'name', 'float32')}"
