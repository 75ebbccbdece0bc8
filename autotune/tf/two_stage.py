"""Pipeline over two devices: the features of the next batches are computed on one while the other trains.

    tf.data    fetch thread    feature thread    copy thread    the trainer's thread
    host    ->  data device  ->  data device  ->  model device  ->  model device
              1 batch ahead    the buffer        1 batch ahead

One thread computes on each device. (TensorFlow's eager operations from several threads on one GPU have returned wrong
results, tensorflow#123980.) The threads of the copies compute nothing. One more thread waits for the model device, so
that a trainer which never looks at its loss cannot run ahead of it without end.

A batch enters the buffer when the data device is *done* with it: what a function call returns on a GPU is a promise,
and a buffer of promises bounds nothing. Each device is waited for alone, by reading a number back that it computes
last; `tf.test.experimental.sync_devices` would wait for both, and so have them work in turn.
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
from autotune.tf.runtime import Placement, refuse_other_ways, require_there
from autotune.trainee import mark

Tensors = dict[str, tf.Tensor]
Signature = dict[str, tf.TensorSpec]
FeatureFunction = Callable[[Tensors, tf.Tensor], Tensors]
"""Function from a batch and its number (int64 scalar, from 0) to its features, as graph operations.

Random numbers are drawn with `tf.random.stateless_*` and the number of the batch as part of the seed: then they do
not depend on which device draws them, nor on what is computed at the same time.
"""

_AHEAD = 1  # batches that wait at each end of the buffer, beside one that is being copied there; also steps
_PATIENCE_S = 10.0
_REPORT_EVERY_S = 0.25
_log = logging.getLogger(__name__)


class TwoStageFeed(BatchFeed):
    """Iterator over batches of features on the model device.

    Under a search it reports the times of its stages by itself, for the verdict on the final screen.

    The batches are the same, and in the same order, wherever the stages are and however deep the buffer is.

    Args:
        batches: Dataset of batches as the host reads them, in fixed shapes.
        work: The feature *of the host's batches* that counts the valid work, see `autotune.tf.feed.Feed`.
        first_number: Number of the first batch, for a training that is resumed: the steps that it has done.
        reports: Whether a search is told the times of the stages.

    Attributes:
        depth: Batches that the buffer holds.

    Raises:
        ValueError: A device is not there; a shape is not fixed; the features are no tensors by name; the buffer's bytes
            hold not even one batch; or something else in this process divides the work over the devices.
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
        refuse_other_ways()
        require_there(placement)
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
            _thread("steps", running, _watch, running, self._model_clock),
        ]
        if model != data:
            ready = BatchBuffer(_AHEAD)
            threads.append(_thread("copy", ready, _move, computed, model, ready))
        self._computed, self._ready, self._running = computed, ready, running
        self._end = weakref.finalize(self, _end, (fetched, computed, ready, running), threads)
        self._begun: PipelineTimes | None = None
        self._begun_s, self._report_at_s = 0.0, 0.0 if reports else math.inf
        self._last: _Running | None = None
        for thread in threads:
            thread.start()

    def __next__(self) -> Fetched:
        asked_s = time.monotonic()
        try:
            if self._last is not None:
                self._running.put(self._last)
                self._last = None
            with self._model_clock.counting("input_s"):
                if self._begun is None:
                    self._computed.wait_for_items(self._warmup_batches)
                batch = self._ready.get()
        except BufferClosedError:
            raise StopIteration from None
        except Exception:  # of a stage: nothing follows, and the error's traceback must not keep the threads alive
            self.close()
            raise
        if batch is None:
            raise StopIteration
        handed_s = time.monotonic()
        if self._begun is None:
            self._begun_s = handed_s
            self._begun = PipelineTimes(passed_s=0.0, data=self._data_clock.times(), model=self._model_clock.times())
        self._last = _Running(number=batch.number, handed_s=handed_s)
        if handed_s >= self._report_at_s:
            self._report_at_s = handed_s + _REPORT_EVERY_S
            mark("stages", stages=asdict(self.times()))
        return Fetched(batch=batch.tensors, wait_s=handed_s - asked_s, work=batch.work)

    def times(self) -> PipelineTimes:
        """Return the times since the first batch was handed out."""
        data, model = self._data_clock.times(), self._model_clock.times()
        if self._begun is None:
            return PipelineTimes(passed_s=0.0, data=data - data, model=model - model)
        passed_s = time.monotonic() - self._begun_s
        return PipelineTimes(passed_s=passed_s, data=data - self._begun.data, model=model - self._begun.model)

    def close(self) -> None:
        """End the threads and drop the batches; may be called by anybody, and again."""
        self._last = None
        self._end()


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

    Each pass over it begins with batch 0 and ends with its threads. Batches come through the host's memory, from where
    Keras copies each to the model device with its step; how long a step takes is not seen here, so no times of stages
    are reported.

    Args:
        elements: Function from features by name to what `fit` takes, such as ``(x, y)``.

    Raises:
        ValueError: See `TwoStageFeed`.
    """
    through_host = Placement(data=placement.data, model="/CPU:0")
    require_there(placement)
    signature = _fixed("feature", _outputs(_compiled(features, batches.element_spec, placement.data)))

    def a_pass() -> Iterator[Tensors]:
        with TwoStageFeed(batches, features, through_host, options, work=work, reports=False) as feed:
            for fetched in feed:
                yield fetched.batch

    made = tf.data.Dataset.from_generator(a_pass, output_signature=signature).map(elements).prefetch(_AHEAD)
    return made.apply(tf.data.experimental.assert_cardinality(batches.cardinality()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Batch on a device, with its number there, which exists only when the batch does, and the valid work in it."""

    tensors: Tensors
    number: tf.Tensor
    work: int

    def on(self, device: str) -> _Batch:
        with tf.device(device):
            tensors = {name: tf.identity(tensor) for name, tensor in self.tensors.items()}
            return _Batch(tensors=tensors, number=tf.identity(self.number), work=self.work)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    """Step that was given to the model device: a number there to read back, and the time of its batch."""

    number: tf.Tensor
    handed_s: float


