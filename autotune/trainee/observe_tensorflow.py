"""Observer of TensorFlow: batches of iterators, gradients, compiled steps, checkpoints.

In eager code, every iterator over a dataset ends up in ``OwnedIterator``. Fetches inside of compiled functions are
counted in the graph (graph_counter.py). Which of those functions train, tensorflow_functions.py knows.
"""

from __future__ import annotations

import functools
import threading
from importlib import import_module
from operator import attrgetter
from typing import Any, Optional

from autotune.trainee.batch import Source, sizer
from autotune.trainee.fast_path import around_call, around_fetch, around_in_graphs
from autotune.trainee.graph_counter import GraphCounter
from autotune.trainee.instrumentation import Begin, End, Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.memory import Memory
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
        """Record the start of a fetch of an optional batch."""
        if self._is_distributing() or self._context.executing_eagerly():
            return None
        return self._begin_in_graph(args[0], optional=True)

    def end(self, fetch: Any, result: Any, error: Optional[BaseException]) -> None:
        """Record the end of the fetch."""
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
        """Record the start of a fetch of batches for several devices."""
        fetch = self.begin(args, kwargs)
        if fetch is not None:
            self.distributing.add(threading.get_ident())
        return fetch

    def begin_distributed_optional(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a fetch of optional batches for several devices."""
        fetch = self.begin_optional(args, kwargs)
        if fetch is not None:
            self.distributing.add(threading.get_ident())
        return fetch

    def end_distributed(self, fetch: Any, result: Any, error: Optional[BaseException]) -> None:
        """Record the end of that fetch."""
        self.distributing.discard(threading.get_ident())
        self.end(fetch, result, error)

    def begin_value(self, args: Any, kwargs: Any) -> Any:
        """Note that an optional is asked for its batch in a graph."""
        if not self._specs or self._is_distributing():
            return None
        return self._counter if args[0].element_spec in self._specs else None

    def end_value(self, counter: GraphCounter, result: Any, error: Optional[BaseException]) -> None:
        """Count the batch of that optional."""
        if error is None:
            counter.count_batch(result)

    def _begin_in_graph(self, iterator: Any, optional: bool) -> Any:
        self._functions.fetches()
        if optional and iterator.element_spec not in self._specs:
            self._specs.append(iterator.element_spec)
        return self._counter.begin_fetch(optional)

    def source_of(self, iterator: Any) -> Source:
        """Return the dataset that an iterator goes over; in graphs, it is unknown."""
        dataset = getattr(iterator, "_dataset", None)
        return self._sources.of(iterator if dataset is None else dataset)

    def _is_distributing(self) -> bool:
        return bool(self.distributing) and threading.get_ident() in self.distributing
