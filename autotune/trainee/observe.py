"""The observer: sees the steps of a trainer that nobody changed, from inside its process.

A copy of this package lies in the run's folder as ``inject/_autotune_trainee``, beside a ``sitecustomize.py`` that
calls `install` when the interpreter starts. Once the trainer has imported a framework, some of its functions are
wrapped: those that fetch a batch, those that only training calls (loop.py says how steps come of them), and those
whose time is a pause. The trainer's code runs as ever: nothing of ours is on its import path, and an error in here
goes no further than shield.py.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from autotune.trainee.hook import Hook
from autotune.trainee.loop import Loop
from autotune.trainee.report import Report
from autotune.trainee.shield import Shield
from autotune.trainee.stream import OBSERVER, RUN_DIR_VARIABLE, announce, process_stream

installed: list[Shield] = []
"""What is around all that the observer does in this process, once it is there."""


def install() -> None:
    """Observes this process from now on; does nothing outside a run, nor when it does so already.

    The first process of a run says at once that the observer is there, so that it can be told from one that sees no
    steps. Others write a file only if they make steps.
    """
    folder = os.environ.get(RUN_DIR_VARIABLE)
    if not folder or installed:
        return
    report = Report(process_stream)
    loop, shield = Loop(report), Shield(report.note)

    def observe(framework: str) -> Any:
        def action() -> None:
            shield.attempt(framework, lambda: _observe(framework, loop, shield))

        return action

    hook = Hook({name: observe(name) for name in ("tensorflow", "keras", "tf_keras", "torch", "jax")})
    installed.append(shield)
    hook.install()
    atexit.register(_guarded(shield, loop.ends))
    os.register_at_fork(after_in_child=_guarded(shield, loop.forget))
    if not any(name.startswith("steps.") for name in os.listdir(folder)):
        announce(OBSERVER)


def _observe(framework: str, loop: Loop, shield: Shield) -> None:
    # Each is imported when its framework is, so that a process without frameworks starts as fast as ever.
    if framework == "tensorflow":
        from autotune.trainee import observe_session, observe_tensorflow

        observe_tensorflow.observe(loop, shield)
        observe_session.observe(loop, shield)
    elif framework in ("keras", "tf_keras"):
        from autotune.trainee import observe_keras

        observe_keras.observe(framework, loop, shield)
    elif framework == "torch":
        from autotune.trainee import observe_torch

        observe_torch.observe(loop, shield)
    else:
        from autotune.trainee import observe_jax

        observe_jax.observe(loop, shield)


def _guarded(shield: Shield, action: Any) -> Any:
    def call() -> None:
        try:
            action()
        except Exception as error:
            shield.failed(error)

    return call
