"""Observers: detect the steps of an unchanged trainer from inside its process.

The folder of a trial or watched training holds a copy of this package, ``inject/_autotune_trainee``, and a
``sitecustomize.py`` that calls `install` at interpreter start. After a framework's import, its `Observer` wraps
functions that fetch a batch, that only training calls, or whose time is a pause.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from autotune.trainee.batch import sizer
from autotune.trainee.loop import AggregatedSteps, Loop
from autotune.trainee.steps import BatchSource, StepMaker
from autotune.trainee.stream import (
    OBSERVER,
    TRIAL_DIR_VARIABLE,
    WATCH_DIR_VARIABLE,
    Report,
    Step,
    announce,
    process_stream,
)

# Each module is imported with its framework only, so other processes start without delay.
OBSERVERS = {
    "tensorflow": ("observe_tensorflow.TensorFlowObserver",),
    "keras": ("observe_keras.KerasObserver",),
    "torch": ("observe_torch.TorchObserver",),
    "jax": ("observe_jax.JaxObserver",),
}
"""Framework's import name → its observers."""

PHASED_OBSERVERS = {
    "tensorflow": ("phases_tensorflow.CompiledStepsObserver", "costs.TensorFlowOperations"),
    "torch": ("costs.TorchOperations",),
    "autotune.tf.feed": ("phases_tensorflow.FeedObserver",),
    "autotune.tf.two_stage": ("phases_tensorflow.TwoStageFeedObserver",),
}
"""Further observers of a trial with phases, installed before all others."""

COSTS = {
    "tensorflow": ("costs.TensorFlowCosts",),
    "torch": ("costs.TorchCosts",),
    "torch._dynamo.convert_frame": ("costs.TorchCompileCosts",),
    "jax": ("observe_jax.JaxCosts",),
}
"""Further observers of trials."""

STEP_PROFILES = {"tensorflow": ("step_profile.TensorFlowProfile",), "torch": ("step_profile.TorchProfile",)}
"""Observers that profile the step, in a trial made for that."""

installed: list[Instrumentation] = []
"""Instrumentation of this process, once installed."""


def install() -> None:
    """Install the observers in this process, once; a no-op outside of trials and watched trainings.

    A trial's first process announces the observer at once; others write a file only for steps.
    """
    folder = os.environ.get(TRIAL_DIR_VARIABLE)
    if not (folder or os.environ.get(WATCH_DIR_VARIABLE)) or installed:
        return
    report = Report(process_stream)
    loop, instrumentation = Loop(report), Instrumentation(report.note)
    code = import_module(f"{__package__}.code_values") if folder and "AUTOTUNE_CODE" in os.environ else None
    if folder and "AUTOTUNE_CONFIGS" in os.environ:
        instrumentation.attempt("open", part("code_values.install_copies"), instrumentation)
    phased: list[Any] = []  # the phased loop, if any

    def add(observer: str) -> None:
        part(observer)(loop, instrumentation, *phased).install()

    profiles = STEP_PROFILES if folder and "AUTOTUNE_PROFILE_STEP" in os.environ else {}

    def observe(framework: str) -> None:
        for observers in (PHASED_OBSERVERS if phased else {}), OBSERVERS, (COSTS if folder else {}), profiles:
            for observer in observers.get(framework, ()):
                instrumentation.attempt(framework, add, observer)
        if code is not None:
            code.install(framework, instrumentation)

    def add_phases() -> None:
        phased.append(part("phases.PhasedLoop")(loop, float(os.environ["AUTOTUNE_PHASE_S"])))
        # Step ends inside Keras's ``fit``, and of steps that a trainer reports itself.
        for owner, name in ((AggregatedSteps, "ended"), (Step, "_report")):
            instrumentation.around(owner, name, lambda *_: True, lambda *_: phased[0].worked(threading.get_ident()))

    if folder and "AUTOTUNE_PHASE_S" in os.environ:
        instrumentation.attempt("phases", add_phases)
    if folder and "AUTOTUNE_WHEREABOUTS" in os.environ:
        instrumentation.attempt("whereabouts", lambda: part("whereabouts.Whereabouts")().start())
    trial_only = (*(PHASED_OBSERVERS if phased else ()), *(COSTS if folder else ()), *(code.PLACES if code else ()))
    hooked = [*OBSERVERS, *trial_only]
    hook = Hook(dict.fromkeys(hooked, observe))
    installed.append(instrumentation)
    hook.install()
    atexit.register(instrumentation.guarded(loop.ends))
    for one in (loop, *phased):
        os.register_at_fork(after_in_child=instrumentation.guarded(one.forget))
    if folder:
        instrumentation.attempt("away", part("away.end_with_trial"), folder)
    if folder and not any(name.startswith("steps.") for name in os.listdir(folder)):
        announce(OBSERVER)


