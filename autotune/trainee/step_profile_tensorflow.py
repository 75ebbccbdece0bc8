"""Parts of a step of TensorFlow: of Keras 3's ``fit`` and ``train_on_batch``, and of `autotune.tf.step.TrainStep`.

TensorFlow's own profiler says when each operation ran, and not which part of the step it belongs to once the graph has
been optimized, or compiled by XLA; functions that do more and more of the step are timed instead.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee.batch import BatchSizes
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.step_profile import STEPS_ONE_BY_ONE, Operations, StepParts, StepProfiler

_MOST_BATCHES = 24
"""Batches that are kept for the profile: they differ in length with many trainers."""

_Function = Callable[[Any], Any]


def profile_keras(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    """Profile a step of Keras, which has been imported, on TensorFlow.

    Raises:
        RuntimeError: It is an older one, or on another backend.
    """
    keras: Any = sys.modules["keras"]
    if int(keras.__version__.partition(".")[0]) < 3 or keras.config.backend() != "tensorflow":
        raise RuntimeError("steps of Keras are profiled with Keras 3 on TensorFlow alone")

    def end(model: Any, result: Any, error: Optional[BaseException]) -> None:
        made = model.train_function
        if error is None and made is not None and not hasattr(made, "autotune_profiles"):
            model.train_function = _profiling(model, made, profiler)

    trainer = import_module("keras.src.backend.tensorflow.trainer").TensorFlowTrainer
    instrumentation.around(trainer, "make_train_function", lambda args, kwargs: args[0], end)


def _profiling(model: Any, made: _Function, profiler: StepProfiler) -> _Function:
    """Return the model's training function, which makes the profile before one of its calls."""
    kept = _KeptBatches()

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
            profiler.make(lambda: _parts_of_fit(model, iterator) if is_dataset else _parts_of_model(model, kept))
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

    kept, began_s = _KeptBatches(), time.monotonic()
    while time.monotonic() < began_s + 10.0 and kept.add(draw()) and len(kept.batches) < _MOST_BATCHES:
        pass
    parts = _parts_of_model(model, kept)
    parts.draw = draw
    return parts


def _parts_of_model(model: Any, kept: _KeptBatches) -> StepParts:
    """Return the parts of a step of a compiled model, on batches as ``fit`` gives them to ``train_step``."""
    functions, why_not = _functions(model)
    is_xla = bool(model.jit_compile) and not model.run_eagerly
    way = "eager" if model.run_eagerly else "graph, compiled by XLA" if model.jit_compile else "graph"
    variables = [*model.variables, *model.optimizer.variables, *(v for m in model.metrics for v in m.variables)]
    return _step_parts(
        f"Keras's {type(model).__name__} {model.name!r}",
        f"{way}, {getattr(getattr(model, 'dtype_policy', None), 'name', 'float32')}",
        _same_shapes(kept.batches) if is_xla else kept.batches,
        {name: _as_trained(model, function) for name, function in functions.items()},
        _as_trained(model, model.train_step),
        variables,
        why_not,
    )


def _functions(model: Any) -> tuple[dict[str, _Function], dict[str, str]]:
    """Return functions that do more and more of ``TensorFlowTrainer.train_step``, and why some are missing."""
    tf: Any = sys.modules["tensorflow"]
    unpacked: _Function = sys.modules["keras"].utils.unpack_x_y_sample_weight
    trainer: Any = sys.modules["keras.src.backend.tensorflow.trainer"]
    parts = "forward", "loss", "gradients", "update"
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return {}, dict.fromkeys(parts, "the step is spread over several devices")
    if type(model).train_step is not trainer.TensorFlowTrainer.train_step:
        why = "the model's train_step is its own, and parts of it cannot be told apart"
        return {"whole": model.train_step}, dict.fromkeys(parts, why)

    def call(x: Any) -> Any:
        return model(x, training=True) if model._call_has_training_arg else model(x)

    def loss(data: Any) -> Any:
        x, y, weight = unpacked(data)
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

    made: dict[str, _Function] = {"forward": lambda data: call(unpacked(data)[0]), "loss": loss}
    return {**made, "gradients": gradients, "update": update, "metrics": model.train_step}, {}


