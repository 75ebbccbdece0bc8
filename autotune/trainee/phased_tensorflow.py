"""Phases of TensorFlow's compiled steps that fetch from an iterator among their arguments, as Keras's ``fit`` has them.

Nothing inside of a compiled step can be changed, but its argument can: in `REPLAY` it is given an iterator of the same
type over a few kept batches, and for `LOAD` batches are drawn before it is called.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from importlib import import_module
from typing import Any, Callable

from autotune.trainee.batch import MOST_KEPT
from autotune.trainee.observer import Observer
from autotune.trainee.phases import LOAD, REPLAY, Data, PhasedLoop


def phase_compiled_steps(
    observer: Observer,
    phased: PhasedLoop,
    ends: tuple[type[BaseException], ...],
    data_of: Callable[[Any], Any],
    is_eager: Callable[[], object],
) -> None:
    """Have compiled steps follow the phases, before anything else is put around TensorFlow's functions.

    Args:
        ends: Exceptions that mean the end of the data.
        data_of: Returns what an iterator goes over.
        is_eager: True if no graph is under construction.
    """
    steps = _CompiledSteps(observer, phased, ends, data_of)

    def around_call(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                if phased.is_open and is_eager():
                    args = steps.arguments(args)
            except Exception as error:
                phased.failed(error)
            return original(*args, **kwargs)

        observer.instrumentation.put(owner, name, call)

    observer.attempt("tensorflow.python.eager.polymorphic_function.polymorphic_function:Function.__call__", around_call)


class _CompiledSteps:
    """Calls of compiled steps that fetch their batches themselves."""

    def __init__(
        self,
        observer: Observer,
        phased: PhasedLoop,
        ends: tuple[type[BaseException], ...],
        data_of: Callable[[Any], Any],
    ) -> None:
        self._loop = observer.loop
        self._phased = phased
        self._ends = ends
        self._data_of = data_of
        one = import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
        several = import_module("tensorflow.python.distribute.input_lib").DistributedIteratorBase
        # The methods that fetch in Python, by the class of the iterator, before they are observed.
        self._fetches: dict[type, Callable[[Any], Any]] = {one: one._next_internal, several: several.get_next}

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments for a call of a compiled function, given the trainer's."""
        at = [at for at, argument in enumerate(args) if isinstance(argument, tuple(self._fetches))]
        if len(at) != 1:
            return args
        iterator = args[at[0]]
        turn = self._phased.asks(iterator, self._data_of(iterator), functools.partial(self._prepare, iterator))
        if turn is not None and turn.phase == REPLAY and turn.data.stand_in is not None:
            return (*args[: at[0]], turn.data.stand_in, *args[at[0] + 1 :])
        if turn is not None and turn.phase == LOAD:
            self._draw(iterator, turn.data)
        return args

    def _draw(self, iterator: Any, data: Data) -> None:
        """Draw batches in Python; where that ends the data, the step meets the end."""
        was_suspended = self._loop.is_suspended
        self._loop.is_suspended = True  # no step is made of what is fetched here
        try:
            with self._phased.inside(), contextlib.suppress(*self._ends):
                self._phased.draw(data, functools.partial(self._fetch, iterator), self._ends)
        finally:
            self._loop.is_suspended = was_suspended
            self._loop.aggregated.skip(time.monotonic())

    def _fetch(self, iterator: Any) -> Any:
        return next(fetch(iterator) for kind, fetch in self._fetches.items() if isinstance(iterator, kind))

    def _prepare(self, iterator: Any, data: Data) -> bool:
        """Make the iterator over kept batches; return False if there were none."""
        if not hasattr(iterator, "_iterator_resource"):
            self._phased.leave_out(REPLAY, "a compiled step fetches for several devices by itself")
            return True  # what follows is another phase
        batches: list[Any] = []
        with self._phased.inside(), contextlib.suppress(*self._ends):
            while len(batches) < MOST_KEPT:
                batches.append(self._fetch(iterator))
        flatten = import_module("tensorflow.python.util.nest").flatten
        if any("CPU" not in getattr(part, "device", "CPU") for part in flatten(batches, expand_composites=True)):
            self._phased.leave_out(REPLAY, "a compiled step fetches batches by itself that are on an accelerator")
            return True
        if batches:
            data.stand_in = _iterator_over(batches, iterator.element_spec)
        return bool(batches)


def _iterator_over(batches: list[Any], element_spec: Any) -> Any:
    tf = sys.modules["tensorflow"]
    with tf.device("/device:CPU:0"):
        of_one = (tf.data.Dataset.from_tensors(batch) for batch in batches)
        # Each of them has lengths of its own; the compiled step knows those that may vary as such.
        alike = [
            tf.data.experimental.from_variant(tf.data.experimental.to_variant(one), element_spec) for one in of_one
        ]
        options = tf.data.Options()
        options.autotune.enabled = options.experimental_optimization.inject_prefetch = False  # nothing to be waited for
        in_turn = functools.reduce(lambda first, second: first.concatenate(second), alike)
        return iter(in_turn.repeat().with_options(options))
