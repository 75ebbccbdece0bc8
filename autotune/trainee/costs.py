"""What a framework does again and again besides the arithmetic of steps, counted where it happens, in trials alone.

A compiled function that is traced anew, Python within a graph, workers of a loader that start anew for each pass: the
number and the seconds of each kind are summed up for each place in the trainer's own code, and told now and then.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from types import CodeType
from typing import Any, Optional

from autotune.trainee.observer import Observer

# of a file that AutoGraph has made only its traces know: what stands for it is the line that had it made
_LIBRARIES = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<", "__autograph_generated_file")
_OURS = os.path.dirname(__file__)
NOWHERE = "?"  # the place of what no line of the trainer's has led to
_EVERY_S = 0.1  # of one kind and place; the first ones are told at once
_FIRST = 3


class Costs(Observer):
    """Observer of such costs of one framework."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str], tuple[int, float, float]] = {}  # times, seconds, when they were told

    def add(self, kind: str, place: str, took_s: float, why: Optional[str] = None) -> None:
        """Add one that has just ended.

        Args:
            place: File, line and name, e.g. ``/home/me/train.py:41 train_step``.
            why: What has brought it about.
        """
        now_s = time.monotonic()
        with self._lock:
            times, duration_s, told_s = self._sums.get((kind, place), (0, 0.0, 0.0))
            times, duration_s = times + 1, duration_s + took_s
            is_due = self.loop.report.has_begun and (times <= _FIRST or now_s >= told_s + _EVERY_S)
            self._sums[kind, place] = times, duration_s, now_s if is_due else told_s
        if is_due:
            self.loop.report.line("cost", now_s, cost=kind, place=place, times=times, duration_s=duration_s, text=why)


class TensorFlowCosts(Costs):
    """Functions that are traced, and Python that graphs call."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracing: set[int] = set()  # threads: what is traced within is part of it
        self._types: dict[str, dict[str, str]] = {}
        self._places: dict[Any, str] = {}  # of Python in graphs, by the name that the graph has for it

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
        types = {name: _shown(one.type_constraint) for name, one in kind.parameters.items()}
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
    """Workers of loaders that start."""

    def install(self) -> None:
        place = "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter.__init__"
        self.around(place, lambda _args, _kwargs: time.monotonic(), self._ends)

    def _ends(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self.add("workers", place_of(None), time.monotonic() - begin_s)


class TorchCompileCosts(Costs):
    """Functions that ``torch.compile`` compiles, and why it cuts them into pieces."""

    def install(self) -> None:
        self._cuts: set[str] = set()  # reasons that were told
        self.around("torch._dynamo.convert_frame:_compile", self._begins, self._ends)

    def _begins(self, args: Any, kwargs: Any) -> Any:
        return args[0] if args else kwargs["code"], time.monotonic()

    def _ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        (code, begin_s), now_s = token, time.monotonic()
        place = place_of(code)
        self.add("compile", place, now_s - begin_s)
        cuts = sys.modules["torch._dynamo.utils"].counters["graph_break"]
        for reason in [reason for reason in cuts if reason not in self._cuts]:
            self._cuts.add(reason)
            why = str(reason).partition("\n")[0][:150]
            self.loop.report.line("cost", now_s, cost="cut", place=place, times=len(self._cuts), text=why)


class JaxCosts(Costs):
    """Functions that ``jax.jit`` compiles."""

    def install(self) -> None:
        self.attempt("jax.monitoring:register_event_duration_secs_listener", self._listen)

    def _listen(self, monitoring: Any, name: str) -> None:
        took = self.instrumentation.guarded(self._took)
        getattr(monitoring, name)(lambda event, duration_s, **about: took(event, duration_s, about))

    def _took(self, event: str, duration_s: float, about: dict[str, Any]) -> None:
        if event.endswith("backend_compile_duration"):
            name = str(about.get("fun_name", "")).removeprefix("jit(").rstrip(")")
            self.add("compile", place_of(None, name), duration_s)


def _code_of(function: Any) -> Optional[CodeType]:
    """Return the code of a function, behind its decorators."""
    for _ in range(20):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def place_of(code: Optional[CodeType], name: Optional[str] = None) -> str:
    """Return the place of a function of the trainer's; of a library's, that of the line that has led to it."""
    if code is not None and _is_own(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno} {name or code.co_name}"
    frame: Any = sys._getframe(1)
    while frame is not None and not _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return name or (code.co_name if code is not None else NOWHERE)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {name or frame.f_code.co_name}"


@functools.lru_cache(maxsize=1024)  # asked at each call of Python in a graph
def _is_own(file: str) -> bool:
    return not (file.startswith(_OURS) or any(part in file for part in _LIBRARIES))


def _shown(constraint: Any) -> str:
    """Return the type of an argument of a compiled function, as people read it."""
    shape, dtype = getattr(constraint, "shape", None), getattr(getattr(constraint, "dtype", None), "name", None)
    is_tensor = dtype is not None and getattr(shape, "rank", None) is not None
    text = f"{dtype}{shape.as_list()}" if is_tensor and shape is not None else str(constraint)
    return text if len(text) <= 60 else f"{text[:57]}..."
