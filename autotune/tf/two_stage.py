"""Pipeline over two devices: one computes the features of the next batches while the other trains.

    tf.data    fetch thread    feature thread    copy thread    the trainer's thread
    host    ->  data device  ->  data device  ->  model device  ->  model device
              1 batch ahead    the buffer        1 batch ahead

One thread computes per device: eager operations from several threads on one GPU have returned wrong results
(tensorflow#123980). Another thread waits for the model device, so that a trainer that never reads its loss cannot run
ahead.

A batch enters the buffer when the data device has *finished* it: a GPU function returns a promise, and a buffer of
promises is unbounded. Each device is awaited by reading back its last result; `tf.test.experimental.sync_devices` would
wait for both.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from autotune.stage_times import PipelineTimes, StageTimes
from autotune.tf.feed import BatchFeed, Feed, Fetched
from autotune.tf.options import BufferOptions
from autotune.tf.runtime import Placement, require_devices, require_no_conflict
from autotune.trainee import mark

Tensors = dict[str, tf.Tensor]
Signature = dict[str, tf.TensorSpec]
FeatureFunction = Callable[[Tensors, tf.Tensor], Tensors]
"""Function from a batch and its number (int64 scalar, from 0) to its features, as graph operations.

Random numbers come from `tf.random.stateless_*` with the batch number in the seed: they then do not depend on the
device or on concurrent work.
"""

_AHEAD = 1  # batches buffered at each end, in addition to one being copied; also steps
_JOIN_TIMEOUT_S = 10.0
_REPORT_EVERY_S = 0.25
_log = logging.getLogger(__name__)


class TwoStageFeed(BatchFeed):
    """Iterator over batches of features on the model device, the same for all devices and buffer sizes.

    Args:
        batches: Dataset of host batches, in fixed shapes.
        work: Feature *of the host batches* that counts valid work.
        first_number: Number of the first batch; in a resumed training, the steps done so far.
        reports: Whether to report stage times to a search.

    Attributes:
        depth: Capacity of the buffer in batches.

    Raises:
        ValueError: Devices, shapes, features or the buffer's size are unsuitable.
    """

    def __init__(
        self,
        batches: tf.data.Dataset,
        features: FeatureFunction,
        placement: Placement,
        options: BufferOptions,
        *,
        work: str,
        first_number: int = 0,
        reports: bool = True,
    ) -> None:
        require_no_conflict()
        require_devices(placement)
        function = _compiled(features, batches.element_spec, placement.data)
        self.element_spec = _fixed("feature", _outputs(function))
        self.device = placement.model
        self.depth = options.depth(_batch_bytes(self.element_spec))
        self._warmup_batches = options.warmup_batches
        self._data_clock, self._model_clock = StageClock(), StageClock()

        fetched: BatchBuffer[_Batch] = BatchBuffer(_AHEAD)
        computed: BatchBuffer[_Batch] = BatchBuffer(self.depth)
        ready: BatchBuffer[_Batch] = computed
        running: BatchBuffer[_Running] = BatchBuffer(_AHEAD)
        data, model = placement.data, placement.model
        threads = [
            _thread("fetch", fetched, _fetch, Feed(batches, work=work), first_number, data, fetched),
            _thread("features", computed, _compute, fetched, function, data, computed, self._data_clock),
            _thread("steps", running, _await_steps, running, self._model_clock),
        ]
        if model != data:
            ready = BatchBuffer(_AHEAD)
            threads.append(_thread("copy", ready, _copy, computed, model, ready))
        self._computed, self._ready, self._running = computed, ready, running
        self._stop = weakref.finalize(self, _stop, (fetched, computed, ready, running), threads)
        self._start: PipelineTimes | None = None
        self._start_s, self._report_at_s = 0.0, 0.0 if reports else math.inf
        self._last: _Running | None = None
        for thread in threads:
            thread.start()

    def __next__(self) -> Fetched:
        requested_s = time.monotonic()
        try:
            if self._last is not None:
                self._running.put(self._last)
                self._last = None
            with self._model_clock.counting("input_s"):
                if self._start is None:
                    self._computed.wait_for_items(self._warmup_batches)
                batch = self._ready.get()
        except BufferClosedError:
            raise StopIteration from None
        except Exception:  # of a stage: it is final, and the error's traceback must not keep the threads alive
            self.close()
            raise
        if batch is None:
            raise StopIteration
        handed_s = time.monotonic()
        if self._start is None:
            self._start_s = handed_s
            self._start = PipelineTimes(passed_s=0.0, data=self._data_clock.times(), model=self._model_clock.times())
        self._last = _Running(number=batch.number, handed_s=handed_s)
        if handed_s >= self._report_at_s:
            self._report_at_s = handed_s + _REPORT_EVERY_S
            mark("stages", stages=asdict(self.times()))
        return Fetched(batch=batch.tensors, wait_s=handed_s - requested_s, work=batch.work)

    def times(self) -> PipelineTimes:
        data, model = self._data_clock.times(), self._model_clock.times()
        if self._start is None:
            return PipelineTimes(passed_s=0.0, data=data - data, model=model - model)
        passed_s = time.monotonic() - self._start_s
        return PipelineTimes(passed_s=passed_s, data=data - self._start.data, model=model - self._start.model)

    def close(self) -> None:
        """Stop the threads and drop the batches."""
        self._last = None
        self._stop()


def two_stage_dataset(
    batches: tf.data.Dataset,
    features: FeatureFunction,
    placement: Placement,
    options: BufferOptions,
    *,
    work: str,
    elements: Callable[[Tensors], Any],
) -> tf.data.Dataset:
    """Return the same pipeline as a dataset, for `keras.Model.fit` under ``tf.device(placement.model)``.

    Each pass starts with batch 0. Batches go through host memory. Stage times are not reported.

    Args:
        elements: Function from features by name to an argument of `fit`, such as ``(x, y)``.
    """
    through_host = Placement(data=placement.data, model="/CPU:0")
    require_devices(placement)
    signature = _fixed("feature", _outputs(_compiled(features, batches.element_spec, placement.data)))

    def one_pass() -> Iterator[Tensors]:
        with TwoStageFeed(batches, features, through_host, options, work=work, reports=False) as feed:
            for fetched in feed:
                yield fetched.batch

    dataset = tf.data.Dataset.from_generator(one_pass, output_signature=signature).map(elements).prefetch(_AHEAD)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches.cardinality()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Batch on a device, and its number, which the device computes last."""

    tensors: Tensors
    number: tf.Tensor
    work: int

    def on(self, device: str) -> _Batch:
        with tf.device(device):
            tensors = {name: tf.identity(tensor) for name, tensor in self.tensors.items()}
            return _Batch(tensors=tensors, number=tf.identity(self.number), work=self.work)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    """Step of the model device: a number to read back, and its batch's hand-out time."""

    number: tf.Tensor
    handed_s: float


