"""Phases of a step of PyTorch, by marks around the functions that begin and end them.

Stretches of steps with marks and without take turns; in between, modules and tensors are as PyTorch made them. A
compiled module is marked as a whole: what is traced meanwhile does not see the marks. PyTorch's hooks are used for
optimizers alone: global hooks of modules cost 3 to 4 µs a module, where a wrapper of the call costs 1 µs, and have
compiled modules traced anew; its profiler adds a fifth to a step of small operations.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee import stream
from autotune.trainee.batch import BatchSizes
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.operations import torch_mode
from autotune.trainee.step_profile import (
    BEGINS,
    STEPS_ONE_BY_ONE,
    Operations,
    StepProfiler,
    refuse,
    try_to_write_error,
    write_result,
)

PHASES = DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER = "data", "copy", "forward", "loss", "backward", "optimizer"
"""The phases of a step, but for the rest."""

REST = "rest"


def profile_torch(profiler: StepProfiler, _instrumentation: Instrumentation) -> None:
    """Profile the steps of PyTorch, which has been imported."""
    _TorchProfile(profiler.folder).install()


class _TorchProfile:
    """Profile of the steps of the thread that trains; its own instrumentation ends it after too many errors."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._torch: Any = sys.modules["torch"]
        self._instrumentation = Instrumentation(self._note)
        self._thread: Optional[int] = None
        self._is_over = False
        self._originals: list[tuple[Any, str, Any]] = []  # of what is marked in this stretch
        # What the step is of.
        self._optimizers: dict[int, Any] = {}
        self._modules: dict[int, Any] = {}  # that were called
        self._models: list[Any] = []  # those of them that have parameters
        self._ways: set[str] = set()
        self._autocast: set[str] = set()
        self._places = TensorPlaces()
        self._sizes = BatchSizes()
        self._batch_size: Optional[int] = None
        # The step that is under way, and the stretch that it is in.
        self._borders = Borders()
        self._marks: Optional[StepMarks] = None  # from the warm-up on
        self._is_marking = self._is_inside = False  # the latter: the call of a module
        self._is_disturbed = True  # it does not count
        self._update_depth = -1
        self._fetches = 0
        self._begin_s = self._stretch_s = time.monotonic()
        self._stretch: Optional[list[Step]] = None  # None before its first step begins
        self._stretches: dict[bool, list[list[Step]]] = {True: [], False: []}  # with marks, and without
        self._held: list[tuple[float, float]] = []
        self._counted = [0, 0]  # steps, and their fetches
        self._operations, self._steps_one_by_one = Operations(), 0
        self._one_by_one: Optional[Any] = None  # what times them, after all stretches

    def install(self) -> None:
        """Put marks around the functions that are called a few times in a step."""
        torch, instrumentation = self._torch, self._instrumentation
        loaders, optimizers = import_module("torch.utils.data.dataloader"), import_module("torch.optim.optimizer")
        scaler = getattr(import_module("torch.amp"), "GradScaler", None) or torch.cuda.amp.GradScaler
        backward, update = (functools.partial(self._begin_of, phase) for phase in (BACKWARD, OPTIMIZER))
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
            (scaler, "step", update, self._end),
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
        self._is_over, self._is_marking = True, False
        self._switch()

    def _note(self, text: str) -> None:
        if self._instrumentation.on:
            refuse(text)
        else:
            self._stop()
            try_to_write_error(self._folder, text)

    @property
    def _is_ours(self) -> bool:
        return not self._is_over and threading.get_ident() == self._thread

    # Borders of the step.

    def _update_begins(self, optimizer: Any, *_arguments: Any) -> None:
        if self._thread is None:
            self._begins(optimizer)
        if self._is_ours:
            self._optimizers.setdefault(id(optimizer), optimizer)
            self._update_depth = self._begin(OPTIMIZER)

    def _begins(self, optimizer: Any) -> None:
        """Begin with the first update, if the steps can be profiled."""
        self._thread = threading.get_ident()
        devices = {p.device for group in optimizer.param_groups for p in group["params"]}
        others = sorted({device.type for device in devices} - {"cpu", "cuda"})
        self._is_over = True
        if others:
            refuse(f"steps of PyTorch are profiled on CPUs and CUDA devices, not on {', '.join(others)}")
        elif len([device for device in devices if device.type == "cuda"]) > 1:
            refuse("the step is spread over several devices")
        else:
            self._is_over = False
            stream.mark("note", text=BEGINS)

    def _update_ends(self, optimizer: Any, *_arguments: Any) -> None:
        if not self._is_ours:
            return
        self._end(self._update_depth)
        is_border, steps, passed_s = self._borders.updated(id(optimizer)), self._borders.steps, self._passed_s
        if is_border:
            self._border()
        elif self._marks is None and ((steps >= 20 and passed_s >= 4.0) or (steps >= 4 and passed_s >= 30.0)):  # warm
            self._borders.settle()
            device = next((p.device for p in self._parameters if p.device.type == "cuda"), None)
            self._marks = StepMarks(time.perf_counter if device is None else functools.partial(self._event, device))
            self._begin_s = time.monotonic()

    def _fetch_begins(self, args: Any, kwargs: Any) -> Any:
        if not self._is_ours:
            return None
        if self._borders.fetches():
            self._border()
        self._fetches += 1
        return self._begin(DATA)

    def _fetch_ends(self, depth: int, batch: Any, error: Optional[BaseException]) -> None:
        self._end(depth)
        if error is not None:
            self._is_disturbed = True
        elif self._is_marking and self._batch_size is None:
            self._batch_size = self._sizes.of(batch)

    def _disturbed(self, args: Any, kwargs: Any) -> None:
        if self._is_ours:
            self._is_disturbed = True

    @property
    def _passed_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _border(self) -> None:
        """End a step, and with it perhaps its stretch, or the profile."""
        if self._marks is None:
            return
        if self._one_by_one is not None:  # of no stretch: such steps are far longer
            self._steps_one_by_one += 1
            if self._steps_one_by_one == STEPS_ONE_BY_ONE:
                self._one_by_one.__exit__(None, None, None)
                self._end_with_result()
            return
        step, fetches, self._fetches = self._marks.cut(), self._fetches, 0
        if self._stretch is None:
            self._stretch, self._stretch_s = [], time.monotonic()
        elif not self._is_disturbed:
            self._stretch.append(step)
            self._counted = [self._counted[0] + 1, self._counted[1] + fetches]
        self._is_disturbed = False
        steps, passed_s = len(self._stretch), time.monotonic() - self._stretch_s
        is_long = self._passed_s > 150.0  # the profile, however few steps there were
        if steps >= 60 or (steps >= 6 and passed_s >= 0.75) or (steps >= 2 and passed_s >= 5.0):
            self._stretches[self._is_marking].append(self._stretch)
            if self._is_marking:
                self._held.append((self._stretch_s, time.monotonic()))
            self._stretch, self._is_marking = None, not self._is_marking
            self._switch()
        if is_long or ("torch.compile" in self._ways and len(self._stretches[True]) == 12):
            self._end_with_result()  # what is compiled has no single operations
        elif len(self._stretches[True]) == 12:
            self._is_marking = False
            self._switch()
            self._one_by_one = _timing(self._operations, self._torch)
            self._one_by_one.__enter__()

    def _end_with_result(self) -> None:
        self._stop()
        self._write()

    # Phases within it.

    def _begin_of(self, phase: str, args: Any, kwargs: Any) -> Optional[int]:
        return self._begin(phase) if self._is_ours else None

    def _begin(self, phase: str) -> int:
        return self._marks.begin(phase) if self._is_marking and self._marks is not None else -1

    def _end(self, depth: int, *_ending: Any) -> None:
        """End a phase; what began without marks has none."""
        if depth >= 0 and self._is_marking and self._marks is not None:
            self._marks.end(depth)

    def _switch(self) -> None:
        """Have calls of modules, and copies to other devices, marked in a stretch with marks, and in no other."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        if self._is_marking:
            tensor = self._torch.Tensor
            for owner, name, begin, end in (
                (self._torch.nn.Module, "__call__", self._module_begins, self._module_ends),
                (tensor, "to", self._copy_begins, self._copy_ends),
                (tensor, "cuda", self._copy_begins, self._copy_ends),
            ):
                self._originals.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, self._marked(getattr(owner, name), begin, end))

    def _marked(
        self, original: Any, begin: Callable[[Any, Any], Optional[int]], end: Callable[[int, Any, Any], None]
    ) -> Callable[..., Any]:
        """Return a method that many calls in a step go through, with `end` after it unless `begin` returns None."""
        # In code that is compiled, this is True for the compiler, which then sees nothing of the marks.
        is_compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", bool)
        failed, guarded_end = self._instrumentation.failed, self._instrumentation.guarded(end)
        get_thread, thread = threading.get_ident, self._thread

        @functools.wraps(original)
        def marked(one: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or get_thread() != thread:
                return original(one, *args, **kwargs)
            depth = result = None
            try:
                depth = begin(one, (args, kwargs))
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

    def _module_begins(self, module: Any, arguments: Any) -> Optional[int]:
        """Begin the call of a module, if it lies in no other and is a loss or has parameters."""
        if self._is_inside:
            return None
        is_loss = isinstance(module, self._torch.nn.modules.loss._Loss)
        if not is_loss and id(module) not in self._modules:
            self._modules[id(module)] = module  # kept, for the id to stay its own
            if next(module.parameters(), None) is not None:
                self._meet(module, arguments)
        if not is_loss and all(module is not model for model in self._models):
            return None
        self._is_inside = True
        return self._begin(LOSS if is_loss else FORWARD)

    def _module_ends(self, depth: int, module: Any, result: Any) -> None:
        self._is_inside = False
        self._end(depth)

    def _meet(self, model: Any, arguments: Any) -> None:
        """Note at the first call of a model how it is executed, in which precision, and where its tensors are."""
        torch = self._torch
        self._models.append(model)
        is_compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
        self._ways.add("torch.compile" if is_compiled else "eager")
        with contextlib.suppress(Exception):  # before PyTorch 2.4 there was a function for each device
            for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                self._autocast.add(str(torch.get_autocast_dtype(device)).removeprefix("torch."))
        if torch.cuda.is_available():
            self._places.add_call(model, arguments)

    def _copy_begins(self, tensor: Any, arguments: Any) -> Optional[int]:
        return self._begin(COPY) if self._marks is not None and self._marks.is_between else None

    def _copy_ends(self, depth: int, tensor: Any, copy: Any) -> None:
        """End a copy, which is one if the result lies on another device."""
        if self._marks is not None and (copy is None or copy.device == tensor.device):
            self._marks.cancel(depth)
        else:
            self._end(depth)

    # Result.

    @property
    def _parameters(self) -> list[Any]:
        return [p for one in self._optimizers.values() for group in one.param_groups for p in group["params"]]

    def _event(self, device: Any) -> Any:
        """Return an event of the device's present stream: the clock of what runs there."""
        event = self._torch.cuda.Event(enable_timing=True)
        if not self._torch.cuda.is_current_stream_capturing():
            event.record(self._torch.cuda.current_stream(device))
        return event

    def _write(self) -> None:
        try:
            write_result(self._folder, self._result())
        except Exception as error:
            try_to_write_error(self._folder, f"{type(error).__name__}: {error}")
        for kept in (self._modules, self._models, self._optimizers):
            kept.clear()

    def _result(self) -> dict[str, Any]:
        cuda, has_gpu = self._torch.cuda, self._torch.cuda.is_available()
        device = next((p.device for p in self._parameters if p.device.type == "cuda"), None)
        if device is not None:
            cuda.synchronize(device)

        def elapsed_ms(begin: Any, end: Any) -> float:
            return float(1000 * (end - begin) if device is None else begin.elapsed_time(end))

        marked, plain = (
            [times_ms(step, elapsed_ms) for stretch in self._stretches[way] for step in stretch]
            for way in (True, False)
        )
        if min(len(marked), len(plain)) < 5:
            return {"error": "too few steps without a checkpoint or the begin of a pass over data"}
        phases = [name for name in marked[0] if name == REST or any(step[name] for step in marked)]
        unmarked = "no call of a module was seen: it is compiled together with other code, or there is none"
        why_not = {} if self._models else {FORWARD: unmarked, LOSS: unmarked}
        if COPY not in phases:
            why_not[COPY] = "no copy of a tensor was seen" if has_gpu else "there is no GPU"
        if DATA not in phases:
            why_not[DATA] = "no fetch from a DataLoader was seen in the thread that trains"
        for optimizer in self._optimizers.values() if has_gpu else ():
            self._places.add_optimizer(optimizer)
        steps, fetches = self._counted
        ways = [*sorted(self._ways), _listed(str(p.dtype).removeprefix("torch.") for p in self._parameters)]
        if self._autocast:
            ways.append(f"autocast to {_listed(self._autocast)}")
        if fetches / steps > 1.2:  # about one otherwise
            ways.append(f"{round(fetches / steps, 3):.3g} batches a step")
        return {
            "of": _names(self._models),
            "compiled": ", ".join(ways),
            "device": "CPU" if device is None else str(device),
            "batch_size": self._batch_size,
            "held": self._held,
            "marked_ms": {name: [round(step[name], 4) for step in marked] for name in phases},
            "plain_ms": [round(sum(step.values()), 4) for step in plain],
            "why_not": why_not,
            "places": self._places.rows(),
            "slowest": self._operations.rows(max(1, self._steps_one_by_one)),
        }


