"""Phases of a step of PyTorch, by marks around the functions that begin and end them.

Between stretches with marks, modules and tensors are as PyTorch made them. A compiled module is marked as a whole: what
is traced meanwhile does not see the marks.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional

from autotune.trainee import stream
from autotune.trainee.batch import BatchSizes
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.step_phases_profile import BEGINS, try_to_write_error, write_result

_MOST_NAMES = 3
_ABOUT_ONE = 1.2


def observe(folder: str, refuse: Callable[[str], object]) -> None:
    """Profile the steps of PyTorch, which has been imported.

    Args:
        refuse: Called with the reason for which there will be no profile.
    """
    profile = _Profile(folder, refuse)
    instrumentation = profile.instrumentation
    loaders = import_module("torch.utils.data.dataloader")
    optimizers = import_module("torch.optim.optimizer")
    torch: Any = sys.modules["torch"]

    def around(owner: Any, name: str, begin: Any, end: Any) -> None:
        instrumentation.attempt(f"torch: {name}", lambda: instrumentation.around(owner, name, begin, end))

    around(loaders._BaseDataLoaderIter, "__next__", profile.fetch_begins, profile.fetch_ends)
    around(loaders.DataLoader, "__iter__", profile.disturbed, None)
    around(torch, "save", profile.disturbed, None)
    for name in ("backward", "grad"):
        around(torch.autograd, name, profile.beginning(BACKWARD), profile.ends)
    around(optimizers.Optimizer, "zero_grad", profile.beginning(OPTIMIZER), profile.ends)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        around(torch.nn.utils, name, profile.beginning(OPTIMIZER), profile.ends)
    scaler = getattr(import_module("torch.amp"), "GradScaler", None) or torch.cuda.amp.GradScaler
    for name in ("unscale_", "update"):
        around(scaler, name, profile.beginning(OPTIMIZER), profile.ends)
    around(scaler, "step", profile.beginning(OPTIMIZER), profile.scaled_step_ends)
    optimizers.register_optimizer_step_pre_hook(profile.update_begins)
    optimizers.register_optimizer_step_post_hook(profile.update_ends)
    os.register_at_fork(after_in_child=profile.forget)


class _Profile:
    """Profile of the steps of this process.

    Args:
        refuse: Called with the reason for which there will be no profile.

    Attributes:
        instrumentation: Wraps the functions; ends the profile after too many errors.
    """

    def __init__(self, folder: str, refuse: Callable[[str], object]) -> None:
        self._folder = folder
        self._refuse = refuse
        self._torch: Any = sys.modules["torch"]
        # In code that is compiled, this is True for the compiler, which then sees nothing of the marks.
        self._is_compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", bool)
        self._originals: list[tuple[Any, str, Any]] = []
        self.instrumentation = Instrumentation(self._note)
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child."""
        self._switch(False)
        self._thread: Optional[int] = None  # that trains
        self._optimizers: dict[int, Any] = {}
        self._depths: list[int] = []  # of the optimizers' steps that have begun
        self._steps = MarkedSteps(self._clock, self._switch, self._finished)
        self._modules: dict[int, Any] = {}  # that were called
        self._models: list[Any] = []  # those of them that have parameters
        self._places = TensorPlaces()
        self._compiled: set[str] = set()
        self._autocast: set[str] = set()
        self._sizes = BatchSizes()
        self._batch_size: Optional[int] = None

    def _note(self, text: str) -> None:
        if self.instrumentation.on:
            self._refuse(text)
        else:
            self._steps.is_over = True
            self._switch(False)
            try_to_write_error(self._folder, text)

    # Borders.

    def update_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._steps.is_over or not self.instrumentation.on:
            return
        try:
            if self._thread is None:
                self._begins(optimizer)
            if self._is_ours:
                self._optimizers.setdefault(id(optimizer), optimizer)
                self._depths.append(self._begin(OPTIMIZER))
        except Exception as error:
            self.instrumentation.failed(error)

    def update_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._steps.is_over or not self.instrumentation.on:
            return
        try:
            if self._is_ours:
                if self._depths:
                    self.ends(self._depths.pop(), None, None)
                self._steps.updated(id(optimizer))
        except Exception as error:
            self.instrumentation.failed(error)

    def scaled_step_ends(self, depth: int, result: Any, error: Optional[BaseException]) -> None:
        self.ends(depth, result, error)
        self._steps.updated(None)

    def fetch_begins(self, args: Any, kwargs: Any) -> Any:
        if not self._is_ours:
            return None
        self._depths.clear()
        self._steps.fetches()
        return self._begin(DATA)

    def fetch_ends(self, depth: int, batch: Any, error: Optional[BaseException]) -> None:
        self.ends(depth, batch, error)
        if error is not None:
            self._steps.disturbed()
        elif self._steps.is_marking and self._batch_size is None:
            self._batch_size = self._sizes.of(batch)

    def disturbed(self, args: Any, kwargs: Any) -> None:
        """Leave out the present step."""
        if self._is_ours:
            self._steps.disturbed()

    @property
    def _is_ours(self) -> bool:
        return not self._steps.is_over and threading.get_ident() == self._thread

    def _begins(self, optimizer: Any) -> None:
        """Begin with the first update, if the steps can be profiled."""
        self._thread = threading.get_ident()
        devices = {p.device for group in optimizer.param_groups for p in group["params"]}
        kinds = {device.type for device in devices}
        if not kinds <= {"cpu", "cuda"}:
            self._give_up(f"steps of PyTorch are profiled on CPUs and CUDA devices, not on {', '.join(sorted(kinds))}")
        elif len([device for device in devices if device.type == "cuda"]) > 1:
            self._give_up("the step is spread over several devices")
        else:
            stream.mark("note", text=BEGINS)

    def _give_up(self, why: str) -> None:
        self._steps.is_over = True
        self._refuse(why)

    # Phases.

    def beginning(self, phase: str) -> Callable[[Any, Any], Optional[int]]:
        """Return what is called before a function that is a phase."""

        def begins(args: Any, kwargs: Any) -> Optional[int]:
            return self._begin(phase) if self._is_ours else None

        return begins

    def _begin(self, phase: str) -> int:
        marks = self._steps.marks
        return marks.begin(phase) if self._steps.is_marking and marks is not None else -1

    def ends(self, depth: int, _result: Any, _error: Optional[BaseException]) -> None:
        """End a phase; what began without marks has none."""
        marks = self._steps.marks
        if depth >= 0 and self._steps.is_marking and marks is not None:
            marks.end(depth)

    def _switch(self, on: bool) -> None:
        """Have calls of modules, and copies to other devices, marked from now on, or no longer."""
        if not on:
            while self._originals:
                owner, name, original = self._originals.pop()
                if original is None:  # inherited
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
            return
        torch = self._torch
        self._put(torch.nn.Module, "__call__", self._called)
        for name in ("to", "cuda"):
            self._put(torch.Tensor, name, self._copied)
        self._put(torch.autocast, "__enter__", self._entered)

    def _put(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, wrap(getattr(owner, name)))

    def _called(self, original: Any) -> Any:
        """Return the call of a module with a mark at its begin and its end, if it lies in no other."""
        is_compiling, instrumentation = self._is_compiling, self.instrumentation
        get_thread, thread = threading.get_ident, self._thread
        is_inside = False

        @functools.wraps(original)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            if is_compiling() or is_inside or get_thread() != thread:
                return original(module, *args, **kwargs)
            depth = None
            try:
                phase = self._phase_of(module, args, kwargs)
                if phase is not None:
                    depth = self._begin(phase)
                    is_inside = True
            except Exception as error:
                instrumentation.failed(error)
            if depth is None:
                return original(module, *args, **kwargs)
            try:
                return original(module, *args, **kwargs)
            finally:
                is_inside = False
                try:
                    self.ends(depth, None, None)
                except Exception as error:
                    instrumentation.failed(error)

        return called

    def _phase_of(self, module: Any, args: Any, kwargs: Any) -> Optional[str]:
        if isinstance(module, self._torch.nn.modules.loss._Loss):
            return LOSS
        if id(module) not in self._modules:
            self._modules[id(module)] = module  # kept, for the id to stay its own
            if next(module.parameters(), None) is not None:
                self._models.append(module)
                is_compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
                self._compiled.add("torch.compile" if is_compiled else "eager")
                if self._torch.cuda.is_available():
                    self._places.add_call(module, (args, kwargs))
        return FORWARD if any(module is model for model in self._models) else None

    def _copied(self, original: Any) -> Any:
        """Return the method of a tensor with marks where its result lies on another device."""
        is_compiling, instrumentation = self._is_compiling, self.instrumentation
        get_thread, thread = threading.get_ident, self._thread

        @functools.wraps(original)
        def copied(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            marks = self._steps.marks
            if is_compiling() or get_thread() != thread or marks is None or not marks.is_between:
                return original(tensor, *args, **kwargs)
            depth, copy = marks.begin(COPY), tensor
            try:
                copy = original(tensor, *args, **kwargs)
                return copy
            finally:
                try:
                    if copy.device == tensor.device:
                        marks.cancel(depth)
                    else:
                        marks.end(depth)
                except Exception as error:
                    instrumentation.failed(error)

        return copied

    def _entered(self, original: Any) -> Any:
        """Return the begin of automatic mixed precision, which notes the precision."""

        @functools.wraps(original)
        def entered(autocast: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(autocast, "_enabled", False):
                self._autocast.add(str(getattr(autocast, "fast_dtype", "")).removeprefix("torch."))
            return original(autocast, *args, **kwargs)

        return entered

    # Result.

    def _clock(self) -> Clock:
        """Return the clock of the parameters' device: events of its stream, or the host's clock."""
        cuda = self._torch.cuda
        devices = [p.device for one in self._optimizers.values() for group in one.param_groups for p in group["params"]]
        device = next((device for device in devices if device.type == "cuda"), None)
        if device is None:
            return HOST_CLOCK

        def now() -> Any:
            event = cuda.Event(enable_timing=True)
            if not cuda.is_current_stream_capturing():
                event.record(cuda.current_stream(device))
            return event

        return Clock(str(device), now, lambda begin, end: begin.elapsed_time(end), lambda: cuda.synchronize(device))

    def _finished(self, result: dict[str, Any]) -> None:
        try:
            write_result(self._folder, result if "error" in result else {**result, **self._of(result)})
        except Exception as error:
            try_to_write_error(self._folder, f"{type(error).__name__}: {error}")
        self._modules.clear()
        self._models.clear()
        self._optimizers.clear()

    def _of(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return what the step is of, and the reasons for phases that are missing."""
        has_gpu = self._torch.cuda.is_available()
        why_not = {}
        if not self._models:
            why = "no call of a module was seen: it is compiled together with other code, or there is none"
            why_not = {FORWARD: why, LOSS: why}
        if COPY not in result["marked_ms"]:
            why_not[COPY] = "no copy of a tensor was seen" if has_gpu else "there is no GPU"
        if DATA not in result["marked_ms"]:
            why_not[DATA] = "no fetch from a DataLoader was seen in the thread that trains"
        for optimizer in self._optimizers.values() if has_gpu else ():
            self._places.add_optimizer(optimizer)
        batches = result["batches_a_step"]
        several = [f"{batches:.3g} batches a step"] if batches > _ABOUT_ONE else []
        return {
            "of": _names(self._models),
            "compiled": ", ".join([*sorted(self._compiled), _precision(self._optimizers, self._autocast), *several]),
            "batch_size": self._batch_size,
            "why_not": why_not,
            "places": self._places.rows(),
        }


def _names(models: list[Any]) -> str:
    names = []
    for model in models:
        while hasattr(model, "_orig_mod") or type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
        names.append(type(model).__name__)
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"PyTorch's {', '.join(names[:_MOST_NAMES])}{more}" if names else "a step of PyTorch"


def _precision(optimizers: dict[int, Any], autocast: set[str]) -> str:
    """Return the type of the parameters, and that of automatic mixed precision."""
    dtypes = {p.dtype for one in optimizers.values() for group in one.param_groups for p in group["params"]}
    names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return " and ".join(names) + (f", autocast to {' and '.join(sorted(autocast))}" if autocast else "")


_LEAST_STEPS, _LEAST_S = 20, 4.0  # of training before the first stretch
_FEW_STEPS, _LONG_S = 4, 30.0  # of it, where steps are long
_STEPS, _MOST_STEPS, _STRETCH_S = 6, 60, 0.75  # of a stretch
_LONG_STRETCH_S, _FEWEST_STEPS = 5.0, 2  # of it, where steps are long
_LONGEST_S = 150.0
_LEAST_MARKED = 5


class Clock(NamedTuple):
    """Clock of the device that a step runs on.

    Attributes:
        elapsed_ms: Returns the milliseconds between two moments, once `wait` has returned.
    """

    device: str
    now: Callable[[], Any]
    elapsed_ms: Callable[[Any, Any], float]
    wait: Callable[[], object]


HOST_CLOCK = Clock("CPU", time.perf_counter, lambda begin, end: 1000 * (end - begin), lambda: None)
"""Clock of a step that is over when its functions return."""


class Borders:
    """Borders between the steps of a training."""

    def __init__(self) -> None:
        self._updates: dict[int, int] = {}  # of each optimizer, the one that made the last update last
        self._is_updated = False
        self._at_fetches = 0
        self._border_optimizer: Optional[int] = None

    @property
    def steps(self) -> int:
        """Number of steps so far, about."""
        return max(self._updates.values(), default=0)

    def settle(self) -> None:
        """Decide between fetches and updates, after some steps."""
        # steps of another optimizer for one of an optimizer that makes an end of a step
        regular = [one for one in reversed(self._updates) if self._updates[one] * 10 >= self.steps]
        fewest = min(regular, key=self._updates.__getitem__)
        self._border_optimizer = None if 2 * self._at_fetches > self._updates[fewest] else fewest

    def updated(self, optimizer: Optional[int]) -> bool:
        """Process an update; return True if a step is over.

        Args:
            optimizer: Which; None for one that was skipped.
        """
        self._is_updated = True
        if optimizer is not None:
            self._updates[optimizer] = self._updates.pop(optimizer, 0) + 1
        return optimizer is not None and optimizer == self._border_optimizer

    def fetches(self) -> bool:
        """Process the begin of a fetch; return True if a step is over."""
        was_updated, self._is_updated = self._is_updated, False
        self._at_fetches += was_updated
        return was_updated and self._border_optimizer is None


class MarkedSteps:
    """Steps of a training, some with marks.

    Args:
        clock: Returns the clock to use, at the first stretch.
        mark: Called with True to have the step's phases marked, and with False for that to end.
    """

    def __init__(
        self,
        clock: Callable[[], Clock],
        mark: Callable[[bool], object],
        finished: Callable[[dict[str, Any]], object],
    ) -> None:
        self._make_clock = clock
        self._switch_marks = mark
        self._finished = finished
        self._clock = HOST_CLOCK
        self._borders = Borders()
        self._begin_s = time.monotonic()
        self._held: list[tuple[float, float]] = []
        self._stretch_s = 0.0  # its begin
        self._stretch: list[Any] = []  # its steps
        self._marked: list[list[MarkedStep]] = []
        self._plain: list[list[MarkedStep]] = []
        self._is_disturbed = True
        self._fetches = self._all_fetches = self._all_steps = 0
        self.marks: Optional[StepMarks] = None
        self.is_marking = False
        self.is_over = False

    def updated(self, optimizer: Optional[int]) -> None:
        """Process an update of an optimizer; None for one that was skipped."""
        if self._borders.updated(optimizer):
            self._border()
        elif self.marks is None and self._is_warm():
            self._borders.settle()
            self._clock = self._make_clock()
            self.marks = StepMarks(self._clock.now)
            self._begin_s = time.monotonic()

    def fetches(self) -> None:
        """Process the begin of a fetch."""
        if self._borders.fetches():
            self._border()
        self._fetches += 1

    def disturbed(self) -> None:
        """Leave out the present step."""
        self._is_disturbed = True

    def _is_warm(self) -> bool:
        steps, passed_s = self._borders.steps, time.monotonic() - self._begin_s
        return (steps >= _LEAST_STEPS and passed_s >= _LEAST_S) or (steps >= _FEW_STEPS and passed_s >= _LONG_S)

    def _border(self) -> None:
        if self.marks is None:
            return
        step, fetches = self.marks.cut(), self._fetches
        is_first, self._fetches = not self._stretch_s, 0
        self._stretch_s = self._stretch_s or time.monotonic()
        if not self._is_disturbed and not is_first:
            self._stretch.append(step)
            self._all_fetches += fetches
            self._all_steps += 1
        self._is_disturbed = False
        steps, passed_s = len(self._stretch), time.monotonic() - self._stretch_s
        is_long = steps >= _FEWEST_STEPS and passed_s >= _LONG_STRETCH_S
        if steps >= _MOST_STEPS or (steps >= _STEPS and passed_s >= _STRETCH_S) or is_long:
            self._next_stretch()
        elif time.monotonic() > self._begin_s + _LONGEST_S:
            self._end()

    def _next_stretch(self) -> None:
        (self._marked if self.is_marking else self._plain).append(self._stretch)
        self._stretch = []
        if self.is_marking:
            self._held.append((self._stretch_s, time.monotonic()))
        self._stretch_s = 0.0
        if len(self._marked) == 12 or time.monotonic() > self._begin_s + _LONGEST_S:  # of either kind
            self._end()
            return
        self.is_marking = not self.is_marking
        self._switch_marks(self.is_marking)

    def _end(self) -> None:
        self.is_over = True
        if self.is_marking:
            self.is_marking = False
            self._switch_marks(False)
        self._clock.wait()
        self._finished(self._result())

    def _result(self) -> dict[str, Any]:
        elapsed_ms = self._clock.elapsed_ms
        marked = [step.times_ms(elapsed_ms) for stretch in self._marked for step in stretch]
        plain_ms = [sum(step.times_ms(elapsed_ms).values()) for stretch in self._plain for step in stretch]
        if min(len(marked), len(plain_ms)) < _LEAST_MARKED:
            return {"error": "too few steps without a checkpoint or the begin of a pass over data"}
        phases = [name for name in marked[0] if name == REST or any(times_ms[name] for times_ms in marked)]
        return {
            "device": self._clock.device,
            "held": self._held,
            "marked_ms": {name: [round(times_ms[name], 4) for times_ms in marked] for name in phases},
            "plain_ms": [round(time_ms, 4) for time_ms in plain_ms],
            "batches_a_step": round(self._all_fetches / self._all_steps, 3),
        }


DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER, REST = (
    "data",
    "copy",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "rest",
)
PHASES = (DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER)
"""The phases of a step, but for the rest."""

_UNSETTLED = "unsettled"  # after a forward pass: part of that if another one follows, else of the loss
_HAVE_NO_PARTS = (DATA, FORWARD, LOSS, BACKWARD)  # a backward pass computes forward passes again to save memory
_PARTS = (DATA, COPY, FORWARD, LOSS)


class Mark(NamedTuple):
    """Moment at which a phase begins.

    Attributes:
        at: The moment, as the clock gives it: a number, or an event of an accelerator.
    """

    at: Any
    phase: str


class MarkedStep(NamedTuple):
    """Marks of one step.

    Attributes:
        marks: Its phases in their order.
    """

    marks: list[Mark]
    end: Any

    def times_ms(self, elapsed_ms: Callable[[Any, Any], float]) -> dict[str, float]:
        """Return the time of each phase.

        Args:
            elapsed_ms: Returns the milliseconds between two moments.
        """
        times_ms = dict.fromkeys((*PHASES, REST), 0.0)
        ends = [*(mark.at for mark in self.marks[1:]), self.end]
        for mark, end in zip(self.marks, ends):  # noqa: B905 -- Python 3.9 has no strict
            times_ms[REST if mark.phase == _UNSETTLED else mark.phase] += elapsed_ms(mark.at, end)
        return times_ms


class StepMarks:
    """Marks on the steps of one thread.

    Phases lie within one another: a closure that an optimizer calls has a forward and a backward pass. A moment belongs
    to the innermost, except that passes within a pass are part of it.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self._now = now
        self._phases: list[str] = []  # within one another
        self._unsettled_at: Optional[int] = None  # number of phases around a forward pass whose backward is to come
        self._marks = [Mark(now(), REST)]

    def begin(self, phase: str) -> int:
        """Begin a phase within the present one.

        Returns:
            What ends it.
        """
        depth = len(self._phases)
        around = self._phases[-1] if depth else REST
        if phase in _PARTS and around in _HAVE_NO_PARTS:
            phase = around
        self._phases.append(phase)
        if phase == BACKWARD:
            self._settle()
        self._mark(phase)
        return depth

    def end(self, depth: int) -> None:
        """End a phase, and those within it that an exception has ended."""
        ended = self._phases[depth] if depth < len(self._phases) else REST
        del self._phases[depth:]
        if ended in (FORWARD, LOSS) and (not depth or self._phases[-1] == OPTIMIZER):
            self._unsettled_at = depth
        self._mark(self._present)

    def cancel(self, depth: int) -> None:
        """Forget a copy that has just begun, and was none."""
        del self._phases[depth:]
        del self._marks[-1]

    @property
    def is_between(self) -> bool:
        """True if a copy would not be part of another phase."""
        return not self._phases or self._phases[-1] == OPTIMIZER

    def cut(self) -> MarkedStep:
        """End a step and begin the next one; return the marks of that which has ended."""
        self._phases.clear()
        self._unsettled_at = None
        now = self._now()
        step = MarkedStep(self._marks, now)
        self._marks = [Mark(now, REST)]
        return step

    @property
    def _present(self) -> str:
        if self._unsettled_at == len(self._phases):
            return _UNSETTLED
        return self._phases[-1] if self._phases else REST

    def _mark(self, phase: str) -> None:
        if phase != self._marks[-1].phase:
            self._marks.append(Mark(self._now(), phase))

    def _settle(self) -> None:
        """Say of the times between forward passes and this backward pass what they belong to."""
        self._unsettled_at = None
        last = max((number for number, mark in enumerate(self._marks) if mark.phase == FORWARD), default=-1)
        self._marks = [
            Mark(mark.at, FORWARD if number < last else LOSS) if mark.phase == _UNSETTLED else mark
            for number, mark in enumerate(self._marks)
        ]


_DEPTH = 4


class TensorPlaces:
    """Tensors of a step by their kind and their device."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], list[str]] = {}

    def add_call(self, module: Any, arguments: Any) -> None:
        for name, parameter in module.named_parameters():
            self._add("parameters", name, parameter)
        for name, buffer in module.named_buffers():
            self._add("buffers", name, buffer)
        for name, tensor in _tensors(arguments, "input"):
            self._add("inputs of the model", name, tensor)

    def add_optimizer(self, optimizer: Any) -> None:
        """Add what an optimizer keeps of its parameters; its counters are on the CPU by design."""
        for state in list(optimizer.state.values()):
            for name, tensor in _tensors(state, "state"):
                if tensor.ndim:
                    self._add("state of the optimizer", name, tensor)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each kind and device."""
        return [
            {
                "what": kind,
                "device": device,
                "count": len(names),
                "names": list(dict.fromkeys(names))[:5],
            }
            for (kind, device), names in self._names.items()
        ]

    def _add(self, kind: str, name: str, tensor: Any) -> None:
        self._names.setdefault((kind, str(tensor.device)), []).append(name)


def _tensors(part: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Return the tensors in nested containers, each with the name under which it stands there."""
    if hasattr(part, "device") and hasattr(part, "ndim"):
        yield name, part
    elif depth < _DEPTH and isinstance(part, (Mapping, list, tuple)):
        parts: Iterable[tuple[Any, Any]] = part.items() if isinstance(part, Mapping) else enumerate(part)
        for key, one in list(parts)[:256]:
            yield from _tensors(one, key if isinstance(key, str) else name, depth + 1)
