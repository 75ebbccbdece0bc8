"""Recurring costs outside of the arithmetic of steps, in trials only.

Retraced functions, Python in graphs, restarted loader workers: count and seconds per place in the trainer's code.
Trials with phases also count the operations that Python launches in the first steps (3 µs each), with the trainer's
line that launches most; for TensorFlow in a few time windows.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from functools import partial
from importlib import import_module
from types import CodeType
from typing import Any, Callable, Optional

from autotune.trainee.observe import Observer
from autotune.trainee.stream import process_stream

# AutoGraph's generated files are only known to its tracebacks; the line that caused the conversion stands for them
_LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<", "__autograph_generated_file")
_OURS = os.path.dirname(__file__)
NOWHERE = "?"  # place of costs that no line of the trainer's code led to
_EVERY_S = 0.1  # between reports of one kind and place; the first `_FIRST` are reported at once
_FIRST = 3


class Costs(Observer):
    """Observer of one framework's costs."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], tuple[int, float, float]] = {}  # times, seconds, time of the last report

    def add(self, kind: str, place: str, took_s: float, why: Optional[str] = None) -> None:
        """Add a cost that has just ended.

        Args:
            place: File, line and name, e.g. ``/home/me/train.py:41 train_step``.
        """
        now_s = time.monotonic()
        with self._lock:
            times, duration_s, reported_s = self._sums.get((kind, place), (0, 0.0, 0.0))
            times, duration_s = times + 1, duration_s + took_s
            is_due = self.loop.report.has_begun and (times <= _FIRST or now_s >= reported_s + _EVERY_S)
            self._sums[kind, place] = times, duration_s, now_s if is_due else reported_s
        if is_due:
            self.loop.report.line("cost", now_s, cost=kind, place=place, times=times, duration_s=duration_s, text=why)


class TensorFlowCosts(Costs):
    """Traces of functions, and calls of Python in graphs."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracing: set[int] = set()  # threads; a nested trace is part of the outer one
        self._types: dict[str, dict[str, str]] = {}
        self._places: dict[Any, str] = {}  # of Python functions, by their name in the graph

    def install(self) -> None:
        compilation = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
        self.around(f"{compilation}:_create_concrete_function", self._trace_begins, self._trace_ends)
        registry = "tensorflow.python.ops.script_ops:FuncRegistry"
        self.around(f"{registry}.insert", lambda args, _kwargs: args[1], self._python_comes)
        self.around(f"{registry}.__call__", lambda args, _kwargs: (args[1], time.monotonic()), self._python_ends)

    def _trace_begins(self, args: Any, kwargs: Any) -> Any:
        thread = threading.get_ident()
        if thread in self._tracing:
            return None
        self._tracing.add(thread)
        return thread, time.monotonic(), args[0], args[3]

    def _trace_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        thread, begin_s, kind, options = token
        took_s = time.monotonic() - begin_s
        self._tracing.discard(thread)
        place = place_of(_code_of(options.python_function), options.name)
        types = {name: _shown_type(one.type_constraint) for name, one in kind.parameters.items()}
        before = self._types.get(place)
        self._types[place] = types
        why = None
        if before is not None:
            changed = [
                f"{name} {before.get(name)} -> {text}" for name, text in types.items() if before.get(name) != text
            ]
            why = ", ".join(changed) or "a new function each time"
        self.add("trace", place, took_s, why)

    def _python_comes(self, function: Any, name: Any, error: Optional[BaseException]) -> None:
        self._places[name] = place_of(_code_of(getattr(function, "_func", function)))

    def _python_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        name, begin_s = token
        self.add("python", self._places.get(name, NOWHERE), time.monotonic() - begin_s)


class TorchCosts(Costs):
    """Starts of loader workers."""

    def install(self) -> None:
        place = "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter.__init__"
        self.around(place, lambda _args, _kwargs: time.monotonic(), self._ends)

    def _ends(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self.add("workers", place_of(None), time.monotonic() - begin_s)


class TorchCompileCosts(Costs):
    """Functions that ``torch.compile`` compiles, and reasons for graph breaks."""

    def install(self) -> None:
        self._reported_cuts: set[str] = set()  # reasons
        self.around("torch._dynamo.convert_frame:_compile", self._begins, self._ends)

    def _begins(self, args: Any, kwargs: Any) -> Any:
        return args[0] if args else kwargs["code"], time.monotonic()

    def _ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        (code, begin_s), now_s = token, time.monotonic()
        place = place_of(code)
        self.add("compile", place, now_s - begin_s)
        cuts = sys.modules["torch._dynamo.utils"].counters["graph_break"]
        for reason in [reason for reason in cuts if reason not in self._reported_cuts]:
            self._reported_cuts.add(reason)
            why = str(reason).partition("\n")[0][:150]
            self.loop.report.line("cost", now_s, cost="cut", place=place, times=len(self._reported_cuts), text=why)


def _code_of(function: Any) -> Optional[CodeType]:
    for _ in range(20):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def place_of(code: Optional[CodeType], name: Optional[str] = None) -> str:
    """Return the place of a trainer's function; of a library's, the trainer's line that led to it."""
    if code is not None and is_own(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno} {name or code.co_name}"
    frame: Any = sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return name or (code.co_name if code is not None else NOWHERE)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {name or frame.f_code.co_name}"


@functools.lru_cache(maxsize=1024)  # called for each call of Python in a graph
def is_own(file: str) -> bool:
    """Return whether a file is neither a library's nor the observer's."""
    return not (file.startswith(_OURS) or any(part in file for part in _LIBRARIES))


