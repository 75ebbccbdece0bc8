"""Observer of TensorFlow: batches of iterators, gradients, compiled steps, checkpoints.

Eager dataset iterators end up in ``OwnedIterator``; in graphs, added operations count the fetches (`GraphFetches`). A
compiled function is a training step if its trace took a gradient; of nested calls, the outermost counts.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
import weakref
from importlib import import_module
from operator import attrgetter
from typing import Any, Callable, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.loop import Sums
from autotune.trainee.observe import Observer
from autotune.trainee.samples import Fingerprints
from autotune.trainee.steps import BatchSource, StepMaker
from autotune.trainee.stream import WeakRecords

_UNSEEN_LOOP = (
    "steps inside a tf.function's own loop cannot be seen; after `from autotune.trainee import step`, "
    "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])"
)
_PYTHON = "tensorflow.python"


class _Known:
    """Known facts of a compiled function."""

    __slots__ = ("fetches", "hides_steps", "sizes", "trains")

    def __init__(self) -> None:
        self.trains = self.fetches = self.hides_steps = False
        self.sizes = BatchSizes()


class TensorFlowObserver(Observer):
    """Observer of TensorFlow 2, including Keras's compiled functions."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.is_eager, self._out_of_range = eager_check(), out_of_range()
        self._on_cpu: Optional[bool] = None
        self._known = WeakRecords(_Known)
        self._current: dict[int, _Known] = {}  # thread → outermost running function
        self._latest: Optional[_Known] = None
        self._taking: set[int] = set()  # threads inside a gradient

    def install(self) -> None:
        self._install_fetches()
        self.attempt(FUNCTION_CALL, self._around_calls)
        traced = FUNCTION_CALL.replace("__call__", "get_concrete_function")
        self.around(traced, self._tracing_begins, lambda thread, *_: self._current.pop(thread, None))
        self.around(f"{_PYTHON}.eager.backprop:GradientTape.gradient", self._gradient_begins, self._gradient_ends)
        self.around(f"{_PYTHON}.ops.gradients_util:_GradientsHelper", self._graph_gradient_begins)
        for place in ("dataset_ops:DatasetV2.reduce", "dataset_autograph:_general_purpose_scan"):
            self.around(f"{_PYTHON}.data.ops.{place}", self._loop_begins, self._loop_ends)
        exhausted = f"{_PYTHON}.framework.errors_impl:ResourceExhaustedError.__init__"
        self.around(exhausted, lambda args, _kwargs: args, self._ran_out_of_a_resource)
        self.pause(f"{_PYTHON}.checkpoint.checkpoint:TrackableSaver.save", "checkpoint")

    def _install_fetches(self) -> None:
        """Observe dataset iterators: eager ones, those in graphs, distributed ones."""
        sources = WeakRecords(BatchSource)

        def source_of(iterator: Any) -> BatchSource:
            data = data_of(iterator)
            source = sources.of(data)
            if source.size is None:  # before its first batch
                source.ready = ready_batches(data)
            return source

        graphs = GraphFetches(self)
        ends = StopIteration, self._out_of_range
        one, several = "data.ops.iterator_ops:OwnedIterator", "distribute.input_lib:DistributedIteratorBase"
        for iterator, fetch in ((one, "_next_internal"), (several, "get_next")):
            self.fetch(
                f"{_PYTHON}.{iterator}.{fetch}",
                source_of,
                data_of,
                ends=ends,
                is_plain=self.is_eager,
                in_graph=graphs.observing,
                within=graphs.within,
                is_outer=iterator == several,
            )
            optional = functools.partial(graphs.begin, True)
            self.around(f"{_PYTHON}.{iterator}.get_next_as_optional", optional, graphs.end)
        self.around(f"{_PYTHON}.{one}._create_iterator", lambda args, _kwargs: args[0], graphs.made)
        value = f"{_PYTHON}.data.ops.optional_ops:_OptionalImpl.get_value"
        self.around(value, graphs.value_begins, graphs.value_ends)

    # Compiled functions.

    def _around_calls(self, owner: Any, name: str) -> None:
        """Record calls of compiled functions; those of a steady loop with as few Python calls as possible."""
        original, loop, instrumentation = getattr(owner, name), self.loop, self.instrumentation
        monotonic, get_thread, recorded, worked = time.monotonic, threading.get_ident, loop.recorded, StepMaker.worked
        known_of, current, report, see_loss = self._known.of, self._current, loop.report, self._see_loss
        end = instrumentation.guarded(self._call_ends)
        # The last called function, and its facts.
        latest: tuple[Callable[[], Any], Any] = (lambda: None), None

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            nonlocal latest
            known = None
            try:
                thread = get_thread()
                if instrumentation.on and not loop.is_suspended and thread not in current:
                    one = latest  # another thread may replace it meanwhile
                    if one[0]() is not args[0]:
                        one = latest = weakref.ref(args[0]), known_of(args[0])
                    is_step = one[1].trains and not one[1].fetches and not one[1].hides_steps
                    is_pause = one[1].fetches and not one[1].trains  # validation
                    begin_s = loop.pause_begins() if is_pause else monotonic()
                    known = current[thread] = self._latest = one[1]
            except Exception as error:
                instrumentation.failed(error)
            if known is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                del current[thread]
                end((known, is_pause, begin_s, thread, args, kwargs), None, error)
                raise
            del current[thread]
            try:
                if is_step and not loop.wants_samples:  # the usual case
                    end_s = monotonic()
                    recorded.append((worked, known, begin_s, end_s, None, True, thread))
                    if end_s >= report.loss_due_s:
                        see_loss(end_s, result)
                else:
                    end((known, is_pause, begin_s, thread, args, kwargs), result, None)
            except Exception as error:
                instrumentation.failed(error)
            return result

        instrumentation.put(owner, name, observed)

    def _call_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        (known, was_pause, begin_s, thread, args, kwargs), now_s = token, time.monotonic()
        if was_pause:
            self.loop.pause_ends("eval", begin_s)
        if error is not None:
            if known.fetches and known.trains and isinstance(error, self._out_of_range):
                self.loop.flush()
                self.loop.report.mark("epoch_end", now_s)
        elif known.hides_steps or self.loop.is_suspended:
            pass
        elif not known.trains:
            if known.fetches:
                self.loop.aggregated.skip(now_s)
            else:
                self.loop.called(begin_s, now_s, thread)
        else:
            if now_s >= self.loop.report.loss_due_s:
                self._see_loss(now_s, result)
            if known.fetches:
                self.loop.aggregated.ended(now_s)
            else:
                is_own = self.loop.wants_samples
                samples = known.sizes.of((args[1:], kwargs)) if is_own else None
                self.loop.worked(known, begin_s, samples, True, thread)
                if is_own:
                    self.loop.take_own_fingerprint(known, (args[1:], kwargs), samples)

    def _tracing_begins(self, args: Any, kwargs: Any) -> Optional[int]:
        """Record which function is traced without a call."""
        thread = threading.get_ident()
        if thread in self._current:
            return None
        self._current[thread] = self._known.of(args[0])
        return thread

    def fetches_in_graph(self) -> None:
        current = self._current.get(threading.get_ident())
        if current is not None:
            current.fetches = True

    def trains_in_graph(self) -> Callable[[], bool]:
        """Return a deferred check of whether the function being traced trains."""
        current = self._current.get(threading.get_ident())
        return lambda: current is None or current.trains

    def _see_loss(self, now_s: float, result: Any) -> None:
        if self._on_cpu is None:
            self._on_cpu = import_module(f"{_PYTHON}.eager.context").context().num_gpus() == 0
            if not self._on_cpu:
                self.loop.sync = sys.modules["tensorflow"].test.experimental.sync_devices
        self.loop.saw_loss(now_s, loss_in(result), self._on_cpu)

    # Gradients.

    def _gradient_begins(self, args: Any, kwargs: Any) -> Any:
        # MirroredStrategy runs each replica's step in its own thread, while the loop's thread waits.
        is_replica = type(threading.current_thread()).__name__ == "_MirroredReplicaThread"
        thread, is_eager = threading.get_ident(), self.is_eager()
        current = self._latest if is_replica and not is_eager else self._current.get(thread)
        if current is not None:
            current.trains = True
        if current is not None or self.loop.is_suspended or not is_eager or thread in self._taking:
            return None  # nested: it recomputes a part of the outer one
        self._taking.add(thread)
        caller = sys._getframe(2)
        return (caller.f_code, caller.f_lineno), time.monotonic(), None if is_replica else thread, args, thread

    def _gradient_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        key, begin_s, loops_thread, args, thread = token
        self._taking.discard(thread)
        if error is None:
            self.loop.worked(key, begin_s, thread=loops_thread)
            now_s = time.monotonic()
            if now_s >= self.loop.report.loss_due_s:
                self._see_loss(now_s, args[1:2])

    def _graph_gradient_begins(self, args: Any, kwargs: Any) -> None:
        """Record a gradient taken by ``tf.gradients``; the tape's own calls don't count."""
        current = self._current.get(threading.get_ident())
        if current is not None and sys._getframe(2).f_code.co_name.startswith("gradients"):
            current.trains = True

    # Loops within compiled functions, and errors.

    def _loop_begins(self, args: Any, kwargs: Any) -> Any:
        """Record that a dataset loop becomes one operation of a graph."""
        known = self._current.get(threading.get_ident())
        if known is None or self.is_eager():
            return None
        trained, known.trains = known.trains, False
        return known, trained

    def _loop_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        known, trained = token
        if known.trains:
            known.hides_steps = True
            self.loop.report.note(_UNSEEN_LOOP)
        known.trains = known.trains or trained

    def _ran_out_of_a_resource(self, args: Any, result: Any, error: Optional[BaseException]) -> None:
        """Record an out-of-memory error; the class also covers disk and open files."""
        message = str(args[0].message)
        if "OOM" in message or "memory" in message.lower():
            self.loop.ran_out_of_memory(f"ResourceExhaustedError: {message}")


