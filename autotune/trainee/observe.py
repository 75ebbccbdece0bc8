"""Observer: detects the steps of an unchanged trainer, from inside its process.

A copy of this package lies in the trial's folder as ``inject/_autotune_trainee``, beside a ``sitecustomize.py`` that
calls `install` when the interpreter starts. Once the trainer has imported a framework, some of its functions are
wrapped: those that fetch a batch, those that only training calls (loop.py says how they make steps), and those whose
time is a pause. The trainer's behaviour does not change: nothing of autotune is on its import path, and
instrumentation.py catches every error of the observer.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from autotune.trainee.hook import Hook
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.report import Report
from autotune.trainee.stream import OBSERVER, TRIAL_DIR_VARIABLE, announce, process_stream

installed: list[Instrumentation] = []
"""Instrumentation of this process, once installed."""


def install() -> None:
    """Install the observer in this process; a no-op outside a trial, and the second time.

    The first process of a trial announces at once that the observer works, so that this can be told from a trainer
    without steps. Other processes write a file only if they make steps.
    """
    folder = os.environ.get(TRIAL_DIR_VARIABLE)
    if not folder or installed:
        return
    report = Report(process_stream)
    loop, instrumentation = Loop(report), Instrumentation(report.note)

    def observe(framework: str) -> Any:
        def action() -> None:
            instrumentation.attempt(framework, lambda: _observe(framework, loop, instrumentation))

        return action

    hook = Hook({name: observe(name) for name in ("tensorflow", "keras", "tf_keras", "torch", "jax")})
    installed.append(instrumentation)
    hook.install()
    atexit.register(_guarded(instrumentation, loop.ends))
    os.register_at_fork(after_in_child=_guarded(instrumentation, loop.forget))
    if not any(name.startswith("steps.") for name in os.listdir(folder)):
        announce(OBSERVER)


def _observe(framework: str, loop: Loop, instrumentation: Instrumentation) -> None:
    # Each module is imported with its framework only: a process without frameworks starts without delay.
    if framework == "tensorflow":
        from autotune.trainee import observe_session, observe_tensorflow

        observe_tensorflow.observe(loop, instrumentation)
        observe_session.observe(loop, instrumentation)
    elif framework in ("keras", "tf_keras"):
        from autotune.trainee import observe_keras

        observe_keras.observe(framework, loop, instrumentation)
    elif framework == "torch":
        from autotune.trainee import observe_torch

        observe_torch.observe(loop, instrumentation)
    else:
        from autotune.trainee import observe_jax

        observe_jax.observe(loop, instrumentation)


def _guarded(instrumentation: Instrumentation, action: Any) -> Any:
    def call() -> None:
        try:
            action()
        except Exception as error:
            instrumentation.failed(error)

    return call
