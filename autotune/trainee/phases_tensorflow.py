"""Phases of TensorFlow's compiled steps that fetch from an iterator argument, and of the feeds of `tf/`.

A compiled step, such as that of Keras's ``fit``, can't be changed, but its argument can: `REPLAY` passes an iterator of
the same type over a few kept batches; `LOAD` draws batches before the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from importlib import import_module
from typing import Any, Callable

from autotune.trainee.batch import in_new_containers
from autotune.trainee.observe import Observer
from autotune.trainee.observe_tensorflow import FUNCTION_CALL, data_of, eager_check, out_of_range
from autotune.trainee.phases import LOAD, MOST_KEPT, REPLAY, Data, PhasedLoop


class CompiledStepsObserver(Observer):
    """Observer of compiled steps that fetch; installed before the observers that record."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._is_eager, self._ends = eager_check(), (StopIteration, out_of_range())
        one = import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
        several = import_module("tensorflow.python.distribute.input_lib").DistributedIteratorBase
        # Fetch methods in Python, by the iterator's class.
        self._fetches: dict[type, Callable[[Any], Any]] = {one: one._next_internal, several: several.get_next}

    def install(self) -> None:
        self.attempt(FUNCTION_CALL, self._around_call)

    def _around_call(self, owner: Any, name: str) -> None:
        original, phased, is_eager, arguments = getattr(owner, name), self.phased, self._is_eager, self._arguments
        assert phased is not None

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if phased.is_open and is_eager():
                    args = arguments(phased, args)
            except Exception as error:
                phased.failed(error)
            return original(*args, **kwargs)

        self.instrumentation.put(owner, name, call)

    def _arguments(self, phased: PhasedLoop, args: tuple[Any, ...]) -> tuple[Any, ...]:
        at = [at for at, argument in enumerate(args) if isinstance(argument, tuple(self._fetches))]
        if len(at) != 1:
            return args
        iterator = args[at[0]]
        request = phased.request(iterator, data_of(iterator), functools.partial(self._prepare, phased, iterator))
        if request is not None and request.phase == REPLAY and request.data.stand_in is not None:
            return (*args[: at[0]], request.data.stand_in, *args[at[0] + 1 :])
        if request is not None and request.phase == LOAD:
            self._draw(phased, iterator, request.data)
        return args

    def _draw(self, phased: PhasedLoop, iterator: Any, data: Data) -> None:
        """Draw batches in Python; if that ends the data, the step meets the end."""
        was_suspended = self.loop.is_suspended
        self.loop.is_suspended = True  # these fetches make no steps
        try:
            with phased.inside(), contextlib.suppress(*self._ends):
                phased.draw(data, functools.partial(self._fetch, iterator), self._ends)
        finally:
            self.loop.is_suspended = was_suspended
            self.loop.aggregated.skip(time.monotonic())

    def _fetch(self, iterator: Any) -> Any:
        return next(fetch(iterator) for kind, fetch in self._fetches.items() if isinstance(iterator, kind))

    def _prepare(self, phased: PhasedLoop, iterator: Any, data: Data) -> bool:
        """Make the iterator over kept batches; return False if there are none."""
        if not hasattr(iterator, "_iterator_resource"):
            phased.leave_out(REPLAY, "a compiled step itself fetches batches for several devices")
            return True  # the next phase is another one
        batches: list[Any] = []
        with phased.inside(), contextlib.suppress(*self._ends):
            while len(batches) < MOST_KEPT:
                batches.append(self._fetch(iterator))
        flatten = import_module("tensorflow.python.util.nest").flatten
        if any("CPU" not in getattr(part, "device", "CPU") for part in flatten(batches, expand_composites=True)):
            phased.leave_out(REPLAY, "a compiled step itself fetches batches that are on an accelerator")
            return True
        if batches:
            data.stand_in = _iterator_over(batches, iterator.element_spec)
        return bool(batches)


def _iterator_over(batches: list[Any], element_spec: Any) -> Any:
    tf = sys.modules["tensorflow"]
    with tf.device("/device:CPU:0"):
        of_one = (tf.data.Dataset.from_tensors(batch) for batch in batches)
        # Each has fixed lengths; the compiled step expects those that may vary as such.
        same_spec = [
            tf.data.experimental.from_variant(tf.data.experimental.to_variant(one), element_spec) for one in of_one
        ]
        options = tf.data.Options()
        options.autotune.enabled = options.experimental_optimization.inject_prefetch = False  # nothing to wait for
        concatenated = functools.reduce(lambda first, second: first.concatenate(second), same_spec)
        return iter(concatenated.repeat().with_options(options))


class FeedObserver(Observer):
    """Phases of the feed of `autotune.tf`, which returns a batch with its work."""

    place = "autotune.tf.feed:Feed.__next__"

    def install(self) -> None:
        if self.phased is not None:
            self.attempt(self.place, functools.partial(self._follow, self.phased))

    def _follow(self, phased: PhasedLoop, owner: Any, name: str) -> None:
        fetch = phased.around_fetch(
            getattr(owner, name),
            lambda feed: feed,
            renewed=lambda one: dataclasses.replace(one, batch=in_new_containers(one.batch), wait_s=0.0),
            arrays_of=lambda fetched: fetched.batch,
        )
        self.instrumentation.put(owner, name, fetch)


class TwoStageFeedObserver(FeedObserver):
    """Phases of the two-stage feed."""

    place = "autotune.tf.two_stage:TwoStageFeed.__next__"