FUNCTION_CALL = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function.__call__"
"""Place of calls of compiled functions."""


def eager_check() -> Callable[[], Any]:
    """Return TensorFlow's own check that no graph is under construction."""
    return functools.partial(attrgetter("_context._thread_local_data.is_eager"), _python("eager.context"))


def out_of_range() -> type[BaseException]:
    """Return the exception that ends the data."""
    error: type[BaseException] = _python("framework.errors_impl").OutOfRangeError
    return error


def data_of(iterator: Any) -> Any:
    """Return an iterator's dataset, if any; else the iterator."""
    dataset = getattr(iterator, "_dataset", None)
    return iterator if dataset is None else dataset


def ready_batches(dataset: Any) -> Optional[int]:
    """Return how many batches a pipeline's buffers may hold before the first step, if known."""
    ready, in_batch = 0.0, 1
    for _ in range(32):  # limit of stages
        name = type(dataset).__name__
        if "Prefetch" in name:
            ready += max(0, int(dataset._buffer_size)) / in_batch
        elif "Batch" in name:
            in_batch = max(1, int(dataset._batch_size))
        dataset = getattr(dataset, "_input_dataset", None)
        if dataset is None:
            break
    return math.ceil(ready) or None


class GraphFetches:
    """Observer of fetches in graphs: sums of their waits, samples and number.

    Attributes:
        within: Threads inside such a fetch, or a distributed iterator's, which fetches for each device.
        is_on_device: Whether an iterator with batches on a GPU was made.
    """

    def __init__(self, observer: TensorFlowObserver) -> None:
        self._observer = observer
        self.is_on_device = False
        self.within: set[int] = set()
        self._specs: list[Any] = []  # of batches fetched as optionals
        self._handle: Any = None
        self._taken: Sums = (0.0, 0.0, 0.0)
        observer.loop.counters.append(self.take)

    def made(self, iterator: Any, result: Any, error: Optional[BaseException]) -> None:
        self.is_on_device = self.is_on_device or "GPU" in str(getattr(iterator._iterator_resource, "device", ""))

    def observing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return an iterator's fetch method, with our operations around it."""
        return self._observer.instrumentation.observing(original, functools.partial(self.begin, False), self.end)

    def begin(self, is_optional: bool, args: Any, kwargs: Any) -> Any:
        thread = threading.get_ident()
        if self._observer.is_eager() or thread in self.within:
            return None
        self._observer.fetches_in_graph()
        if is_optional and args[0].element_spec not in self._specs:
            self._specs.append(args[0].element_spec)
        graph = _python("framework.ops").get_default_graph()
        if not getattr(graph, "_add_control_dependencies", False):
            return None  # nothing would execute our operations
        strategy = type(_python("distribute.distribute_lib").get_strategy()).__name__
        if strategy.startswith(("TPU", "ParameterServer")):
            return None  # the graph is executed elsewhere
        if self._handle is None:
            self._handle = new_variable("autotune_fetches", [0.0] * 3)
        if self._handle is None:
            return None
        with _on_host():
            begin = _python("ops.gen_logging_ops").timestamp()
        order = _after([begin])
        order.__enter__()
        self.within.add(thread)
        return is_optional, thread, begin, order

    def end(self, token: Any, fetched: Any, error: Optional[BaseException]) -> None:
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
            self._take_fingerprint(fetched)

    def value_begins(self, args: Any, kwargs: Any) -> Any:
        """Check whether a graph takes the batch of an optional whose wait is already counted."""
        if not self._specs or self._observer.is_eager() or threading.get_ident() in self.within:
            return None
        return True if args[0].element_spec in self._specs else None

    def value_ends(self, token: Any, batch: Any, error: Optional[BaseException]) -> None:
        if error is None:
            self._add(0.0, _samples(batch), 1.0)
            self._take_fingerprint(batch)

    def _take_fingerprint(self, batch: Any) -> None:
        fingerprints = self._observer.loop.fingerprints
        if fingerprints is not None and not self.is_on_device:
            take_fingerprints_in_graph(fingerprints, batch, self._observer.trains_in_graph())

    def take(self) -> Sums:
        """Return seconds of waiting, samples and batches since the last call."""
        if self._handle is None:
            return 0.0, 0.0, 0.0
        with _python("eager.context").eager_mode():  # the trainer may be building a graph
            variables, dtype = _python("ops.gen_resource_variable_ops"), _python("framework.dtypes").float64
            value = variables.read_variable_op(self._handle, dtype).numpy().tolist()
        before, self._taken = self._taken, value
        return value[0] - before[0], value[1] - before[1], value[2] - before[2]

    def _add(self, wait: Any, samples: Any, batches: float) -> None:
        with _on_host():
            amounts = _python("ops.gen_array_ops").pack([_float(amount) for amount in (wait, samples, batches)])
            _python("ops.gen_resource_variable_ops").assign_add_variable_op(self._handle, amounts)


