"""Installation of the step's profiler in a trial that is made for it; in any other process nothing happens."""

from __future__ import annotations

from typing import Any, Callable

from autotune.trainee import observe, stream
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.step_phases_profile import StepProfiler, wanted_folder

NO_PROFILE = "no profile of the step: "
"""Begin of the notes that say why."""


def install() -> None:
    """Install the profiler in this process, if a profile is wanted."""
    folder = wanted_folder()
    if folder is None:
        return
    instrumentation = Instrumentation(lambda text: stream.mark("note", text=f"{NO_PROFILE}{text}"))
    profiler = StepProfiler(folder, hold=_hold)

    def action(framework: str) -> Callable[[str], None]:
        return lambda _name: instrumentation.attempt(framework, lambda: _PROFILED[framework](profiler, instrumentation))

    observe.Hook({name: action(name) for name in _PROFILED}).install()


def _hold(observed: bool) -> None:
    """Switch the step observer off, or on again: calls of the profile are no steps."""
    for instrumentation in observe.installed:
        instrumentation.on = observed


def _profile_keras(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    from autotune.trainee import step_phases_keras

    step_phases_keras.observe(profiler, instrumentation)


def _profile_train_step(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    from autotune.trainee import step_phases_train_step

    step_phases_train_step.observe(profiler, instrumentation)


def _profile_torch(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    from autotune.trainee import step_phases_torch

    step_phases_torch.observe(profiler.folder, lambda why: stream.mark("note", text=f"{NO_PROFILE}{why}"))


_PROFILED: dict[str, Callable[[StepProfiler, Instrumentation], Any]] = {
    "keras": _profile_keras,
    "autotune.tf.step": _profile_train_step,
    "torch": _profile_torch,
}
"""Module → what profiles the steps that it makes."""