def _compiled(features: FeatureFunction, signature: Signature, device: str) -> Any:
    """Return the traced function to features and number, which is computed last."""

    def run(batch: Tensors, number: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        with tf.device(device):
            computed = _tensors(features(dict(batch), number))
            with tf.control_dependencies(list(computed.values())):
                return computed, tf.identity(number)

    fixed = _fixed("input", signature)
    traced = tf.function(run, input_signature=[fixed, tf.TensorSpec([], tf.int64)], autograph=False)
    with tf.device(device):
        return traced.get_concrete_function()


def _fetch(source: Feed, first_number: int, device: str, fetched: BatchBuffer[_Batch]) -> None:
    for number, (tensors, work) in enumerate(((item.batch, item.work) for item in source), first_number):
        with tf.device("/CPU:0"):  # an array, because TensorFlow caches a tensor for every Python number
            read = _Batch(tensors=tensors, number=tf.constant(np.array(number)), work=work)
        fetched.put(read.on(device))


def _compute(
    fetched: BatchBuffer[_Batch], function: Any, device: str, computed: BatchBuffer[_Batch], clock: StageClock
) -> None:
    while True:
        with clock.counting("input_s"):
            batch = fetched.get()
        if batch is None:
            return
        with clock.counting("busy_s"), tf.device(device):
            tensors, number = function(batch.tensors, batch.number)
            number.numpy()
        clock.batches += 1
        with clock.counting("room_s"):
            computed.put(_Batch(tensors=tensors, number=number, work=batch.work))
        del batch, tensors, number  # else they occupy device memory until the next ones exist


def _copy(computed: BatchBuffer[_Batch], device: str, ready: BatchBuffer[_Batch]) -> None:
    while (batch := computed.get()) is not None:
        ready.put(batch.on(device))
        del batch


def _await_steps(running: BatchBuffer[_Running], clock: StageClock) -> None:
    """Wait for each step: a number is read back after all earlier work of the device."""
    ended_s = 0.0
    while (step := running.get()) is not None:
        step.number.numpy()
        began_s, ended_s = max(step.handed_s, ended_s), time.monotonic()
        clock.busy_s += ended_s - began_s
        clock.batches += 1


def _thread(name: str, shared: BatchBuffer[Any], work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Return a thread that reports its end or error to the shared buffer."""

    def run() -> None:
        try:
            work(*arguments)
        except BufferClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  # the trainer's thread raises it
            shared.finish(error)
        else:
            shared.finish()

    return threading.Thread(target=run, name=f"autotune-{name}", daemon=True)


def _stop(buffers: Sequence[BatchBuffer[Any]], threads: Sequence[threading.Thread]) -> None:
    for buffer in buffers:
        buffer.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_JOIN_TIMEOUT_S)
            if thread.is_alive():  # a hung loader cannot be stopped
                _log.warning("thread %s does not end: its current call does not return", thread.name)


def _tensors(result: object) -> Tensors:
    if not isinstance(result, dict) or not result or not all(isinstance(name, str) for name in result):
        raise ValueError(f"features must return a dict of tensors by name, got {type(result).__name__}: {result!r:.80}")
    try:
        return {name: tf.convert_to_tensor(value) for name, value in result.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"features must be dense tensors: {error}") from error


def _outputs(function: Any) -> Signature:
    tensors, _number = function.structured_outputs
    return {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _fixed(what: str, signature: Signature) -> Signature:
    for name, spec in signature.items():
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"{what} {name!r} has shape {spec.shape}: a pipeline over two devices needs fixed shapes. "
                "Pad it to its maximum"
            )
        if spec.dtype == tf.string and what == "feature":
            raise ValueError(f"feature {name!r} is text, which GPUs do not support: encode it as numbers")
    return dict(signature)


def _batch_bytes(signature: Signature) -> int:
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in signature.values())


Item = TypeVar("Item")


class BufferClosedError(Exception):
    """The buffer is closed."""


class BatchBuffer(Generic[Item]):
    """Blocking FIFO buffer of at most `size` items, with one producer and one consumer."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._finished = False
        self._error: BaseException | None = None
        self._closed = False

    def put(self, item: Item) -> None:
        """Append an item, waiting for space; raise BufferClosedError or the consumer's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) < self._size)
            if self._error is not None:
                raise self._error
            if self._closed:
                raise BufferClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item | None:
        """Remove the oldest item, waiting for one; None after the last.

        Raises:
            BufferClosedError: It is closed.
            BaseException: Error of the producer, after its last item.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items or self._finished)
            if self._closed:
                raise BufferClosedError
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def wait_for_items(self, count: int) -> None:
        """Wait for this many items, a full buffer, or the last item."""
        with self._changed:
            wanted = min(count, self._size)
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) >= wanted)

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the end of the data, or an error of producer or consumer."""
        with self._changed:
            self._finished = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the items and wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None  # its traceback references the producer's frames, and so a batch
            self._changed.notify_all()


class StageClock:
    """Times of one stage, as in `StageTimes`; written by its thread, read by others."""

    def __init__(self) -> None:
        self.batches = 0
        self.busy_s = self.input_s = self.room_s = 0.0

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        setattr(self, name, getattr(self, name) + time.monotonic() - started_s)

    def times(self) -> StageTimes:
        return StageTimes(**vars(self))