def _timing(found: Operations, torch: Any) -> Any:
    """Return a mode in which each operation is added with its own time."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else bool

    def launch(operation: functools.partial[Any]) -> Any:
        begin_s = time.perf_counter()
        result = operation()
        wait()
        found.add(str(operation.func).rpartition(".")[0] or str(operation.func), time.perf_counter() - begin_s)
        return result

    return torch_mode(launch)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(set(names)))


def _names(models: list[Any]) -> str:
    names = []
    for model in models:
        while hasattr(model, "_orig_mod") or type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
        names.append(type(model).__name__)
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"PyTorch's {', '.join(names[:3])}{more}" if names else "a step of PyTorch"


class Borders:
    """Borders between the steps of a training: fetches after an update, or where there are none, updates."""

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

    def updated(self, optimizer: int) -> bool:
        """Process an update; return True if a step is over."""
        self._is_updated = True
        self._updates[optimizer] = self._updates.pop(optimizer, 0) + 1
        return optimizer == self._border_optimizer

    def fetches(self) -> bool:
        """Process the begin of a fetch; return True if a step is over."""
        was_updated, self._is_updated = self._is_updated, False
        self._at_fetches += was_updated
        return was_updated and self._border_optimizer is None


Step = list[tuple[Any, str]]
"""Moments of a step, as the clock gives them (numbers, or events of an accelerator), each with the phase that begins
there; the last one is its end."""

_UNSETTLED = "unsettled"  # after a forward pass: part of that if another one follows, else of the loss


def times_ms(step: Step, elapsed_ms: Callable[[Any, Any], float]) -> dict[str, float]:
    """Return the time of each phase of a step, given a function for the milliseconds between two moments."""
    found = dict.fromkeys((*PHASES, REST), 0.0)
    for place, (begin, phase) in enumerate(step[:-1], start=1):
        found[REST if phase == _UNSETTLED else phase] += elapsed_ms(begin, step[place][0])
    return found


class StepMarks:
    """Marks on the steps of one thread.

    Phases lie within one another: a closure that an optimizer calls has a forward and a backward pass. A moment belongs
    to the innermost, except that passes within a pass are part of it.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self._now = now
        self._phases: list[str] = []  # within one another
        self._unsettled_at: Optional[int] = None  # number of phases around a forward pass whose backward is to come
        self._marks: Step = [(now(), REST)]

    def begin(self, phase: str) -> int:
        """Begin a phase within the present one; return what ends it."""
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

    def cut(self) -> Step:
        """End a step and begin the next one; return the marks of that which has ended."""
        self._phases.clear()
        self._unsettled_at = None
        step = [*self._marks, (self._now(), REST)]
        self._marks = step[-1:]
        return step

    def _mark(self, phase: str) -> None:
        if phase != self._marks[-1][1]:
            self._marks.append((self._now(), phase))

    def _settle(self) -> None:
        """Say of the times between forward passes and this backward pass what they belong to."""
        self._unsettled_at = None
        last = max((number for number, (_, phase) in enumerate(self._marks) if phase == FORWARD), default=-1)
        for number, (at, phase) in enumerate(self._marks):
            if phase == _UNSETTLED:
                self._marks[number] = at, FORWARD if number < last else LOSS


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
