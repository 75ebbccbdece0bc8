"""Graphs of TensorFlow: fetches inside of compiled functions, counted by operations that are added to their graphs."""

from __future__ import annotations

import functools
import threading
from importlib import import_module
from operator import attrgetter
from typing import Any, Callable, Optional

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop, Sums

FUNCTION_CALL = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function.__call__"
"""Place of the calls of compiled functions."""


def eager_check() -> Callable[[], Any]:
    """Return a function that is true if no graph is under construction, asked as TensorFlow's own operations ask it."""
    return functools.partial(attrgetter("_context._thread_local_data.is_eager"), _python("eager.context"))


def out_of_range() -> type[BaseException]:
    """Return the error that means the end of the data."""
    error: type[BaseException] = _python("framework.errors_impl").OutOfRangeError
    return error


def data_of(iterator: Any) -> Any:
    """Return what an iterator goes over, of which other iterators may follow."""
    dataset = getattr(iterator, "_dataset", None)
    return iterator if dataset is None else dataset


class GraphFetches:
    """Observer of fetches that are added to a graph: sums over their waits, their samples and their number.

    Args:
        is_eager: True if no graph is under construction.
        found: Called when the function under tracing fetches by itself.

    Attributes:
        within: Threads inside such a fetch, and inside one of a distributed iterator, which fetches from one iterator
            for each device.
    """

    def __init__(
        self, loop: Loop, instrumentation: Instrumentation, is_eager: Callable[[], object], found: Callable[[], object]
    ) -> None:
        self._instrumentation = instrumentation
        self._is_eager = is_eager
        self._found = found
        self.within: set[int] = set()
        self._specs: list[Any] = []  # of what is fetched as an optional
        self._handle: Any = None
        self._taken: Sums = (0.0, 0.0, 0.0)
        loop.counters.append(self.take)

    def observing(self, original: Callable[..., Any], is_optional: bool = False) -> Callable[..., Any]:
        """Return the method of an iterator that fetches, with operations of ours around its own."""
        return self._instrumentation.observing(original, functools.partial(self.begin, is_optional), self.end)

    def observe_optional(self, owner: Any, name: str) -> None:
        """Observe the method of an iterator that returns a batch or nothing."""
        self._instrumentation.put(owner, name, self.observing(getattr(owner, name), is_optional=True))

    def begin(self, is_optional: bool, args: Any, kwargs: Any) -> Any:
        """Add the operations before a fetch to the present graph."""
        thread = threading.get_ident()
        if self._is_eager() or thread in self.within:
            return None
        self._found()
        if is_optional and args[0].element_spec not in self._specs:
            self._specs.append(args[0].element_spec)
        graph = _python("framework.ops").get_default_graph()
        if not getattr(graph, "_add_control_dependencies", False):
            return None  # nothing would see to it that our operations are executed
        strategy = type(_python("distribute.distribute_lib").get_strategy()).__name__
        if strategy.startswith(("TPU", "ParameterServer")):
            return None  # the graph is executed elsewhere
        if self._handle is None and not self._make_variable():
            return None
        with _on_host():
            begin = _python("ops.gen_logging_ops").timestamp()
        order = _after([begin])
        order.__enter__()
        self.within.add(thread)
        return is_optional, thread, begin, order

    def end(self, token: Any, fetched: Any, error: Optional[BaseException]) -> None:
        """Add the operations that follow the fetch."""
        is_optional, thread, begin, order = token
        self.within.discard(thread)
        order.__exit__(None, None, None)
        if error is not None:
            return
        parts = [fetched._variant_tensor] if is_optional else _flatten(fetched, expand_composites=True)
        with _on_host(), _after(parts):
            wait = _python("ops.gen_logging_ops").timestamp() - begin
        if is_optional:
            self._add(wait, 0.0, 0.0)
        else:
            self._add(wait, _samples(fetched), 1.0)

    def value_begins(self, args: Any, kwargs: Any) -> Any:
        """Find out whether a graph takes the batch of an optional whose wait is counted already."""
        if not self._specs or self._is_eager() or threading.get_ident() in self.within:
            return None
        return True if args[0].element_spec in self._specs else None

    def value_ends(self, token: Any, batch: Any, error: Optional[BaseException]) -> None:
        if error is None:
            self._add(0.0, _samples(batch), 1.0)

    def take(self) -> Sums:
        """Return seconds of waiting, samples and batches since the last call."""
        if self._handle is None:
            return 0.0, 0.0, 0.0
        with _python("eager.context").eager_mode():  # the trainer may be about to build a graph
            variables, dtype = _python("ops.gen_resource_variable_ops"), _python("framework.dtypes").float64
            value = variables.read_variable_op(self._handle, dtype).numpy().tolist()
        before, self._taken = self._taken, value
        return value[0] - before[0], value[1] - before[1], value[2] - before[2]

    def _make_variable(self) -> bool:
        # Below the level of tf.Variable, which strategies, tapes and checkpoints would take notice of.
        with _python("framework.ops").init_scope(), _on_host():
            if not self._is_eager():
                return False  # around the function is a graph of TensorFlow 1: a session would have to initialize it
            variables, dtype = _python("ops.gen_resource_variable_ops"), _python("framework.dtypes").float64
            handle = variables.var_handle_op(dtype, [3], shared_name="autotune_fetches")
            variables.assign_variable_op(handle, _python("framework.constant_op").constant([0.0] * 3, dtype))
        self._handle = handle
        return True

    def _add(self, wait: Any, samples: Any, batches: float) -> None:
        with _on_host():
            amounts = _python("ops.gen_array_ops").pack([_float(amount) for amount in (wait, samples, batches)])
            _python("ops.gen_resource_variable_ops").assign_add_variable_op(self._handle, amounts)


def _python(name: str) -> Any:
    return import_module(f"tensorflow.python.{name}")


def _on_host() -> Any:
    return _python("framework.ops").device("/device:CPU:0")


def _after(operations: list[Any]) -> Any:
    return _python("framework.ops").control_dependencies(operations)


def _flatten(batch: Any, **options: bool) -> list[Any]:
    return list(_python("util.nest").flatten(batch, **options))


def _float(amount: Any) -> Any:
    return _python("ops.math_ops").cast(amount, _python("framework.dtypes").float64)


def _samples(batch: Any) -> Any:
    """Return the number of samples in a batch, summed over the replicas of a distributed one; a tensor if it varies."""
    leaves = _flatten(batch)
    replicas = len(getattr(leaves[0], "values", ())) if type(leaves[0]).__name__ == "PerReplica" else 1
    samples: Any = 0.0
    for replica in range(replicas):
        values = [leaf.values[replica] if type(leaf).__name__ == "PerReplica" else leaf for leaf in leaves]
        sized = [tensor for tensor in values if getattr(tensor, "shape", None) and tensor.shape.rank]
        # The same for each batch is no number of samples, if another is not.
        tensor = next((tensor for tensor in sized if tensor.shape[0] is None), sized[0] if sized else None)
        if tensor is not None and tensor.shape[0] is None:
            with _on_host():
                samples = _float(_python("ops.gen_array_ops").shape(tensor)[0]) + samples
        elif tensor is not None:
            samples = float(tensor.shape[0]) + samples
    return samples