def new_variable(name: str, values: list[float]) -> Any:
    """Return a float64 variable for graphs, below tf.Variable; None in a TensorFlow 1 graph."""
    with _python("framework.ops").init_scope(), _on_host():
        if not eager_check()():
            return None  # the surrounding function is a graph of TensorFlow 1
        variables, dtype = _python("ops.gen_resource_variable_ops"), _python("framework.dtypes").float64
        handle = variables.var_handle_op(dtype, [len(values)], shared_name=name)
        variables.assign_variable_op(handle, _python("framework.constant_op").constant(values, dtype))
        return handle


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
    """Return the samples in a batch, summed over replicas; a tensor if they vary."""
    leaves = _flatten(batch)
    replicas = len(getattr(leaves[0], "values", ())) if type(leaves[0]).__name__ == "PerReplica" else 1
    samples: Any = 0.0
    for replica in range(replicas):
        values = [leaf.values[replica] if type(leaf).__name__ == "PerReplica" else leaf for leaf in leaves]
        sized = [tensor for tensor in values if getattr(tensor, "shape", None) and tensor.shape.rank]
        # A fixed size isn't the number of samples if another size varies.
        tensor = next((tensor for tensor in sized if tensor.shape[0] is None), sized[0] if sized else None)
        if tensor is not None and tensor.shape[0] is None:
            with _on_host():
                samples = _float(_python("ops.gen_array_ops").shape(tensor)[0]) + samples
        elif tensor is not None:
            samples = float(tensor.shape[0]) + samples
    return samples