def _shown_type(constraint: Any) -> str:
    shape, dtype = getattr(constraint, "shape", None), getattr(getattr(constraint, "dtype", None), "name", None)
    is_tensor = dtype is not None and getattr(shape, "rank", None) is not None
    text = f"{dtype}{shape.as_list()}" if is_tensor and shape is not None else str(constraint)
    return text if len(text) <= 60 else f"{text[:57]}..."


_COUNTED, _COUNTED_S, _WINDOWS = 20_000, 1.0, 3  # TensorFlow: operations and seconds of a window, number of windows
_LONGEST_BETWEEN_S = 0.005  # longest time that Python takes between two TensorFlow operations; more is something else
_UPDATES = 4  # PyTorch
_EXECUTE = "TFE_Py_FastPathExecute"


class TensorFlowOperations(Observer):
    """TensorFlow operations outside of graphs."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._since_s: Optional[float] = None
        self._ended_s, self._between_s, self._windows = -_LONGEST_BETWEEN_S, 0.0, 0

    def install(self) -> None:
        self.around(f"tensorflow.python.pywrap_tfe:{_EXECUTE}", self._launched, self._has_ended)

    def _has_ended(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self._ended_s = time.monotonic()

    def _launched(self, args: Any, kwargs: Any) -> Any:
        report, now_s = self.loop.report, time.monotonic()
        if not process_stream.has_steps or (self.phased is not None and not self.phased.is_open):  # inside a fetch
            return None
        begin_s = self._since_s = self._since_s or now_s
        if now_s - self._ended_s < _LONGEST_BETWEEN_S:
            self._between_s += now_s - self._ended_s
        self._places[place_of(None)] += 1
        total = sum(self._places.values())
        if total == _COUNTED or now_s > begin_s + _COUNTED_S:
            self._windows += 1
            for owner, name, original, ours in self.instrumentation.replaced if self._windows == _WINDOWS else ():
                if name == _EXECUTE and getattr(owner, name) is ours:
                    setattr(owner, name, original)
            place, between_s = self._places.most_common(1)[0][0], self._between_s
            self._places.clear()
            self._since_s, self._between_s = None, 0.0
            tf: Any = sys.modules["tensorflow"]
            number = tf.ones(())
            each_us = 1e6 * _smallest_operation_s(lambda: tf.raw_ops.AddV2(x=number, y=number))
            took_s, text = now_s - begin_s, f"{each_us:.2f} {between_s:.4f}"
            report.line("cost", now_s, cost="eager", place=place, times=total, duration_s=took_s, text=text)
        return True


class TorchOperations(Observer):
    """Operations of a few updates: least time to launch them, and how many wait for the GPU."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._places: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._thread: Optional[int] = None
        self._updates = 0
        self._mode: Optional[Any] = None
        self._is_over = False  # the hook stays: it can't be removed while hooks are called

    def install(self) -> None:
        self.after_updates(self.instrumentation.guarded(self._updated))

    def _updated(self, *_arguments: Any) -> None:
        compiler = sys.modules.get("torch._dynamo.convert_frame")
        is_compiled = getattr(compiler, "FRAME_COUNTER", 0) > 0  # compiled code has no single operations
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
            self._report()

    def _launched(self, operation: partial[Any]) -> Any:
        if self.phased is None or self.phased.is_open:  # else inside a fetch
            place = place_of(None)
            self._places[place] += 1
            self._waits[place] += waits_for_gpu(operation)
        return operation()

    def _report(self) -> None:
        torch: Any = sys.modules["torch"]
        number = torch.ones((), device="cuda" if torch.cuda.is_initialized() else "cpu")
        self._report_cost("launch", self._places, _smallest_operation_s(lambda: torch.add(number, number)))
        if sum(self._waits.values()):
            self._report_cost("wait", self._waits, _smallest_operation_s(lambda: torch.add(number, number).item()))

    def _report_cost(self, cost: str, places: Counter[str], each_s: float) -> None:
        times = sum(places.values()) // _UPDATES
        # Autograd's threads, which launch backward operations on a GPU, have no frame of the trainer's.
        place = max(places, key=lambda place: (place != NOWHERE, places[place]))
        self.loop.report.line("cost", time.monotonic(), cost=cost, place=place, times=times, duration_s=times * each_s)


def _smallest_operation_s(launch: Callable[[], object]) -> float:
    found_s = []
    for _ in range(5):
        begin_s = time.monotonic()
        for _ in range(40):
            launch()
        found_s.append((time.monotonic() - begin_s) / 40)
    return min(found_s)


def torch_mode(launch: Callable[[partial[Any]], Any]) -> Any:
    """Return a PyTorch mode that passes each operation to `launch`."""

    class Mode(import_module("torch.utils._python_dispatch").TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return launch(partial(function, *args, **(kwargs or {})))

    return Mode()


def waits_for_gpu(operation: partial[Any]) -> bool:
    """Return whether an operation blocks until the GPU is done, because Python reads its result."""
    name, args = str(operation.func).split(".")[1], operation.args
    if name in ("_local_scalar_dense", "nonzero", "masked_select"):
        return bool(args[0].is_cuda)
    if name == "index":  # counts the True elements of a mask
        return any(one is not None and one.is_cuda and str(one.dtype) == "torch.bool" for one in args[1])
    if name == "_to_copy":
        to, source, is_blocking = operation.keywords.get("device"), args[0], not operation.keywords.get("non_blocking")
    elif name == "copy_":
        to, source, is_blocking = args[0].device, args[1], not (len(args) > 2 and args[2])
    else:
        return False
    return to is not None and is_blocking and to.type == "cpu" and bool(source.is_cuda)
