"""Operations that Python launches in the first steps, counted in a trial that is taken through phases: 3 µs each.

Told by the line of the trainer's own that launches most of them, of TensorFlow twice: while its first step is made, and
after it. Then the framework's functions are as before.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from functools import partial
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee.costs import NOWHERE, place_of
from autotune.trainee.observer import Observer

_COUNTED, _COUNTED_S, _TOLD = 20_000, 1.0, 2  # of TensorFlow: while the first step is made, and after it
_LONGEST_BETWEEN_S = 0.005  # that Python takes from one operation of TensorFlow to the next: more is something else
_UPDATES = 4  # of PyTorch
_EXECUTE = "TFE_Py_FastPathExecute"


class TensorFlowOperations(Observer):
    """Operations outside of graphs."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._since_s: Optional[float] = None
        self._ended_s, self._between_s, self._told = -_LONGEST_BETWEEN_S, 0.0, 0

    def install(self) -> None:
        self.around(f"tensorflow.python.pywrap_tfe:{_EXECUTE}", self._launched, self._has_ended)

    def _has_ended(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self._ended_s = time.monotonic()

    def _launched(self, args: Any, kwargs: Any) -> Any:
        report, now_s = self.loop.report, time.monotonic()
        if not report.has_begun or (self.phased is not None and not self.phased.is_open):  # in a fetch
            return None
        begin_s = self._since_s = self._since_s or now_s
        if now_s - self._ended_s < _LONGEST_BETWEEN_S:
            self._between_s += now_s - self._ended_s
        self._places[place_of(None)] += 1
        total = sum(self._places.values())
        if total == _COUNTED or now_s > begin_s + _COUNTED_S:
            self._told += 1
            for owner, name, original, ours in self.instrumentation.replaced if self._told == _TOLD else ():
                if name == _EXECUTE and getattr(owner, name) is ours:
                    setattr(owner, name, original)
            place, between_s = self._places.most_common(1)[0][0], self._between_s
            self._places.clear()
            self._since_s, self._between_s = None, 0.0
            tf: Any = sys.modules["tensorflow"]
            number = tf.ones(())
            each_us = 1e6 * _least_s(lambda: tf.raw_ops.AddV2(x=number, y=number))
            took_s, text = now_s - begin_s, f"{each_us:.2f} {between_s:.4f}"
            report.line("cost", now_s, cost="eager", place=place, times=total, duration_s=took_s, text=text)
        return True


class TorchOperations(Observer):
    """Operations of a few updates: what launching so many takes at least, and how often they wait for the GPU."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
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

    def _launched(self, operation: partial[Any]) -> Any:
        if self.phased is None or self.phased.is_open:  # else in a fetch
            place = place_of(None)
            self._places[place] += 1
            self._waits[place] += waits_for_gpu(operation)
        return operation()

    def _tell(self) -> None:
        torch: Any = sys.modules["torch"]
        number = torch.ones((), device="cuda" if torch.cuda.is_initialized() else "cpu")
        self._tell_of("launch", self._places, _least_s(lambda: torch.add(number, number)))
        if sum(self._waits.values()):
            self._tell_of("wait", self._waits, _least_s(lambda: torch.add(number, number).item()))

    def _tell_of(self, cost: str, places: Counter[str], each_s: float) -> None:
        times = sum(places.values()) // _UPDATES
        # Autograd's threads, which launch what is backward on a GPU, come from no line.
        place = max(places, key=lambda place: (place != NOWHERE, places[place]))
        self.loop.report.line("cost", time.monotonic(), cost=cost, place=place, times=times, duration_s=times * each_s)


def _least_s(launch: Callable[[], object]) -> float:
    """Return what the smallest operation takes, in seconds."""
    found_s = []
    for _ in range(5):
        begin_s = time.monotonic()
        for _ in range(40):
            launch()
        found_s.append((time.monotonic() - begin_s) / 40)
    return min(found_s)


def torch_mode(launch: Callable[[partial[Any]], Any]) -> Any:
    """Return a mode of PyTorch in which each operation is launched by a function."""

    class Mode(import_module("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return launch(partial(function, *args, **(kwargs or {})))

    return Mode()


def waits_for_gpu(operation: partial[Any]) -> bool:
    """Return whether an operation of PyTorch returns only when the GPU has done all before it: Python reads from it."""
    name, args = str(operation.func).split(".")[1], operation.args
    if name in ("_local_scalar_dense", "nonzero", "masked_select"):
        return bool(args[0].is_cuda)
    if name == "index":  # a mask's True ones are counted
        return any(one is not None and one.is_cuda and str(one.dtype) == "torch.bool" for one in args[1])
    if name == "_to_copy":
        to, source, is_blocking = operation.keywords.get("device"), args[0], not operation.keywords.get("non_blocking")
    elif name == "copy_":
        to, source, is_blocking = args[0].device, args[1], not (len(args) > 2 and args[2])
    else:
        return False
    return to is not None and is_blocking and to.type == "cpu" and bool(source.is_cuda)
