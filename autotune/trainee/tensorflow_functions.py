"""Observer of TensorFlow's compiled functions, nested calls counted as one, and of gradients.

A compiled function counts as a training step if a gradient was taken while it was traced.
"""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from typing import Any, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.loop import Loop
from autotune.trainee.report import Memory

_UNSEEN_LOOP = (
    "steps inside a tf.function's own loop cannot be seen; after `from autotune.trainee import step`, "
    "add to that loop: tf.py_function(lambda: step(samples=BATCH) and None, [], [])"
)


class _Known:
    """Known facts of a compiled function."""

    __slots__ = ("fetches", "hides_steps", "sizes", "trains")

    def __init__(self) -> None:
        self.trains = False
        self.fetches = False
        self.hides_steps = False
        self.sizes = BatchSizes()


class Functions:
    """Compiled functions and their running calls.

    Attributes:
        current: The outermost running function, by thread.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._eager = import_module("tensorflow.python.eager.context").executing_eagerly
        self._out_of_range = import_module("tensorflow.python.framework.errors_impl").OutOfRangeError
        self.known = Memory(_Known)
        self.current: dict[int, _Known] = {}
        self._latest: Optional[_Known] = None
        self._on_cpu: Optional[bool] = None

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a call of a compiled function."""
        thread = threading.get_ident()
        if self._loop.is_suspended or thread in self.current:
            return None
        known = self.known.of(args[0])
        is_pause = known.fetches and not known.trains  # validation
        begin_s = self._loop.pause_begins() if is_pause else time.monotonic()
        self.current[thread] = self._latest = known
        return known, is_pause, begin_s, thread, args, kwargs

    def end(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        """Record the end of the call."""
        known, was_pause, begin_s, thread, args, kwargs = token
        del self.current[thread]
        if was_pause:
            self._loop.pause_ends("eval", begin_s)
        if error is not None:
            if known.fetches and known.trains and isinstance(error, self._out_of_range):
                self._loop.flush()
                self._loop.report.mark("epoch_end", time.monotonic())
            return
        if known.hides_steps or self._loop.is_suspended:
            return
        if not known.trains:
            if known.fetches:
                self._loop.aggregated.skip(time.monotonic())
            self._loop.idled(known, begin_s)
            return
        now_s = time.monotonic()
        if now_s >= self._loop.report.loss_due_s:
            self.see_loss(now_s, result)
        if known.fetches:
            self._loop.aggregated.ended(now_s)
            return
        samples = None
        if self._loop.wants_samples:
            samples = known.sizes.of((args[1:], kwargs))
        self._loop.worked(known, begin_s, samples, True, thread)

    def gradient_begins(self, args: Any, kwargs: Any) -> Any:
        """Record that a gradient is taken, or its operations are added to a graph."""
        # MirroredStrategy has each replica's step in a thread of its own, while the loop's thread waits for it.
        is_replica = type(threading.current_thread()).__name__ == "_MirroredReplicaThread"
        thread = threading.get_ident()
        current = self._latest if is_replica and not self._eager() else self.current.get(thread)
        if current is not None:
            current.trains = True
            return None
        if self._loop.is_suspended or not self._eager():
            return None
        caller = sys._getframe(2)
        return (caller.f_code, caller.f_lineno), time.monotonic(), None if is_replica else thread, args

    def gradient_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        if error is None:
            key, begin_s, thread, args = token
            self._loop.worked(key, begin_s, thread=thread)
            now_s = time.monotonic()
            if now_s >= self._loop.report.loss_due_s:
                self.see_loss(now_s, args[1:2])

    def graph_gradient_begins(self, args: Any, kwargs: Any) -> None:
        """Record gradient operations in a graph: by ``tf.gradients``, or within the tape's own work."""
        current = self.current.get(threading.get_ident())
        if current is not None and sys._getframe(2).f_code.co_name.startswith("gradients"):
            current.trains = True

    def ran_out_of_a_resource(self, args: Any, result: Any, error: Optional[BaseException]) -> None:
        """Record an error of exhausted resources, wherever it is raised: memory, the disk, or open files."""
        message = str(args[0].message)
        if "OOM" in message or "memory" in message.lower():
            self._loop.ran_out_of_memory(f"ResourceExhaustedError: {message}")

    def fetches(self) -> None:
        """Record that the function under tracing fetches by itself."""
        current = self.current.get(threading.get_ident())
        if current is not None:
            current.fetches = True

    def loop_begins(self, args: Any, kwargs: Any) -> Any:
        """Record that a loop over a dataset is added to a graph as one operation."""
        known = self.current.get(threading.get_ident())
        if known is None or self._eager():
            return None
        trained, known.trains = known.trains, False
        return known, trained

    def loop_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        known, trained = token
        if known.trains:
            known.hides_steps = True
            self._loop.report.note(_UNSEEN_LOOP)
        known.trains = known.trains or trained

    def see_loss(self, now_s: float, result: Any) -> None:
        """Take the loss from a step's result; reads it only where that does not wait for an accelerator."""
        loss = loss_in(result)
        if self._on_cpu is None:
            self._on_cpu = import_module("tensorflow.python.eager.context").context().num_gpus() == 0
            if not self._on_cpu:
                self._loop.sync = sys.modules["tensorflow"].test.experimental.sync_devices
        if self._on_cpu:
            self._loop.report.loss(now_s, loss)
        else:
            self._loop.unread_loss = loss
