"""Observer of TensorFlow 1: calls of ``Session.run`` that update variables by gradients."""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.observer import Observer


class SessionObserver(Observer):
    """Observer of ``Session.run(fetches, feed_dict)``."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._out_of_range = import_module("tensorflow.python.framework.errors_impl").OutOfRangeError
        self._flatten = import_module("tensorflow.python.util.nest").flatten
        self._sizes = BatchSizes()
        self._known: dict[tuple[int, ...], tuple[list[Any], bool]] = {}

    def install(self) -> None:
        self.around("tensorflow.python.client.session:BaseSession.run", self._begin, self._end)

    def _begin(self, args: Any, kwargs: Any) -> Any:
        if self.loop.is_suspended:
            return None
        fetches = self._flatten(args[1] if len(args) > 1 else kwargs.get("fetches"))
        feed = args[2] if len(args) > 2 else kwargs.get("feed_dict")
        return self._key(args[0].graph, fetches), time.monotonic(), feed

    def _end(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        (key, trains), begin_s, feed = token
        if trains and isinstance(error, self._out_of_range):
            self.loop.report.mark("epoch_end", time.monotonic())
        elif error is None and trains:
            now_s = time.monotonic()
            if now_s >= self.loop.report.loss_due_s:
                self.loop.report.loss(now_s, loss_in(result))
            samples = self._sizes.of(list(feed.values())) if feed else None
            self.loop.worked(key, begin_s, samples=samples, is_whole=bool(feed), thread=threading.get_ident())

    def _key(self, graph: Any, fetches: list[Any]) -> tuple[tuple[int, ...], bool]:
        key = tuple(map(id, fetches))
        if key not in self._known:
            if len(self._known) >= 100:  # kinds of calls remembered; a trainer makes a few
                self._known.clear()
            # Kept with the answer: an id may be another object's later.
            self._known[key] = fetches, _updates(graph, fetches)
        return key, self._known[key][1]


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
