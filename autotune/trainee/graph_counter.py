"""Counter of the fetches inside TensorFlow graphs: batches, their samples, and the wait for them.

Around the operation that fetches, two timestamps are put into the graph; their difference and the batch's leading
dimension are added to a small resource variable, which is read now and then from outside. Where a loop inside of the
graph trains on one batch while it fetches the next, the wait is the time of the fetch all the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Optional

_SHAPE = [3]  # of the variable: seconds, samples, batches


class GraphCounter:
    """Sums over fetches in graphs, and the operations that add to them."""

    def __init__(self) -> None:
        self._context = import_module("tensorflow.python.eager.context")
        self._ops = import_module("tensorflow.python.framework.ops")
        self._dtypes = import_module("tensorflow.python.framework.dtypes")
        self._constant = import_module("tensorflow.python.framework.constant_op").constant
        self._arrays = import_module("tensorflow.python.ops.gen_array_ops")
        self._cast = import_module("tensorflow.python.ops.math_ops").cast
        self._variables = import_module("tensorflow.python.ops.gen_resource_variable_ops")
        self._timestamp = import_module("tensorflow.python.ops.gen_logging_ops").timestamp
        self._flatten = import_module("tensorflow.python.util.nest").flatten
        self._handle: Any = None
        self._taken = (0.0, 0.0, 0.0)

    def begin_fetch(self, optional: bool) -> Optional[_Fetch]:
        """Add the operations before a fetch to the present graph; None if it cannot be counted there."""
        graph = self._ops.get_default_graph()
        if not getattr(graph, "_add_control_dependencies", False):
            return None  # nothing would see to it that our operations are executed
        strategy = import_module("tensorflow.python.distribute.distribute_lib").get_strategy()
        if type(strategy).__name__.startswith(("TPU", "ParameterServer")):
            return None  # the graph is executed elsewhere
        if self._handle is None and not self._make_variable():
            return None
        with self._on_host():
            begin = self._timestamp()
        return _Fetch(self, begin, optional)

    def end_fetch(self, begin: Any, fetched: Any, optional: bool) -> None:
        """Add the operations that follow the fetch."""
        tensors = [fetched._variant_tensor] if optional else self._flatten(fetched, expand_composites=True)
        with self._on_host(), self._ops.control_dependencies(tensors):
            wait = self._timestamp() - begin
        if optional:
            self._add(wait, 0.0, 0.0)
        else:
            self._add(wait, self._samples(fetched), 1.0)

    def count_batch(self, batch: Any) -> None:
        """Count the batch of an optional whose wait is counted already."""
        self._add(0.0, self._samples(batch), 1.0)

    def take(self) -> tuple[float, float, float]:
        """Return seconds of waiting, samples and batches since the last call."""
        if self._handle is None:
            return 0.0, 0.0, 0.0
        with self._context.eager_mode():  # the trainer may be about to build a graph
            value = self._variables.read_variable_op(self._handle, self._dtypes.float64).numpy().tolist()
        before, self._taken = self._taken, value
        return value[0] - before[0], value[1] - before[1], value[2] - before[2]

    def _make_variable(self) -> bool:
        # Below the level of tf.Variable, which strategies, tapes and checkpoints would take notice of.
        with self._ops.init_scope(), self._ops.device("/device:CPU:0"):
            if not self._context.executing_eagerly():
                return False  # around the function is a graph of TensorFlow 1: a session would have to initialize it
            handle = self._variables.var_handle_op(self._dtypes.float64, _SHAPE, shared_name="autotune_fetches")
            self._variables.assign_variable_op(handle, self._constant([0.0] * 3, self._dtypes.float64))
        self._handle = handle
        return True

    def _on_host(self) -> Any:
        return self._ops.device("/device:CPU:0")

    def _add(self, wait: Any, samples: Any, batches: float) -> None:
        with self._on_host():
            amounts = self._arrays.pack(
                [self._cast(amount, self._dtypes.float64) for amount in (wait, samples, batches)]
            )
            self._variables.assign_add_variable_op(self._handle, amounts)

    def _samples(self, batch: Any) -> Any:
        """Return the leading dimension of a batch in the graph; 0 if there is none."""
        leaves = self._flatten(batch)
        replicas = len(getattr(leaves[0], "values", ())) if type(leaves[0]).__name__ == "PerReplica" else 1
        samples: Any = 0.0
        for replica in range(replicas):
            values = [leaf.values[replica] if type(leaf).__name__ == "PerReplica" else leaf for leaf in leaves]
            samples = self._size(values) + samples
        return samples

    def _size(self, tensors: list[Any]) -> Any:
        sized = [tensor for tensor in tensors if getattr(tensor, "shape", None) and tensor.shape.rank]
        if not sized:
            return 0.0
        # The same for each batch is no number of samples, if another is not.
        tensor = next((tensor for tensor in sized if tensor.shape[0] is None), sized[0])
        if tensor.shape[0] is not None:
            return float(tensor.shape[0])
        with self._on_host():
            return self._cast(self._arrays.shape(tensor)[0], self._dtypes.float64)


class _Fetch:
    """One fetch operation while it is added to a graph."""

    def __init__(self, counter: GraphCounter, begin: Any, optional: bool) -> None:
        self._counter = counter
        self._begin = begin
        self._optional = optional
        self._order = counter._ops.control_dependencies([begin])
        self._order.__enter__()

    def end(self, fetched: Any, error: Optional[BaseException]) -> None:
        """See `GraphCounter.end_fetch`."""
        self._order.__exit__(None, None, None)
        if error is None:
            self._counter.end_fetch(self._begin, fetched, self._optional)
