"""Observer: detects the steps of an unchanged trainer, from inside its process.

A copy of this package lies in the folder of the trial, or of the watched training, as ``inject/_autotune_trainee``,
beside a ``sitecustomize.py`` that calls `install` when the interpreter starts. Once the trainer has imported a
framework, some of its functions are wrapped: those that fetch a batch, those that only training calls (loop.py says how
they make steps), and those whose time is a pause. The trainer's behaviour does not change: nothing of autotune is on
its import path, and instrumentation.py catches every error of the observer.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from autotune.trainee.hook import Hook
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.phases import phase_length_s
from autotune.trainee.report import Report
from autotune.trainee.stream import OBSERVER, TRIAL_DIR_VARIABLE, WATCH_DIR_VARIABLE, announce, process_stream

installed: list[Instrumentation] = []
"""Instrumentation of this process, once installed."""


def install() -> None:
    """Install the observer in this process; a no-op outside a trial and a watched training, and the second time.

    The first process of a trial announces at once that the observer works, so that this can be told from a trainer
    without steps. Other processes write a file only if they make steps.
    """
    folder = os.environ.get(TRIAL_DIR_VARIABLE)
    if not (folder or os.environ.get(WATCH_DIR_VARIABLE)) or installed:
        return
    report = Report(process_stream)
    loop, instrumentation = Loop(report), Instrumentation(report.note)
    if folder and phase_length_s() is not None:
        instrumentation.attempt("phases", lambda: _phase(loop, instrumentation))

    def observe(framework: str) -> Any:
        def action() -> None:
            instrumentation.attempt(framework, lambda: observers[framework](loop, instrumentation))

        return action

    observers = _OBSERVERS if loop.phased is None else {**_OBSERVERS, **_PHASED}
    hook = Hook({name: observe(name) for name in observers})
    installed.append(instrumentation)
    hook.install()
    atexit.register(_guarded(instrumentation, loop.ends))
    os.register_at_fork(after_in_child=_guarded(instrumentation, loop.forget))
    if folder and not any(name.startswith("steps.") for name in os.listdir(folder)):
        announce(OBSERVER)


def _phase(loop: Loop, instrumentation: Instrumentation) -> None:
    from autotune.trainee import phased_fetch, stream

    loop.phased = phased_fetch.phase(loop, instrumentation, stream.Step)


def _observe_feeds(loop: Loop, instrumentation: Instrumentation) -> None:
    from autotune.trainee import phased_fetch

    phased_fetch.observe(loop, instrumentation)


def _observe_tensorflow(loop: Loop, instrumentation: Instrumentation) -> None:
    from autotune.trainee import observe_session, observe_tensorflow

    observe_tensorflow.observe(loop, instrumentation)
    observe_session.observe(loop, instrumentation)


def _observe_keras(loop: Loop, instrumentation: Instrumentation, framework: str = "keras") -> None:
    from autotune.trainee import observe_keras

    observe_keras.observe(framework, loop, instrumentation)


def _observe_torch(loop: Loop, instrumentation: Instrumentation) -> None:
    from autotune.trainee import observe_torch

    observe_torch.observe(loop, instrumentation)


def _observe_jax(loop: Loop, instrumentation: Instrumentation) -> None:
    from autotune.trainee import observe_jax

    observe_jax.observe(loop, instrumentation)


# Each module is imported with its framework only: a process without frameworks starts without delay.
_OBSERVERS: dict[str, Callable[[Loop, Instrumentation], None]] = {
    "tensorflow": _observe_tensorflow,
    "keras": _observe_keras,
    "tf_keras": partial(_observe_keras, framework="tf_keras"),
    "torch": _observe_torch,
    "jax": _observe_jax,
}
"""Framework, by the name it is imported by → what instruments it."""

_PHASED: dict[str, Callable[[Loop, Instrumentation], None]] = {
    "autotune.tf.feed": _observe_feeds,
    "autotune.tf.two_stage": _observe_feeds,
}
"""The same, of what is instrumented only in a trial that is taken through phases."""


def _guarded(instrumentation: Instrumentation, action: Any) -> Any:
    def call() -> None:
        try:
            action()
        except Exception as error:
            instrumentation.failed(error)

    return call
