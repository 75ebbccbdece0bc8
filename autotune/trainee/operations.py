"""Operations that Python launches in the first steps, counted in a trial that is taken through phases: 3 µs each.

Told once, by the line of the trainer's own that launches most of them; then the framework's functions are as before.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee.costs import place_of
from autotune.trainee.observer import Observer

_COUNTED, _COUNTED_S = 20_000, 1.0  # of TensorFlow
_UPDATES = 4  # of PyTorch
_EXECUTE = "TFE_Py_FastPathExecute"


class TensorFlowOperations(Observer):
    """Operations outside of graphs."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._since_s: Optional[float] = None

    def install(self) -> None:
        self.around(f"tensorflow.python.pywrap_tfe:{_EXECUTE}", self._launched)

    def _launched(self, args: Any, kwargs: Any) -> None:
        report, now_s = self.loop.report, time.monotonic()
        if not report.has_begun or (self.phased is not None and not self.phased.is_open):  # in a fetch
            return
        begin_s = self._since_s = self._since_s or now_s
        self._places[place_of(None)] += 1
        total = sum(self._places.values())
        if total == _COUNTED or now_s > begin_s + _COUNTED_S:
            for owner, name, original, ours in self.instrumentation.replaced:
                if name == _EXECUTE and getattr(owner, name) is ours:
                    setattr(owner, name, original)
            tf: Any = sys.modules["tensorflow"]
            place, number, took_s = self._places.most_common(1)[0][0], tf.ones(()), now_s - begin_s
            each_us = 1e6 * _least_s(lambda: tf.raw_ops.AddV2(x=number, y=number))
            report.line("cost", now_s, cost="eager", place=place, times=total, duration_s=took_s, text=f"{each_us:.2f}")


class TorchOperations(Observer):
    """Operations of a few updates, and what launching so many takes at least."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._thread: Optional[int] = None
        self._updates = 0
        self._mode: Optional[Any] = None
        self._is_over = False  # the hook stays: it cannot be taken away while hooks are called

    def install(self) -> None:
        self.attempt("torch.optim.optimizer:register_optimizer_step_post_hook", self._listen)

    def _listen(self, optimizers: Any, name: str) -> None:
        getattr(optimizers, name)(self.instrumentation.guarded(self._updated))

    def _updated(self, *_arguments: Any) -> None:
        compiler = sys.modules.get("torch._dynamo.convert_frame")
        is_compiled = getattr(compiler, "FRAME_COUNTER", 0) > 0  # which has no single operations
        if self._is_over or not self.loop.report.has_begun or (is_compiled and self._mode is None):
            return
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            return
        self._updates += 1
        if self._mode is None:
            self._mode = torch_mode(self._launched)
            self._mode.__enter__()
        elif self._updates > _UPDATES:
            self._is_over = True
            self._mode.__exit__(None, None, None)
            self._tell()

    def _launched(self, _function: Any, make: Callable[[], Any]) -> Any:
        if self.phased is None or self.phased.is_open:  # else in a fetch
            self._places[place_of(None)] += 1
        return make()

    def _tell(self) -> None:
        torch: Any = sys.modules["torch"]
        number, times = torch.ones(()), sum(self._places.values()) // _UPDATES
        launch_s, place = times * _least_s(lambda: torch.add(number, number)), self._places.most_common(1)[0][0]
        self.loop.report.line("cost", time.monotonic(), cost="launch", place=place, times=times, duration_s=launch_s)


def _least_s(launch: Callable[[], object]) -> float:
    """Return what the smallest operation takes, in seconds."""
    found_s = []
    for _ in range(5):
        begin_s = time.monotonic()
        for _ in range(40):
            launch()
        found_s.append((time.monotonic() - begin_s) / 40)
    return min(found_s)


def torch_mode(launch: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    """Return a mode of PyTorch in which each operation is launched by a function, given it and what makes it."""

    class Mode(import_module("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return launch(function, lambda: function(*args, **(kwargs or {})))

    return Mode()
