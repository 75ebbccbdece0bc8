"""Observer of TensorFlow: batches of iterators, gradients, compiled steps, checkpoints.

In eager code, every iterator over a dataset ends up in ``OwnedIterator``. Fetches inside of compiled functions are
counted in the graph (`GraphCounter`). Which of those functions train, tensorflow_functions.py knows.
"""

from __future__ import annotations

import functools
import threading
from importlib import import_module
from operator import attrgetter
from typing import Any, Optional

from autotune.trainee.batch import Source, sizer
from autotune.trainee.fast_path import around_call, around_fetch, around_in_graphs
from autotune.trainee.instrumentation import Begin, End, Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.report import Memory
from autotune.trainee.tensorflow_functions import Functions


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Instrument TensorFlow, which has been imported."""
    functions = Functions(loop)
    fetches = _Fetches(loop, functions)
    if loop.phased is not None:
        from autotune.trainee import phased_tensorflow

        phased_tensorflow.phase(loop.phased, loop, instrumentation, fetches.is_eager)
    _observe_fetches(loop, instrumentation, fetches)

    def wrap_call() -> None:
        compiled = import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function")
        around_call(loop, instrumentation, compiled.Function, functions)

    instrumentation.attempt("tensorflow: compiled functions", wrap_call)
    around = functools.partial(_around, instrumentation)
    around("eager.backprop", "GradientTape", "gradient", functions.gradient_begins, functions.gradient_ends)
    around("ops.gradients_util", None, "_GradientsHelper", functions.graph_gradient_begins, None)
    around("data.ops.dataset_ops", "DatasetV2", "reduce", functions.loop_begins, functions.loop_ends)
    around("data.ops.dataset_autograph", None, "_general_purpose_scan", functions.loop_begins, functions.loop_ends)

    exhausted = "framework.errors_impl", "ResourceExhaustedError"
    around(*exhausted, "__init__", lambda args, _kwargs: args, functions.ran_out_of_a_resource)

    around("checkpoint.checkpoint", "TrackableSaver", "save", *loop.around_pause("checkpoint"))
    around("training.saver", "Saver", "save", *loop.around_pause("checkpoint"))


def _around(
    instrumentation: Instrumentation, module: str, owner: Optional[str], name: str, begin: Begin, end: Optional[End]
) -> None:
    """Instrument a function of a module, or a method of its class `owner`, if this version has it."""

    def wrap() -> None:
        place = import_module(f"tensorflow.python.{module}")
        instrumentation.around(getattr(place, owner) if owner else place, name, begin, end)

    instrumentation.attempt(f"tensorflow: {name}", wrap)


def _observe_fetches(loop: Loop, instrumentation: Instrumentation, fetches: _Fetches) -> None:
    """Instrument the iterators over datasets: eager ones, those in graphs, and those that fetch for several devices."""

    def wrap_fetch() -> None:
        place = import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator, "_next_internal"
        around_fetch(
            loop,
            instrumentation,
            place,
            (fetches.begin, fetches.end),
            fetches.source_of,
            is_plain=fetches.is_eager,
            elsewhere=fetches.distributing,
        )

    def wrap_value() -> None:
        owner = import_module("tensorflow.python.data.ops.optional_ops")._OptionalImpl
        around_in_graphs(
            instrumentation, owner, "get_value", (fetches.begin_value, fetches.end_value), fetches.is_eager
        )

    instrumentation.attempt("tensorflow: next", wrap_fetch)
    around = functools.partial(_around, instrumentation)
    around("data.ops.iterator_ops", "OwnedIterator", "get_next_as_optional", fetches.begin_optional, fetches.end)
    several = "distribute.input_lib"
    around(several, "DistributedIteratorBase", "get_next", fetches.begin_distributed, fetches.end_distributed)
    optional = fetches.begin_distributed_optional
    around(several, "DistributedIteratorBase", "get_next_as_optional", optional, fetches.end_distributed)
    instrumentation.attempt("tensorflow: get_value", wrap_value)


class _Fetches:
    """Callbacks around the fetches of dataset iterators.

    Attributes:
        is_eager: True if no graph is under construction; asked as TensorFlow's own operations ask it.
        distributing: Threads inside a distributed iterator, which fetches from one iterator for each device.
    """

    def __init__(self, loop: Loop, functions: Functions) -> None:
        self._loop = loop
        self._functions = functions
        self._context = import_module("tensorflow.python.eager.context")
        self._out_of_range = import_module("tensorflow.python.framework.errors_impl").OutOfRangeError
        self._counter = GraphCounter()
        self._sources = Memory(Source)
        self.is_eager = functools.partial(attrgetter("_context._thread_local_data.is_eager"), self._context)
        self.distributing: set[int] = set()
        self._specs: list[Any] = []  # of what is fetched as an optional in graphs
        loop.aggregated.counters.append(self._counter.take)

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a fetch, or add its operations to a graph."""
        if self._is_distributing():
            return None
        if self._context.executing_eagerly():
            return args[0], self._loop.fetch_begins()
        return self._begin_in_graph(args[0], optional=False)

    def begin_optional(self, args: Any, kwargs: Any) -> Any:
        if self._is_distributing() or self._context.executing_eagerly():
            return None
        return self._begin_in_graph(args[0], optional=True)

    def end(self, fetch: Any, result: Any, error: Optional[BaseException]) -> None:
        if type(fetch) is not tuple:
            fetch.end(result, error)
            return
        iterator, begin_s = fetch
        source = self.source_of(iterator)
        if error is None:
            if source.size is None:
                source.size = sizer(result)
            self._loop.fetched(source, begin_s, source.size(result))
        elif isinstance(error, (self._out_of_range, StopIteration)):
            self._loop.exhausted(source, begin_s)

    def begin_distributed(self, args: Any, kwargs: Any) -> Any:
        fetch = self.begin(args, kwargs)
        if fetch is not None:
            self.distributing.add(threading.get_ident())
        return fetch

    def begin_distributed_optional(self, args: Any, kwargs: Any) -> Any:
        fetch = self.begin_optional(args, kwargs)
        if fetch is not None:
            self.distributing.add(threading.get_ident())
        return fetch

    def end_distributed(self, fetch: Any, result: Any, error: Optional[BaseException]) -> None:
        self.distributing.discard(threading.get_ident())
        self.end(fetch, result, error)

    def begin_value(self, args: Any, kwargs: Any) -> Any:
        if not self._specs or self._is_distributing():
            return None
        return self._counter if args[0].element_spec in self._specs else None

    def end_value(self, counter: GraphCounter, result: Any, error: Optional[BaseException]) -> None:
        if error is None:
            counter.count_batch(result)

    def _begin_in_graph(self, iterator: Any, optional: bool) -> Any:
        self._functions.fetches()
        if optional and iterator.element_spec not in self._specs:
            self._specs.append(iterator.element_spec)
        return self._counter.begin_fetch(optional)

    def source_of(self, iterator: Any) -> Source:
        dataset = getattr(iterator, "_dataset", None)
        return self._sources.of(iterator if dataset is None else dataset)

    def _is_distributing(self) -> bool:
        return bool(self.distributing) and threading.get_ident() in self.distributing


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
        self._order.__exit__(None, None, None)
        if error is None:
            self._counter.end_fetch(self._begin, fetched, self._optional)
