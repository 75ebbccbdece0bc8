"""Phases of a step of PyTorch, by marks around the functions that begin and end them.

Between stretches with marks, modules and tensors are as PyTorch made them. A compiled module is marked as a whole: what
is traced meanwhile does not see the marks. PyTorch's hooks are used for optimizers alone: global hooks of modules cost
3 to 4 µs a module, where a wrapper of the call costs 1 µs, and have compiled modules traced anew; its profiler adds a
fifth to a step of small operations.
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
from autotune.trainee.step_profile import BEGINS, StepProfiler, refuse, try_to_write_error, write_result

PHASES = DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER = "data", "copy", "forward", "loss", "backward", "optimizer"
"""The phases of a step, but for the rest."""

REST = "rest"


def profile_torch(profiler: StepProfiler, _instrumentation: Instrumentation) -> None:
    """Profile the steps of PyTorch, which has been imported."""
    _TorchProfile(profiler.folder).install()


class _TorchProfile:
    """Profile of the steps of this process; its own instrumentation ends it after too many errors."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._torch: Any = sys.modules["torch"]
        # In code that is compiled, this is True for the compiler, which then sees nothing of the marks.
        self._is_compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", bool)
        self._originals: list[tuple[Any, str, Any]] = []
        self._instrumentation = Instrumentation(self._note)
        self._thread: Optional[int] = None  # that trains
        self._optimizers: dict[int, Any] = {}
        self._depths: list[int] = []  # of the optimizers' steps that have begun
        self._steps = MarkedSteps(self._clock, self._switch, self._finished)
        self._is_inside = False  # the call of a module
        self._modules: dict[int, Any] = {}  # that were called
        self._models: list[Any] = []  # those of them that have parameters
        self._places = TensorPlaces()
        self._compiled: set[str] = set()
        self._autocast: set[str] = set()
        self._sizes = BatchSizes()
        self._batch_size: Optional[int] = None

    def install(self) -> None:
        """Put marks around the functions that are called a few times in a step."""
        torch, instrumentation = self._torch, self._instrumentation
        loaders, optimizers = import_module("torch.utils.data.dataloader"), import_module("torch.optim.optimizer")
        scaler = getattr(import_module("torch.amp"), "GradScaler", None) or torch.cuda.amp.GradScaler

        backward, update = (functools.partial(self._begins_phase, phase) for phase in (BACKWARD, OPTIMIZER))
        for owner, name, begin, end in (
            (loaders._BaseDataLoaderIter, "__next__", self._fetch_begins, self._fetch_ends),
            (loaders.DataLoader, "__iter__", self._disturbed, None),
            (torch, "save", self._disturbed, None),
            (torch.autograd, "backward", backward, self._end),
            (torch.autograd, "grad", backward, self._end),
            (optimizers.Optimizer, "zero_grad", update, self._end),
            (torch.nn.utils, "clip_grad_norm_", update, self._end),
            (torch.nn.utils, "clip_grad_value_", update, self._end),
            (scaler, "unscale_", update, self._end),
            (scaler, "update", update, self._end),
            (scaler, "step", update, self._scaled_step_ends),
        ):
            instrumentation.attempt(f"torch: {name}", instrumentation.around, owner, name, begin, end)
        optimizers.register_optimizer_step_pre_hook(instrumentation.guarded(self._update_begins))
        optimizers.register_optimizer_step_post_hook(instrumentation.guarded(self._update_ends))
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """End the profile in a forked child of a process that trains."""
        if self._thread is not None:
            self._stop()

    def _stop(self) -> None:
        self._steps.is_over = True
        self._switch(False)

    def _note(self, text: str) -> None:
        if self._instrumentation.on:
            refuse(text)
        else:
            self._stop()
            try_to_write_error(self._folder, text)

    @property
    def _is_ours(self) -> bool:
        return not self._steps.is_over and threading.get_ident() == self._thread

    # Borders.

    def _update_begins(self, optimizer: Any, *_arguments: Any) -> None:
        if self._thread is None and not self._steps.is_over:
            self._begins(optimizer)
        if self._is_ours:
            self._optimizers.setdefault(id(optimizer), optimizer)
            self._depths.append(self._begin(OPTIMIZER))

    def _update_ends(self, optimizer: Any, *_arguments: Any) -> None:
        if self._is_ours:
            if self._depths:
                self._end(self._depths.pop())
            self._steps.updated(id(optimizer))

    def _scaled_step_ends(self, depth: int, _result: Any, _error: Optional[BaseException]) -> None:
        self._end(depth)
        self._steps.updated(None)

    def _fetch_begins(self, args: Any, kwargs: Any) -> Any:
        if not self._is_ours:
            return None
        self._depths.clear()
        self._steps.fetches()
        return self._begin(DATA)

    def _fetch_ends(self, depth: int, batch: Any, error: Optional[BaseException]) -> None:
        self._end(depth)
        if error is not None:
            self._steps.is_disturbed = True
        elif self._steps.is_marking and self._batch_size is None:
            self._batch_size = self._sizes.of(batch)

    def _disturbed(self, args: Any, kwargs: Any) -> None:
        """Leave out the present step."""
        if self._is_ours:
            self._steps.is_disturbed = True

    def _begins(self, optimizer: Any) -> None:
        """Begin with the first update, if the steps can be profiled."""
        self._thread = threading.get_ident()
        devices = {p.device for group in optimizer.param_groups for p in group["params"]}
        others = sorted({device.type for device in devices} - {"cpu", "cuda"})
        self._steps.is_over = True
        if others:
            refuse(f"steps of PyTorch are profiled on CPUs and CUDA devices, not on {', '.join(others)}")
        elif len([device for device in devices if device.type == "cuda"]) > 1:
            refuse("the step is spread over several devices")
        else:
            self._steps.is_over = False
            stream.mark("note", text=BEGINS)

    # Phases.

    def _begins_phase(self, phase: str, args: Any, kwargs: Any) -> Optional[int]:
        return self._begin(phase) if self._is_ours else None

    def _begin(self, phase: str) -> int:
        marks = self._steps.marks
        return marks.begin(phase) if self._steps.is_marking and marks is not None else -1

    def _end(self, depth: int, *_ending: Any) -> None:
        """End a phase; what began without marks has none."""
        marks = self._steps.marks
        if depth >= 0 and self._steps.is_marking and marks is not None:
            marks.end(depth)

    def _switch(self, on: bool) -> None:
        """Have calls of modules, and copies to other devices, marked from now on, or no longer."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        if on:
            torch = self._torch
            for owner, name, begin, end in (
                (torch.nn.Module, "__call__", self._module_begins, self._module_ends),
                (torch.Tensor, "to", self._copy_begins, self._copy_ends),
                (torch.Tensor, "cuda", self._copy_begins, self._copy_ends),
                (torch.autocast, "__enter__", self._autocast_begins, self._end),
            ):
                self._originals.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, self._marked(getattr(owner, name), begin, end))

    def _marked(
        self, original: Any, begin: Callable[[Any, Any, Any], Optional[int]], end: Callable[[int, Any, Any], None]
    ) -> Callable[..., Any]:
        """Return a method that many calls in a step go through, with `end` after it unless `begin` returns None."""
        is_compiling, failed = self._is_compiling, self._instrumentation.failed
        get_thread, thread, guarded_end = threading.get_ident, self._thread, self._instrumentation.guarded(end)

        @functools.wraps(original)
        def marked(one: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or get_thread() != thread:
                return original(one, *args, **kwargs)
            depth = result = None
            try:
                depth = begin(one, args, kwargs)
            except Exception as error:
                failed(error)
            if depth is None:
                return original(one, *args, **kwargs)
            try:
                result = original(one, *args, **kwargs)
                return result
            finally:
                guarded_end(depth, one, result)

        return marked

    def _module_begins(self, module: Any, args: Any, kwargs: Any) -> Optional[int]:
        """Begin the call of a module, if it lies in no other."""
        phase = None if self._is_inside else self._phase_of(module, args, kwargs)
        if phase is None:
            return None
        self._is_inside = True
        return self._begin(phase)

    def _module_ends(self, depth: int, module: Any, result: Any) -> None:
        self._is_inside = False
        self._end(depth)

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

    def _copy_begins(self, tensor: Any, args: Any, kwargs: Any) -> Optional[int]:
        marks = self._steps.marks
        return marks.begin(COPY) if marks is not None and marks.is_between else None

    def _copy_ends(self, depth: int, tensor: Any, copy: Any) -> None:
        """End a copy, which is one if the result lies on another device."""
        marks = self._steps.marks
        assert marks is not None
        if copy is None or copy.device == tensor.device:
            marks.cancel(depth)
        else:
            marks.end(depth)

    def _autocast_begins(self, autocast: Any, args: Any, kwargs: Any) -> None:
        """Note the precision of automatic mixed precision."""
        if getattr(autocast, "_enabled", False):
            self._autocast.add(str(getattr(autocast, "fast_dtype", "")).removeprefix("torch."))

    # Result.

    @property
    def _parameters(self) -> list[Any]:
        return [p for one in self._optimizers.values() for group in one.param_groups for p in group["params"]]

    def _clock(self) -> Clock:
        """Return the clock of the parameters' device: events of its stream, or the host's clock."""
        cuda = self._torch.cuda
        device = next((p.device for p in self._parameters if p.device.type == "cuda"), None)
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
        for kept in (self._modules, self._models, self._optimizers):
            kept.clear()

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
        precision = " and ".join(sorted({str(p.dtype).removeprefix("torch.") for p in self._parameters}))
        autocast = [f"autocast to {' and '.join(sorted(self._autocast))}"] if self._autocast else []
        several = [f"{batches:.3g} batches a step"] if batches > 1.2 else []  # about one otherwise
        return {
            "of": _names(self._models),
            "compiled": ", ".join([*sorted(self._compiled), precision, *autocast, *several]),
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
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"PyTorch's {', '.join(names[:3])}{more}" if names else "a step of PyTorch"


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


_LONGEST_S = 150.0  # of the profile, however few steps there were


class MarkedSteps:
    """Steps of a training, in stretches with marks and without in turn.

    Args:
        clock: Returns the clock to use, at the first stretch.
        mark: Called with True to have the step's phases marked, and with False for that to end.
        finished: Called with the result.

    Attributes:
        is_disturbed: True if the present step is to be left out.
    """

    def __init__(
        self, clock: Callable[[], Clock], mark: Callable[[bool], object], finished: Callable[[dict[str, Any]], object]
    ) -> None:
        self._make_clock = clock
        self._switch_marks = mark
        self._finished = finished
        self._clock = HOST_CLOCK
        self._borders = Borders()
        self._begin_s = time.monotonic()
        self._held: list[tuple[float, float]] = []
        self._stretch_s = 0.0  # its begin
        self._stretch: list[MarkedStep] = []  # its steps
        self._stretches: dict[bool, list[list[MarkedStep]]] = {True: [], False: []}  # with marks, and without
        self._fetches = self._all_fetches = self._all_steps = 0
        self.is_disturbed = True
        self.marks: Optional[StepMarks] = None
        self.is_marking = False
        self.is_over = False

    def updated(self, optimizer: Optional[int]) -> None:
        """Process an update of an optimizer; None for one that was skipped."""
        is_border, steps, passed_s = self._borders.updated(optimizer), self._borders.steps, self._passed_s()
        if is_border:
            self._border()
        elif self.marks is None and ((steps >= 20 and passed_s >= 4.0) or (steps >= 4 and passed_s >= 30.0)):  # warm
            self._borders.settle()
            self._clock = self._make_clock()
            self.marks = StepMarks(self._clock.now)
            self._begin_s = time.monotonic()

    def fetches(self) -> None:
        """Process the begin of a fetch."""
        if self._borders.fetches():
            self._border()
        self._fetches += 1

    def _passed_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _border(self) -> None:
        if self.marks is None:
            return
        step, fetches = self.marks.cut(), self._fetches
        is_first, self._fetches = not self._stretch_s, 0
        self._stretch_s = self._stretch_s or time.monotonic()
        if not self.is_disturbed and not is_first:
            self._stretch.append(step)
            self._all_fetches += fetches
            self._all_steps += 1
        self.is_disturbed = False
        steps, passed_s = len(self._stretch), time.monotonic() - self._stretch_s
        if steps >= 60 or (steps >= 6 and passed_s >= 0.75) or (steps >= 2 and passed_s >= 5.0):
            self._next_stretch()
        elif self._passed_s() > _LONGEST_S:
            self._end()

    def _next_stretch(self) -> None:
        self._stretches[self.is_marking].append(self._stretch)
        self._stretch = []
        if self.is_marking:
            self._held.append((self._stretch_s, time.monotonic()))
        self._stretch_s = 0.0
        if len(self._stretches[True]) == 12 or self._passed_s() > _LONGEST_S:
            self._end()
        else:
            self.is_marking = not self.is_marking
            self._switch_marks(self.is_marking)

    def _end(self) -> None:
        self.is_over = True
        self.is_marking = False
        self._switch_marks(False)
        self._clock.wait()
        self._finished(self._result())

    def _result(self) -> dict[str, Any]:
        marked, plain = (
            [step.times_ms(self._clock.elapsed_ms) for stretch in self._stretches[way] for step in stretch]
            for way in (True, False)
        )
        if min(len(marked), len(plain)) < 5:
            return {"error": "too few steps without a checkpoint or the begin of a pass over data"}
        phases = [name for name in marked[0] if name == REST or any(times_ms[name] for times_ms in marked)]
        return {
            "device": self._clock.device,
            "held": self._held,
            "marked_ms": {name: [round(times_ms[name], 4) for times_ms in marked] for name in phases},
            "plain_ms": [round(sum(times_ms.values()), 4) for times_ms in plain],
            "batches_a_step": round(self._all_fetches / self._all_steps, 3),
        }


_UNSETTLED = "unsettled"  # after a forward pass: part of that if another one follows, else of the loss


class Mark(NamedTuple):
    """Moment at which a phase begins.

    Attributes:
        at: The moment, as the clock gives it: a number, or an event of an accelerator.
    """

    at: Any
    phase: str


class MarkedStep(NamedTuple):
    """Marks of one step, in their order."""

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
        # These have no parts: a backward pass computes forward passes again to save memory.
        if phase in (DATA, COPY, FORWARD, LOSS) and around in (DATA, FORWARD, LOSS, BACKWARD):
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
        is_unsettled = self._unsettled_at == len(self._phases)
        self._mark(_UNSETTLED if is_unsettled else self._phases[-1] if self._phases else REST)

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

    def _mark(self, phase: str) -> None:
        if phase != self._marks[-1].phase:
            self._marks.append(Mark(self._now(), phase))

    def _settle(self) -> None:
        """Say of the times between forward passes and this backward pass what they belong to."""
        self._unsettled_at = None
        last = max((number for number, mark in enumerate(self._marks) if mark.phase == FORWARD), default=-1)
        for number, mark in enumerate(self._marks):
            if mark.phase == _UNSETTLED:
                self._marks[number] = Mark(mark.at, FORWARD if number < last else LOSS)


class TensorPlaces:
    """Tensors of a step by their kind and their device."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], list[str]] = {}

    def add_call(self, module: Any, arguments: Any) -> None:
        """Add the tensors of a model, and those that it is called with."""
        self._add("parameters", module.named_parameters())
        self._add("buffers", module.named_buffers())
        self._add("inputs of the model", _tensors(arguments, "input"))

    def add_optimizer(self, optimizer: Any) -> None:
        """Add what an optimizer keeps of its parameters; its counters are on the CPU by design."""
        for state in list(optimizer.state.values()):
            self._add("state of the optimizer", ((name, one) for name, one in _tensors(state, "state") if one.ndim))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each kind and device."""
        return [
            {"what": kind, "device": device, "count": len(names), "names": list(dict.fromkeys(names))[:5]}
            for (kind, device), names in self._names.items()
        ]

    def _add(self, kind: str, named: Iterable[tuple[str, Any]]) -> None:
        for name, tensor in named:
            self._names.setdefault((kind, str(tensor.device)), []).append(name)


def _tensors(part: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Return the tensors in nested containers, each with the name under which it stands there."""
    if hasattr(part, "device") and hasattr(part, "ndim"):
        yield name, part
    elif depth < 4 and isinstance(part, (Mapping, list, tuple)):
        parts: Iterable[tuple[Any, Any]] = part.items() if isinstance(part, Mapping) else enumerate(part)
        for key, one in list(parts)[:256]:
            yield from _tensors(one, key if isinstance(key, str) else name, depth + 1)
