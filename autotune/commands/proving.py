"""The proof of `autotune init`: one short run, and what it showed."""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from autotune.clock import SystemClock
from autotune.commands.printing import ask
from autotune.durations import format_duration
from autotune.errors import RunError
from autotune.process.guard import Guard
from autotune.process.orphans import sweep
from autotune.process.zygote import ZygoteRunner
from autotune.protect.checkpoints import Keepsakes
from autotune.protect.side_effects import Leftovers
from autotune.records import Ending
from autotune.report.console import text_console
from autotune.report.lines import plain
from autotune.search.preflight import Proof, Reached, prove
from autotune.search.problem import Setup
from autotune.study.journal import sole_search
from autotune.trial.explanations import EXPLANATIONS

_SHOWN_LINES = 5  # of a failed run's stderr
_REACHED = {
    Reached.READ: "the run's copy of the config was read",
    Reached.ON_THE_COMMAND_LINE: "the values are on its command line",
    Reached.UNKNOWN: "whether the run's copy of the config was read cannot be known here, "
    "because this file system does not note it",
}


def prove_it(setup: Setup, *, may_ask: bool) -> None:
    """Makes one short run of today's config and says what it showed.

    Args:
        setup: The config and the command.
        may_ask: Whether somebody is there to say that a failed proof does not matter.

    Raises:
        RunError: No step was seen, the config did not reach the trainer, or it wrote over the user's checkpoints.
        click.Abort: The same, and somebody was asked and said no.
    """
    console, clock = text_console(stderr=True), SystemClock()
    setup.state.create()
    name = f"proof-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    console.print("\nProof: one short run, to see its steps ...", soft_wrap=True)
    waiting = console.status("waiting for the first step") if console.is_terminal else nullcontext()
    keepsakes = Keepsakes(setup.trainer, clock, cwd=Path.cwd(), name=name)
    with sole_search(setup.journal.with_suffix(".search"), setup.study), Guard() as guard, keepsakes:
        sweep(setup.state.runs(setup.study), clock)
        leftovers = Leftovers(setup.trainer, clock, cwd=Path.cwd())
        with waiting:
            proof = prove(setup, ZygoteRunner(guard, clock), clock, name=name)
        left, loss = leftovers.of_the_run(None), keepsakes.loss("the proof")
    for remark in keepsakes.remarks:
        console.print(plain(remark, longest=1000), soft_wrap=True)
    if left is not None:
        console.print(plain(left.sentence, longest=1000), soft_wrap=True)
    trouble = loss or _trouble(proof)
    if trouble is None:
        assert proof.first_step_s is not None, "steps were seen"
        console.print(
            f"{_steps(proof)} seen, the first {format_duration(proof.first_step_s)} after the start; "
            f"{_REACHED[proof.reached]}.",
            soft_wrap=True,
        )
        if left is None:  # else it tells the searches to come whose what lies there is
            proof.folder.delete()
        return
    if loss is None:
        _print_stderr(console, proof)
    if not may_ask:
        raise trouble
    console.print(str(trouble), soft_wrap=True)
    ask("Go on all the same?", must=True)


def _trouble(proof: Proof) -> RunError | None:
    explained = EXPLANATIONS[proof.ending]
    if not proof.steps:
        detail = f" ({proof.detail})" if proof.detail else ""
        return RunError(
            f"no step was seen: {explained.sentence}{detail}",
            where=str(proof.folder.path),
            remedy=f"{explained.remedy}\nTo go on without a proof: --no-proof.",
        )
    if proof.ending not in (Ending.STOPPED, Ending.COMPLETED):
        return RunError(
            f"training ended after {_steps(proof)}: {explained.sentence} ({proof.detail})",
            where=str(proof.folder.path),
            remedy=f"{explained.remedy}\nTo go on without a proof: --no-proof.",
        )
    if proof.reached is Reached.NOT_READ:
        return RunError(
            "steps were seen, but nobody read the run's own copy of the config, so no tuned value would count",
            where=str(proof.folder.config),
            remedy="See that {config} stands where the command takes the path of its config, and that nothing else "
            "decides which file is read.\nTo go on without a proof: --no-proof.",
        )
    return None


def _steps(proof: Proof) -> str:
    return "1 step" if proof.steps == 1 else f"{proof.steps} steps"


def _print_stderr(console: Console, proof: Proof) -> None:
    for line in proof.stderr_tail.splitlines()[-_SHOWN_LINES:]:
        console.print(f"  | {plain(line)}", soft_wrap=True)