def _compiled(features: FeatureFunction, signature: Signature, device: str) -> Any:
    """Return the traced function from a batch and its number to the features and the number, which comes last."""

    def run(batch: Tensors, number: tf.Tensor) -> tuple[Tensors, tf.Tensor]:
        with tf.device(device):
            made = _tensors(features(dict(batch), number))
            with tf.control_dependencies(list(made.values())):
                return made, tf.identity(number)

    fixed = _fixed("input", signature)
    traced = tf.function(run, input_signature=[fixed, tf.TensorSpec([], tf.int64)], autograph=False)
    with tf.device(device):
        return traced.get_concrete_function()


def _fetch(source: Feed, first_number: int, device: str, fetched: BatchBuffer[_Batch]) -> None:
    """Read batches and copy them to the data device."""
    for number, (tensors, work) in enumerate(((item.batch, item.work) for item in source), first_number):
        with tf.device("/CPU:0"):  # an array: the tensor of each Python number that it has seen TensorFlow keeps
            read = _Batch(tensors=tensors, number=tf.constant(np.array(number)), work=work)
        fetched.put(read.on(device))


def _compute(
    fetched: BatchBuffer[_Batch], function: Any, device: str, computed: BatchBuffer[_Batch], clock: StageClock
) -> None:
    """Compute the features of all batches: the one thread that computes on the data device."""
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
        del batch, tensors, number  # else they live, in memory of the device, until the next ones are there


def _move(computed: BatchBuffer[_Batch], device: str, ready: BatchBuffer[_Batch]) -> None:
    """Copy the features to the model device, ahead of the step."""
    while (batch := computed.get()) is not None:
        ready.put(batch.on(device))
        del batch


