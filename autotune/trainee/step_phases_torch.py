"""Phases of a step of PyTorch, by marks around the functions that begin and end them.

Between stretches with marks, modules and tensors are as PyTorch made them. A compiled module is marked as a whole: what
is traced meanwhile does not see the marks.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee import stream
from autotune.trainee.batch import BatchSizes
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.marked_steps import HOST_CLOCK, Clock, MarkedSteps
from autotune.trainee.step_marks import BACKWARD, COPY, DATA, FORWARD, LOSS, OPTIMIZER
from autotune.trainee.step_phases_profile import BEGINS, try_to_write_error, write_result
from autotune.trainee.tensor_places import TensorPlaces

_MOST_NAMES = 3
_ABOUT_ONE = 1.2


def observe(folder: str, refuse: Callable[[str], object]) -> None:
    """Profile the steps of PyTorch, which has been imported.

    Args:
        folder: The trial's folder.
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
        folder: The trial's folder.
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
        """Process the begin of an optimizer's step: a hook of PyTorch."""
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
        """Process its end."""
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
        """Process the end of a step with scaled gradients, which leaves the optimizer's out where they overflow."""
        self.ends(depth, result, error)
        self._steps.updated(None)

    def fetch_begins(self, args: Any, kwargs: Any) -> Any:
        """Process the begin of a fetch."""
        if not self._is_ours:
            return None
        self._depths.clear()
        self._steps.fetches()
        return self._begin(DATA)

    def fetch_ends(self, depth: int, batch: Any, error: Optional[BaseException]) -> None:
        """Process its end."""
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
        """Return the phase that a call of a module is; None for one without parameters, such as an augmentation."""
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
