"""Preflight of `autotune init`: one short trial, and what it showed."""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from autotune.clock import SystemClock
from autotune.commands.printing import ask
from autotune.durations import format_duration
from autotune.errors import TrialError
from autotune.problem.problem import Problem
from autotune.process.guard import Guard
from autotune.process.orphans import end_orphans
from autotune.process.zygote import ZygoteRunner
from autotune.protect.checkpoints import CheckpointBackups
from autotune.protect.side_effects import SideEffects
from autotune.records import Ending
from autotune.report.console import text_console
from autotune.report.plain_text import plain
from autotune.search.preflight import Preflight, Reached, run_preflight
from autotune.study.journal import sole_search
from autotune.trial.explanations import EXPLANATIONS

_SHOWN_LINES = 5  # of a failed trial's stderr
_REACHED = {
    Reached.READ: "the trial's copy of the config was read",
    Reached.ON_THE_COMMAND_LINE: "the values are on its command line",
    Reached.UNKNOWN: "whether the trial's copy of the config was read cannot be known here, "
    "because this file system does not note it",
}


def show_preflight(problem: Problem, *, may_ask: bool) -> None:
    """Makes one short trial of today's config and says what it showed.

    Args:
        problem: The config and the command.
        may_ask: True if somebody is there to say that a failed preflight does not matter.

    Raises:
        TrialError: No step was seen, the config did not reach the trainer, or it wrote over the user's checkpoints.
        click.Abort: The same, and somebody was asked and said no.
    """
    console, clock = text_console(stderr=True), SystemClock()
    problem.state.create()
    name = f"preflight-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    console.print("\nPreflight: one short trial, to see its steps ...", soft_wrap=True)
    waiting = console.status("waiting for the first step") if console.is_terminal else nullcontext()
    checkpoints = CheckpointBackups(problem.trainer, clock, cwd=Path.cwd(), name=name)
    with sole_search(problem.journal.with_suffix(".search"), problem.study), Guard() as guard, checkpoints:
        end_orphans(problem.state.trials(problem.study), clock)
        side_effects = SideEffects(problem.trainer, clock, cwd=Path.cwd())
        with waiting:
            preflight = run_preflight(problem, ZygoteRunner(guard, clock), clock, name=name)
        left, loss = side_effects.of_the_trial(None), checkpoints.loss("the preflight trial")
    for remark in checkpoints.remarks:
        console.print(plain(remark, longest=1000), soft_wrap=True)
    if left is not None:
        console.print(plain(left.sentence, longest=1000), soft_wrap=True)
    trouble = loss or _trouble(preflight)
    if trouble is None:
        assert preflight.first_step_s is not None, "steps were seen"
        console.print(
            f"{_steps(preflight)} seen, the first {format_duration(preflight.first_step_s)} after the start; "
            f"{_REACHED[preflight.reached]}.",
            soft_wrap=True,
        )
        if left is None:  # else it tells the searches to come whose what lies there is
            preflight.folder.delete()
        return
    if loss is None:
        _print_stderr(console, preflight)
    if not may_ask:
        raise trouble
    console.print(str(trouble), soft_wrap=True)
    ask("Go on all the same?", must=True)


def _trouble(preflight: Preflight) -> TrialError | None:
    explained = EXPLANATIONS[preflight.ending]
    if not preflight.steps:
        detail = f" ({preflight.detail})" if preflight.detail else ""
        return TrialError(
            f"no step was seen: {explained.sentence}{detail}",
            where=str(preflight.folder.path),
            remedy=f"{explained.remedy}\nTo go on without a preflight: --no-preflight.",
        )
    if preflight.ending not in (Ending.STOPPED, Ending.COMPLETED):
        return TrialError(
            f"training ended after {_steps(preflight)}: {explained.sentence} ({preflight.detail})",
            where=str(preflight.folder.path),
            remedy=f"{explained.remedy}\nTo go on without a preflight: --no-preflight.",
        )
    if preflight.reached is Reached.NOT_READ:
        return TrialError(
            "steps were seen, but nobody read the trial's own copy of the config, so no tuned value would count",
            where=str(preflight.folder.path),
            remedy="See that {config} stands where the command takes the path of its config, and that nothing else "
            "decides which file is read.\nTo go on without a preflight: --no-preflight.",
        )
    return None


def _steps(preflight: Preflight) -> str:
    return "1 step" if preflight.steps == 1 else f"{preflight.steps} steps"


def _print_stderr(console: Console, preflight: Preflight) -> None:
    for line in preflight.stderr_tail.splitlines()[-_SHOWN_LINES:]:
        console.print(f"  | {plain(line)}", soft_wrap=True)