def _watch(running: BatchBuffer[_Running], clock: StageClock) -> None:
    """Wait for each step: a number that is read back comes after all that the device was told to do before."""
    ended_s = 0.0
    while (step := running.get()) is not None:
        step.number.numpy()
        began_s, ended_s = max(step.handed_s, ended_s), time.monotonic()
        clock.busy_s += ended_s - began_s
        clock.batches += 1


def _thread(name: str, shared: BatchBuffer[Any], work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Return a thread that does the work; its end, or its error, is told to the buffer that it shares with others."""

    def run() -> None:
        try:
            work(*arguments)
        except BufferClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  # the thread of the trainer raises it
            shared.finish(error)
        else:
            shared.finish()

    return threading.Thread(target=run, name=f"autotune-{name}", daemon=True)


def _end(buffers: Sequence[BatchBuffer[Any]], threads: Sequence[threading.Thread]) -> None:
    for buffer in buffers:
        buffer.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_PATIENCE_S)
            if thread.is_alive():  # nothing ends a loader that hangs
                _log.warning("thread %s does not end: what it calls does not return", thread.name)


def _tensors(made: object) -> Tensors:
    if not isinstance(made, dict) or not made or not all(isinstance(name, str) for name in made):
        raise ValueError(f"features must return a dict of tensors by name, got {type(made).__name__}: {made!r:.80}")
    try:
        return {name: tf.convert_to_tensor(value) for name, value in made.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"features must be dense tensors: {error}") from error


def _outputs(function: Any) -> Signature:
    tensors, _number = function.structured_outputs
    return {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _fixed(what: str, signature: Signature) -> Signature:
    for name, spec in signature.items():
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"{what} {name!r} has shape {spec.shape}: between two devices every batch has the same, fixed shape. "
                "Pad it to the longest there can be"
            )
        if spec.dtype == tf.string and what == "feature":
            raise ValueError(f"feature {name!r} is text, which no GPU holds: encode it as numbers")
    return dict(signature)


def _batch_bytes(signature: Signature) -> int:
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in signature.values())


Item = TypeVar("Item")


class BufferClosedError(Exception):
    """The buffer was closed by somebody: nothing goes in or comes out any more."""


class BatchBuffer(Generic[Item]):
    """Buffer with one producer and one consumer: order is kept, and whoever has nothing to do sleeps until it has.

    Args:
        size: Most items at a time, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._finished = False
        self._error: BaseException | None = None
        self._closed = False

    def put(self, item: Item) -> None:
        """Append an item, after waiting for room if there is none.

        Raises:
            BufferClosedError: It is closed.
            BaseException: The error of the consumer, if it ended with one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) < self._size)
            if self._error is not None:
                raise self._error
            if self._closed:
                raise BufferClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item | None:
        """Take the oldest item, after waiting for one if there is none.

        Returns:
            The item; None after the last one.

        Raises:
            BufferClosedError: It is closed.
            BaseException: The error of the producer, once everything that it made before is taken.
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
        """Wait until so many items are there, or all that it holds, or the last one is."""
        with self._changed:
            wanted = min(count, self._size)
            self._changed.wait_for(lambda: self._closed or self._finished or len(self._items) >= wanted)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that the producer is at the end of the data, or that one of the two ended with an error."""
        with self._changed:
            self._finished = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the items and wake up whoever waits; may be called by anybody, and again."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None  # its traceback holds the frames of the producer, and with them a batch
            self._changed.notify_all()


class StageClock:
    """Clock of one stage; written by the stage's own thread, read by anybody.

    Its attributes are those of `StageTimes`.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.busy_s = self.input_s = self.room_s = 0.0

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
        """Add the time of what is inside to the attribute of that name."""
        started_s = time.monotonic()
        yield
        setattr(self, name, getattr(self, name) + time.monotonic() - started_s)

    def times(self) -> StageTimes:
        return StageTimes(**vars(self))
