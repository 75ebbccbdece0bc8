"""Installation of the observers: detects the steps of an unchanged trainer, from inside its process.

A copy of this package lies in the folder of the trial, or of the watched training, as ``inject/_autotune_trainee``,
beside a ``sitecustomize.py`` that calls `install` when the interpreter starts. Once the trainer has imported a
framework, its observer (observer.py) wraps some of its functions: those that fetch a batch, those that only training
calls (steps.py says how they make steps), and those whose time is a pause. The trainer's behaviour does not change:
nothing of autotune is on its import path, and instrumentation.py catches every error of the observer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.report import Report
from autotune.trainee.stream import OBSERVER, TRIAL_DIR_VARIABLE, WATCH_DIR_VARIABLE, announce, process_stream

# Each module is imported with its framework only: a process without frameworks starts without delay.
OBSERVERS = {
    "tensorflow": ("observe_tensorflow.TensorFlowObserver",),
    "keras": ("observe_keras.KerasObserver",),
    "torch": ("observe_torch.TorchObserver",),
    "jax": ("observe_jax.JaxObserver",),
}
"""Framework, by the name it is imported by → its observers."""

PHASED_OBSERVERS = {
    "tensorflow": ("phases_tensorflow.CompiledStepsObserver", "operations.TensorFlowOperations"),
    "torch": ("operations.TorchOperations",),
    "autotune.tf.feed": ("phases_tensorflow.FeedObserver",),
    "autotune.tf.two_stage": ("phases_tensorflow.TwoStageFeedObserver",),
}
"""The same, of what is observed only in a trial that is taken through phases, before all else."""

COSTS = {
    "tensorflow": ("costs.TensorFlowCosts",),
    "torch": ("costs.TorchCosts",),
    "torch._dynamo.convert_frame": ("costs.TorchCompileCosts",),
    "jax": ("costs.JaxCosts",),
}
"""The same, of what is observed only in trials."""

STEP_PROFILES = {"tensorflow": ("step_profile.TensorFlowProfile",), "torch": ("step_profile.TorchProfile",)}
"""The same, of what profiles the step in a trial that is made for it."""

installed: list[Instrumentation] = []
"""Instrumentation of this process, once installed."""


def install() -> None:
    """Install the observers in this process; a no-op outside a trial and a watched training, and the second time.

    The first process of a trial announces at once that the observer works, so that this can be told from a trainer
    without steps. Other processes write a file only if they make steps.
    """
    folder = os.environ.get(TRIAL_DIR_VARIABLE)
    if not (folder or os.environ.get(WATCH_DIR_VARIABLE)) or installed:
        return
    report = Report(process_stream)
    loop, instrumentation = Loop(report), Instrumentation(report.note)
    code = import_module(f"{__package__}.code_values") if folder and "AUTOTUNE_CODE" in os.environ else None
    if folder and "AUTOTUNE_CONFIGS" in os.environ:
        instrumentation.attempt("open", part("config_copy.install"), instrumentation)
    phased: list[Any] = []  # the loop that is taken through phases, if there is one

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
        phased.append(part("phases.PhasedLoop")(loop, instrumentation, float(os.environ["AUTOTUNE_PHASE_S"])))

    if folder and "AUTOTUNE_PHASE_S" in os.environ:
        instrumentation.attempt("phases", add_phases)
    trials_alone = (*(PHASED_OBSERVERS if phased else ()), *(COSTS if folder else ()), *(code.PLACES if code else ()))
    hooked = [*OBSERVERS, *trials_alone]
    hook = Hook(dict.fromkeys(hooked, observe))
    installed.append(instrumentation)
    hook.install()
    atexit.register(instrumentation.guarded(loop.ends))
    for one in (loop, *phased):
        os.register_at_fork(after_in_child=instrumentation.guarded(one.forget))
    if folder and not any(name.startswith("steps.") for name in os.listdir(folder)):
        announce(OBSERVER)


def part(path: str) -> Any:
    """Return a part of this package by its module and name: what is imported only where it is needed."""
    module, _, name = path.partition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)


class Hook:
    """Meta path finder in front of all others that finds nothing itself and acts on loaded modules.

    Args:
        actions: Action for each module name; called once with the name, right after the module was executed.
    """

    def __init__(self, actions: Mapping[str, Callable[[str], object]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        """Install the hook; actions of modules that are loaded already run at once."""
        sys.meta_path.insert(0, self)
        self.look()

    def look(self) -> None:
        """Run the actions of all loaded modules: a warm interpreter may provide several in one import."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._actions.pop(name)(name)

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name not in self._actions:
            return None
        with contextlib.suppress(Exception):  # a finder that fails will do so again when it is asked itself
            for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(name, spec.loader)
                    return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        """Have a module's own loader, which is as it was when it executes the module, tell of that."""
        if isinstance(loader, type):  # of all built-in modules
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with contextlib.suppress(Exception):
                vars(loader).pop("exec_module", None)  # gone already, where another hook watches too
            execute(module)
            with contextlib.suppress(Exception):
                self._actions.pop(name)(name)
                self.look()

        loader.exec_module = exec_module