def part(path: str) -> Any:
    """Return ``module.name`` of this package, imported when needed."""
    module, _, name = path.partition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)


class Hook:
    """Meta path finder that finds nothing, and calls each module's action with its name once it is loaded."""

    def __init__(self, actions: Mapping[str, Callable[[str], object]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        sys.meta_path.insert(0, self)
        self.run_loaded()

    def run_loaded(self) -> None:
        """Run the actions of loaded modules: a warm interpreter may provide several in one import."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._actions.pop(name)(name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._actions:
            return None
        with contextlib.suppress(Exception):  # a finder that fails will fail again when Python asks it
            for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(name, spec.loader)
                    return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Wrap a module's own loader, once, so that the action runs after the module's execution."""
        if isinstance(loader, type):  # the class that loads all built-in modules
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(Exception):
                vars(loader).pop("exec_module", None)  # removed already if another hook watches too
            execute(module)
            with contextlib.suppress(Exception):
                self._actions.pop(name)(name)
                self.run_loaded()

        loader.exec_module = exec_module


if TYPE_CHECKING:
    from autotune.trainee.phases import PhasedLoop


class Observer:
    """Observer of one framework.

    Its `install` is called once, right after the framework's import, and must observe these, if they exist:

    | function of the framework | by |
    |---|---|
    | returns the next batch | `fetch` |
    | called by training only (gradient, or compiled step with one) | `around`; `Loop.worked` after it |
    | optimizer step | `Loop.recorded`, with `StepMaker.updated` |
    | compiled step whose calls no Python sees | `Loop.always_trains`, when traced |
    | evaluation, checkpoint | `pause` |
    | compiled, without a gradient | `Loop.called` after it |
    | waits for the accelerator | `Loop.sync`, once there is one |
    | holds the loss without waiting | `Loop.saw_loss`, after `Report.loss_due_s` |
    | out-of-memory error | `around`; `Loop.ran_out_of_memory` |

    Places are named like ``torch.utils.data.dataloader:_BaseDataLoaderIter.__next__``; missing ones are noted.
    tests/trainee/test_observers.py tests this contract.
    """

    def __init__(self, loop: Loop, instrumentation: Instrumentation, phased: Optional[PhasedLoop] = None) -> None:
        self.loop = loop
        self.instrumentation = instrumentation
        self.phased = phased

    def install(self) -> None:
        raise NotImplementedError

    def attempt(self, place: str, action: Callable[[Any, str], object]) -> None:
        """Call `action` with a place's owner and name; note a missing place."""
        self.instrumentation.attempt(place, lambda: action(*owner_of(place)))

    def around(self, place: str, begin: Begin, end: Optional[End] = None) -> None:
        """Call `begin` before the function there and, unless None, `end` after it."""
        self.attempt(place, lambda owner, name: self.instrumentation.around(owner, name, begin, end))

    def pause(self, place: str, kind: str) -> None:
        """Count the function's time as ``eval`` or ``checkpoint``."""
        loop = self.loop
        self.around(place, lambda *_: loop.pause_begins(), lambda begin_s, *_: loop.pause_ends(kind, begin_s))

    def after_updates(self, action: Callable[..., object]) -> None:
        """Call `action` after each step of an optimizer derived from PyTorch's."""
        hook = "torch.optim.optimizer:register_optimizer_step_post_hook"
        self.attempt(hook, lambda module, name: getattr(module, name)(action))

    def fetch(
        self, place: str, source_of: Callable[[Any], BatchSource], data_of: Callable[[Any], Any], **options: Any
    ) -> None:
        """Record each batch that the iterator method there returns, by `around_fetch`; `data_of` is for phases."""

        def wrap(owner: Any, name: str) -> None:
            original = getattr(owner, name)
            if self.phased is not None:
                plain = {name: value for name, value in options.items() if name in ("ends", "is_plain")}
                original = self.phased.around_fetch(original, data_of, **plain)
            ours = around_fetch(self.loop, self.instrumentation, original, source_of, **options)
            self.instrumentation.put(owner, name, ours)

        self.attempt(place, wrap)


def owner_of(place: str) -> tuple[Any, str]:
    """Return the owner and the name of a place."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, import_module(module)), name


_always = functools.partial(bool, True)


def around_fetch(
    loop: Loop,
    instrumentation: Instrumentation,
    original: Callable[..., Any],
    source_of: Callable[[Any], BatchSource],
    *,
    ends: tuple[type[BaseException], ...] = (StopIteration,),
    is_plain: Callable[[], object] = _always,
    in_graph: Optional[Callable[[Callable[..., Any]], Callable[..., Any]]] = None,
    within: Optional[set[int]] = None,
    is_outer: bool = False,
) -> Callable[..., Any]:
    """Return an iterator's batch-returning method, wrapped to record fetches.

    One function with its state in closure cells: with cold caches, each further call or object costs up to 1 µs.

    Args:
        ends: Exceptions that end the data.
        is_plain: True if batches are fetched now, not by a graph under construction; preferably a C function.
        in_graph: Wraps the method for such a graph.
        within: Threads inside a fetch that may fetch from nested iterators: of methods with `is_outer`.
    """
    otherwise = original if in_graph is None else in_graph(original)
    if within is not None and is_outer:
        original = _marking(original, within)
    monotonic, get_thread, recorded, fetched = time.monotonic, threading.get_ident, loop.recorded, StepMaker.fetched
    take_fingerprint = loop.take_fingerprint if loop.fingerprints is not None else None
    # The last used iterator, and its source.
    latest: tuple[Callable[[], Any], BatchSource] = (lambda: None), BatchSource()

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        call, begin_s = original, None
        try:
            if not is_plain():
                call = otherwise
            elif instrumentation.on and not (within and get_thread() in within):
                known = latest  # another thread may replace it meanwhile
                if known[0]() is not args[0]:
                    known = latest = weakref.ref(args[0]), source_of(args[0])
                source = known[1]
                begin_s = monotonic()
                if begin_s >= loop.digest_due_s:
                    begin_s = loop.fetch_begins()
        except Exception as error:
            instrumentation.failed(error)
            begin_s = None
        if begin_s is None:
            return call(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            try:
                if isinstance(error, ends):
                    loop.exhausted(source, begin_s)
            except Exception as own_error:
                instrumentation.failed(own_error)
            raise
        try:
            if source.size is None:
                source.size = source.dataset.size = sizer(result, source.expected)
            if not loop.is_suspended:
                recorded.append((fetched, source, begin_s, monotonic(), source.size(result), get_thread()))
            elif not source.is_fed:
                loop.fetched(source, begin_s, source.size(result))
            if take_fingerprint is not None:
                take_fingerprint(source, result)
        except Exception as error:
            instrumentation.failed(error)
        return result

    return observed


def _marking(original: Callable[..., Any], within: set[int]) -> Callable[..., Any]:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        within.add(thread)
        try:
            return original(*args, **kwargs)
        finally:
            within.discard(thread)

    return marked


MOST_FAILURES = 3
"""Observer errors after which it is switched off."""

Begin = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Callback before a call, with its arguments. Its result is passed to `End`, which is skipped if that is None."""

End = Callable[[Any, Any, Optional[BaseException]], object]
"""Callback after a call, with the results of `Begin` and the function, and the exception or None."""


class Replaced(NamedTuple):
    """Replaced function."""

    owner: Any
    name: str
    original: Callable[..., Any]
    ours: Callable[..., Any]


class Instrumentation:
    """Wrappers of framework functions; notes the observer's errors, and switches it off after too many."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._failures = 0
        self.on = True
        self.replaced: list[Replaced] = []

    def failed(self, error: Exception) -> None:
        with contextlib.suppress(Exception):
            self._failures += 1
            message = f"{type(error).__name__}: {error}"
            if self._failures >= MOST_FAILURES and self.on:
                self.on = False
                self._note(f"the observer has switched itself off: {message}")
            elif self.on:
                self._note(f"the observer may have missed steps: {message}")

    def guarded(self, action: Callable[..., object]) -> Callable[..., None]:
        """Return a function that calls `action` and raises nothing."""

        def call(*args: Any) -> None:
            try:
                action(*args)
            except Exception as error:
                self.failed(error)

        return call

    def attempt(self, what: str, action: Callable[..., object], *args: Any) -> None:
        """Call a function; note its error."""
        try:
            action(*args)
        except Exception as error:
            with contextlib.suppress(Exception):
                self._note(f"{what} cannot be observed: {type(error).__name__}: {error}")

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Replace a module's function or class's method; no other code patches anything."""
        original = getattr(owner, name)
        setattr(owner, name, ours)
        self.replaced.append(Replaced(owner, name, original, ours))

    def around(self, owner: Any, name: str, begin: Begin, end: Optional[End]) -> None:
        """Replace a module's function or class's method by its `observing` version."""
        self.put(owner, name, self.observing(getattr(owner, name), begin, end))

    def observing(self, original: Callable[..., Any], begin: Begin, end: Optional[End]) -> Callable[..., Any]:
        """Return a wrapper that calls `begin` before and, unless None, `end` after the original."""

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return original(*args, **kwargs)
            try:
                token = begin(args, kwargs)
            except Exception as error:
                self.failed(error)
                token = None
            if token is None or end is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self.guarded(end)(token, None, error)
                raise
            try:
                end(token, result, None)
            except Exception as error:
                self.failed(error)
            return result

        return observed