def _as_trained(model: Any, function: _Function) -> _Function:
    if model.run_eagerly:
        return function
    tf: Any = sys.modules["tensorflow"]
    inner = tf.function(function, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
    made: _Function = tf.function(lambda data: inner(data), reduce_retracing=True, autograph=False)
    return made


def profile_train_step(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    """Profile a step of `TrainStep`, whose module has been imported."""
    kept = _KeptBatches()
    feeds: list[Any] = []  # the one that was asked last

    def fetching(args: Any, kwargs: Any) -> None:
        feeds[:] = args

    def begin(args: Any, kwargs: Any) -> None:
        if profiler.is_over or kwargs or len(args) != 2:
            return
        step, batch = args
        kept.add(batch)

        def parts() -> StepParts:
            made = parts_of_train_step(step, kept.batches)
            made.draw = feeds[0].__next__ if feeds else None
            return made

        if profiler.is_due():
            profiler.make(parts)

    instrumentation.around(import_module("autotune.tf.feed").Feed, "__next__", fetching, None)
    instrumentation.around(sys.modules["autotune.tf.step"].TrainStep, "__call__", begin, None)


def parts_of_train_step(step: Any, batches: Sequence[Any], of: str = "autotune.tf.TrainStep") -> StepParts:
    """Return the parts of a step of `TrainStep`."""
    options, why_not = step.options, {}
    functions = {"loss": step.loss, "gradients": step.gradients, "update": step.update}
    if step.forward is None:
        why_not["forward"] = "TrainStep was given no function for it (forward=…), only one that makes the loss"
    else:
        functions = {"forward": step.forward, **functions}
    way = ("graph, compiled by XLA" if options.xla else "graph") if options.graph else "eager"
    return _step_parts(
        of,
        f"{way}, {options.precision.value}",
        _same_shapes(batches) if options.graph and options.xla else batches,
        # Traced anew, so that the trained step is not the only one that has been traced for few shapes.
        {name: step.compiled(function) for name, function in functions.items()},
        step.compiled(step.update),
        list(step.state),
        why_not,
    )


def _step_parts(
    of: str,
    compiled: str,
    batches: Sequence[Any],
    functions: dict[str, _Function],
    whole: _Function,
    variables: list[Any],
    why_not: dict[str, str],
) -> StepParts:
    """Return the parts of a step.

    Args:
        whole: The whole step, not traced yet.
        variables: All that the functions change.
    """
    tf: Any = sys.modules["tensorflow"]
    gpus = tf.config.list_logical_devices("GPU")
    device = str(gpus[0].name) if gpus else None
    must_copy = device is not None and any("CPU" in str(getattr(leaf, "device", "CPU")) for leaf in _leaves(batches[0]))
    if not must_copy:
        ahead = "the batches are on the device before the step begins"
        why_not["copy"] = "there is no GPU" if device is None else ahead
    on_device = [copied(batch, device) for batch in batches]
    values = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values):  # noqa: B905 -- Python 3.9 has no strict
            variable.assign(value)

    return StepParts(
        of=of,
        compiled=compiled,
        device=device or "CPU",
        batch_size=BatchSizes().of(batches[0]),
        functions=functions,
        batches=on_device,
        # From the second shape that a function is traced for on, TensorFlow leaves open what differs.
        warm_up_on=list({_shapes(batch): batch for batch in reversed(on_device)}.values())[-3:],
        why_not=why_not,
        wait=tf.test.experimental.sync_devices,
        copy=(lambda batch: copied(batch, device)) if must_copy else None,
        on_host=batches,
        restore=restore,
        places=lambda: placed_operations(whole, on_device[0]) if device else [],
        operations=lambda found: make_one_by_one(whole, on_device[0], found),
    )


class _KeptBatches:
    """Latest batches of a training, as many as fit."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def add(self, batch: Any) -> bool:
        """Keep a batch, and as many of those before it as fit; return True if these are all."""
        self.batches.append(batch)
        fit = (256 << 20) // max(1, sum(map(_bytes, _leaves(batch))))
        dropped = self.batches[: -max(1, min(_MOST_BATCHES, fit))]
        del self.batches[: len(dropped)]
        return not dropped


def copied(batch: Any, device: Optional[str]) -> Any:
    """Return a copy of a batch on a device, tensors of texts aside; the batch itself for None."""
    tf: Any = sys.modules["tensorflow"]
    if device is None:
        return tf.nest.map_structure(tf.convert_to_tensor, batch)

    def copy(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        return leaf if leaf.dtype == tf.string else tf.identity(leaf)

    with tf.device(device):
        return tf.nest.map_structure(copy, batch)


def _same_shapes(batches: Sequence[Any]) -> list[Any]:
    """Return the batches of the shapes that most of them have."""
    shapes = [_shapes(batch) for batch in batches]
    most = max(set(shapes), key=shapes.count)
    return [batch for batch in batches if _shapes(batch) == most]


def _shapes(batch: Any) -> str:
    return str([(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in _leaves(batch)])


def _leaves(batch: Any) -> list[Any]:
    return [leaf for leaf in sys.modules["tensorflow"].nest.flatten(batch) if leaf is not None]


def _bytes(leaf: Any) -> int:
    shape: Iterable[Any] = getattr(leaf, "shape", ())
    return math.prod(map(int, shape)) * int(getattr(getattr(leaf, "dtype", None), "size", 8) or 8)


def make_one_by_one(function: Callable[[Any], object], batch: Any, found: Operations) -> None:
    """Call a function with nothing compiled; its operations are added, each with its own time, but for the first."""
    tf: Any = sys.modules["tensorflow"]
    wrapped: Any = import_module("tensorflow.python.pywrap_tfe")
    execute, was_eager = wrapped.TFE_Py_FastPathExecute, tf.config.functions_run_eagerly()
    has_gpu = bool(tf.config.list_logical_devices("GPU"))

    def timed(*args: Any) -> Any:
        begin_s = time.perf_counter()
        result = execute(*args)
        if has_gpu:
            wrapped.TFE_Py_FastPathExecute = execute  # it executes an operation of its own
            tf.test.experimental.sync_devices()
            wrapped.TFE_Py_FastPathExecute = timed
        found.add(str(args[1]), time.perf_counter() - begin_s)
        return result

    tf.config.run_functions_eagerly(True)
    try:
        function(batch)
        wrapped.TFE_Py_FastPathExecute = timed
        for _ in range(STEPS_ONE_BY_ONE):
            function(batch)
    finally:
        wrapped.TFE_Py_FastPathExecute = execute
        tf.config.run_functions_eagerly(was_eager)


_PLUMBING = (
    "_Arg _DeviceArg _DeviceRetval _HostRecv _HostSend _Recv _Retval _Send Case Const Identity IdentityN If NoOp "
    "PartitionedCall Placeholder StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile While"
)
"""Operations that hold others, or hand results on; they compute nothing."""


def placed_operations(function: Callable[[Any], object], batch: Any) -> list[dict[str, Any]]:
    """Call a function that was never called, and return a row for each device that some of its operations run on.

    These are the operations of the graph as it is executed: placed, optimized and divided among the devices. An
    operation that XLA has compiled others into counts as one.
    """
    context = import_module("tensorflow.python.eager.context").context()
    context.enable_graph_collection()
    try:
        function(batch)
        metadata = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    operations: dict[str, Counter[str]] = {}
    for graphs in metadata.function_graphs:
        for graph in graphs.partition_graphs:
            for node in graph.node:
                if f" {node.op} " not in f" {_PLUMBING} ":
                    operations.setdefault(node.device.rpartition("device:")[2], Counter())[node.op] += 1
    rows = []
    for device, counts in sorted(operations.items()):
        names = [name for name, _ in counts.most_common(5)]
        rows.append({"what": "operations", "device": device, "count": sum(counts.values()), "names": names})
    return rows
