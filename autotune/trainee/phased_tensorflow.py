"""Phases of TensorFlow loops: eager fetches, and compiled steps that fetch from an iterator among their arguments.

Keras's ``fit`` is one of the latter. Nothing inside of a compiled step can be changed, but its argument can: in
`REPLAY` it is given an iterator of the same type over a few kept batches, and for `LOAD` batches are drawn before it is
called.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable

from autotune.trainee.batch import MOST_KEPT
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.phased_fetch import around_phased_fetch, draw, marked
from autotune.trainee.phased_loop import Data, PhasedLoop
from autotune.trainee.phases import LOAD, REPLAY

_DISTRIBUTED = "a compiled step fetches for several devices by itself"
_ON_DEVICE = "a compiled step fetches batches by itself that are on an accelerator"


def phase(phased: PhasedLoop, loop: Loop, instrumentation: Instrumentation, is_eager: Callable[[], object]) -> None:
    """Have TensorFlow's fetches follow the phases, before anything else is put around them.

    Args:
        is_eager: True if no graph is under construction.
    """
    one = import_module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
    several = import_module("tensorflow.python.distribute.input_lib").DistributedIteratorBase
    steps = _CompiledSteps(phased, loop, {one: one._next_internal, several: several.get_next}, is_eager)

    def around_call() -> None:
        owner = import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function").Function
        original = owner.__call__

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                args = steps.arguments(args)
            except Exception as error:
                phased.failed(error)
            return original(*args, **kwargs)

        instrumentation.put(owner, "__call__", call)

    def around(owner: Any, name: str) -> None:
        instrumentation.attempt(
            f"tensorflow: phases of {name}",
            lambda: around_phased_fetch(
                phased, instrumentation, (owner, name), _data_of, is_plain=is_eager, ends=steps.ends
            ),
        )

    instrumentation.attempt("tensorflow: phases of compiled steps", around_call)
    around(one, "_next_internal")
    around(several, "get_next")


def _data_of(iterator: Any) -> Any:
    dataset = getattr(iterator, "_dataset", None)
    return iterator if dataset is None else dataset


class _CompiledSteps:
    """Calls of compiled steps that fetch their batches themselves.

    Args:
        draws: Classes of iterators → the method that fetches a batch in Python.
        is_eager: True if no graph is under construction.

    Attributes:
        ends: Exceptions that mean the end of the data.
    """

    def __init__(
        self,
        phased: PhasedLoop,
        loop: Loop,
        draws: dict[type, Callable[[Any], Any]],
        is_eager: Callable[[], object],
    ) -> None:
        self._phased = phased
        self._loop = loop
        self._draws = draws
        self._kinds = tuple(draws)
        self._is_eager = is_eager
        self.ends = StopIteration, import_module("tensorflow.python.framework.errors_impl").OutOfRangeError

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments for a call of a compiled function, given the trainer's."""
        at = [at for at, argument in enumerate(args) if isinstance(argument, self._kinds)]
        phased = self._phased
        if len(at) != 1 or not phased.is_on or not self._is_eager() or threading.get_ident() in phased.inside:
            return args
        iterator = args[at[0]]
        turn = phased.asks(iterator, _data_of(iterator), functools.partial(self._prepare, iterator))
        if turn is None:
            return args
        if turn.phase == REPLAY and turn.data.stand_in is not None:
            return (*args[: at[0]], turn.data.stand_in, *args[at[0] + 1 :])
        if turn.phase == LOAD:
            self._draw(iterator, turn.data)
        return args

    def _draw(self, iterator: Any, data: Data) -> None:
        """Draw batches in Python; where that ends the data, the step meets the end."""
        was_suspended = self._loop.is_suspended
        self._loop.is_suspended = True  # no step is made of what is fetched here
        try:
            with marked(self._phased), contextlib.suppress(*self.ends):
                draw(self._phased, data, functools.partial(self._fetch, iterator), self.ends)
        finally:
            self._loop.is_suspended = was_suspended
            self._loop.aggregated.skip(time.monotonic())

    def _fetch(self, iterator: Any) -> Any:
        return next(draw(iterator) for kind, draw in self._draws.items() if isinstance(iterator, kind))

    def _prepare(self, iterator: Any, data: Data) -> bool:
        """Make the iterator over kept batches; return False if there were none."""
        if not hasattr(iterator, "_iterator_resource"):
            self._phased.leave_out(REPLAY, _DISTRIBUTED)
            return True  # what follows is another phase
        batches: list[Any] = []
        with marked(self._phased), contextlib.suppress(*self.ends):
            while len(batches) < MOST_KEPT:
                batches.append(self._fetch(iterator))
        flatten = import_module("tensorflow.python.util.nest").flatten
        if any("CPU" not in getattr(part, "device", "CPU") for part in flatten(batches, expand_composites=True)):
            self._phased.leave_out(REPLAY, _ON_DEVICE)
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
