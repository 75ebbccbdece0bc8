"""Observer of TensorFlow 1: calls of ``Session.run`` that update variables by gradients."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Instrument the sessions of TensorFlow, which has been imported."""
    runs = _Runs(loop)
    session = import_module("tensorflow.python.client.session").BaseSession
    instrumentation.attempt(
        "tensorflow: Session.run", lambda: instrumentation.around(session, "run", runs.begin, runs.end)
    )


class _Runs:
    """Callbacks around ``Session.run(fetches, feed_dict)``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._out_of_range = import_module("tensorflow.python.framework.errors_impl").OutOfRangeError
        self._sizes = BatchSizes()
        self._known: dict[tuple[int, ...], tuple[list[Any], bool]] = {}

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a call."""
        if self._loop.is_suspended:
            return None
        fetches = list(_parts(args[1] if len(args) > 1 else kwargs.get("fetches")))
        feed = args[2] if len(args) > 2 else kwargs.get("feed_dict")
        return self._key(args[0].graph, fetches), time.monotonic(), feed

    def end(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        (key, trains), begin_s, feed = token
        if trains and isinstance(error, self._out_of_range):
            self._loop.report.mark("epoch_end", time.monotonic())
        elif error is None and not trains:
            self._loop.idled(key, begin_s)
        elif error is None:
            now_s = time.monotonic()
            if now_s >= self._loop.report.loss_due_s:
                self._loop.report.loss(now_s, loss_in(result))
            samples = self._sizes.of(list(feed.values())) if feed else None
            self._loop.worked(key, begin_s, samples=samples, is_whole=bool(feed), thread=threading.get_ident())

    def _key(self, graph: Any, fetches: list[Any]) -> tuple[tuple[int, ...], bool]:
        key = tuple(map(id, fetches))
        if key not in self._known:
            if len(self._known) >= 100:  # kinds of calls remembered; a trainer makes a few
                self._known.clear()
            # Kept with the answer: an id may be another object's later.
            self._known[key] = fetches, _updates(graph, fetches)
        return key, self._known[key][1]


def _parts(fetches: Any) -> Iterator[Any]:
    if isinstance(fetches, Mapping):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for part in fetches:
            yield from _parts(part)
    else:
        yield fetches


def _updates(graph: Any, fetches: list[Any]) -> bool:
    """Return True if an optimizer's update is executed for these fetches: ``ApplyAdam``, ``ResourceApply...``."""
    todo = [graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True) for fetch in fetches]
    todo = [getattr(element, "op", element) for element in todo]
    seen = set(todo)
    while todo:
        operation = todo.pop()
        if "Apply" in operation.type:
            return True
        for before in [tensor.op for tensor in operation.inputs] + list(operation.control_inputs):
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return False