def take_fingerprints_in_graph(fingerprints: Fingerprints, batch: Any, trains: Callable[[], bool]) -> None:
    """Add operations to the current graph that take every `stride`-th batch's fingerprint."""
    leaves = [leaf for leaf in _flatten(batch) if type(leaf).__name__ != "PerReplica" and hasattr(leaf, "dtype")]
    tensorflow, variables = sys.modules["tensorflow"], _python("ops.gen_resource_variable_ops")
    dataset = fingerprints.dataset()
    handle = new_variable(f"autotune_looks_{dataset}", [0.0, 1.0]) if leaves else None  # batches so far, stride
    if handle is None:
        return
    current_pass = fingerprints.begin(dataset, trains)
    current_pass.number = None  # ends of passes aren't seen here

    def take_one(at: Any, *tensors: Any) -> float:
        current_pass.batches = int(at) - 1
        parts = [tensor._numpy() for tensor in tensors]
        sized = [part for part in parts if part.ndim]
        fingerprints.take(current_pass, parts, len(sized[0]) if sized else None)
        return float(fingerprints.stride)

    with _on_host():
        variables.assign_add_variable_op(handle, tensorflow.constant([1.0, 0.0], tensorflow.float64))
        at, stride = tensorflow.unstack(variables.read_variable_op(handle, tensorflow.float64), num=2)

        def take_now() -> Any:
            new = tensorflow.py_function(take_one, [at, *leaves], tensorflow.float64)
            variables.assign_variable_op(handle, tensorflow.stack([at, tensorflow.reshape(new, [])]))
            return at

        tensorflow.cond(tensorflow.equal(tensorflow.math.floormod(at - 1.0, stride), 0.0), take_now, lambda: at)
