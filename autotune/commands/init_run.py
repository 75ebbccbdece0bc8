"""Steps of ``autotune init``: plan, show, preflight, write."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.clock import Clock, SystemClock, format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.output import ask, say_remarks
from autotune.config.apply import create_file, write_edits
from autotune.config.command import read_typed, refuse_secrets
from autotune.config.keys import counted
from autotune.config.load import separate_path
from autotune.config.secrets import masked
from autotune.errors import ConfigError, TrialError
from autotune.events import OnRemark, no_remark
from autotune.options import InitRequest
from autotune.records import Ending
from autotune.report.console import text_console
from autotune.report.plain_text import plain
from autotune.search.init_plan import InitPlan, plan_init, plan_init_from_flags
from autotune.search.preflight import Preflight, Reached, run_preflight, try_relative_outputs
from autotune.search.problem import Problem
from autotune.study.storage.lock import sole_search
from autotune.trial.launch import Guard, Runner, end_orphans
from autotune.trial.outcome import EXPLANATIONS
from autotune.trial.protection import CheckpointBackups, SideEffects, is_called_a_checkpoint
from autotune.trial.warm import ZygoteRunner


def plan_requested(request: InitRequest, *, why_separate: str | None = None) -> InitPlan:
    """Plan the section of a request; ``why_separate`` is a reason for a separate file.

    Raises:
        AutotuneError: The command has a secret or cannot run, or the section cannot be added.
    """
    typed = read_typed(request.trainer)
    refuse_secrets(typed.words)
    if request.from_flags:
        return plan_init_from_flags(request.config, typed, state_dir=request.state_dir)
    return plan_init(
        request.config,
        typed,
        separate=request.separate,
        state_dir=request.state_dir,
        further=request.further,
        why_separate=why_separate,
    )


def show_inventory(console: Console, plan: InitPlan) -> None:
    """Show the knobs, skipped keys, outputs and command."""
    # `try_start` needs none of these
    from autotune.commands.search_plan import command_notes, knob_table, left_out_lines, print_dim, redirected_line
    from autotune.search.warm_start import warm_start

    problem = plan.problem
    say_remarks(problem.state.remarks)
    if problem.space.within_reach({}).knobs:
        console.print(knob_table(problem))
    else:
        console.print("No known knob was found. List the keys to tune under knobs: in the section.", soft_wrap=True)
    lines = [*left_out_lines(problem, plan.flags.left if plan.flags else None), *redirected_line(problem)]
    print_dim(console, [*lines, f"command: {plain(' '.join(masked(problem.command)), longest=1000)}"])
    for note in filter(None, (problem.batch_remark, *command_notes(problem), plan.why_separate)):
        console.print(note, soft_wrap=True)
    if problem.can_vary and (begins := warm_start(problem).sentence):
        console.print(plain(begins, longest=1000), soft_wrap=True)


def show_change(console: Console, plan: InitPlan) -> None:
    """Show the diff."""
    console.print()
    console.print(plan.edit.diff, soft_wrap=True, end="")


def is_wanted(console: Console, plan: InitPlan, request: InitRequest) -> bool:
    """Ask whether to test and write the change; without a terminal, raise ConfigError."""
    path = plan.edit.path
    if request.yes:
        return True
    if not request.may_ask:
        raise ConfigError("not written: no terminal to confirm it on", where=str(path), remedy="Write it with --yes.")
    test = "Test this in a short trial of the trainer, and write it" if not request.no_preflight else "Write this"
    if ask(f"\n{test} to {path}?"):
        return True
    console.print("Nothing was written.")
    return False


def tried(console: Console, plan: InitPlan, request: InitRequest, call: Invocation) -> InitPlan:
    """Run the preflight; return the plan to write, with a separate file if needed.

    Raises:
        AutotuneError: The preflight failed, or the separate file cannot be written.
        click.Abort: The preflight failed, and the user stopped.
    """
    if request.no_preflight:
        if not plan.is_new:
            console.print(_NOT_TRIED, soft_wrap=True)
        return plan
    why_separate = _show_preflight(plan, call, may_ask=request.may_ask)
    if why_separate is None:
        return plan
    console.print(plain(why_separate, longest=1000), soft_wrap=True)
    plan = plan_requested(request, why_separate=why_separate)
    show_change(console, plan)
    return plan


def write_section(console: Console, plan: InitPlan) -> None:
    """Write the change, and name the next command."""
    path = plan.edit.path
    if plan.is_new:
        create_file(path, plan.edit.new)
        backup = "."
    else:
        plan.problem.state.create()
        backup = f"; backup: {write_edits([plan.edit], plan.problem.state.backups, SystemClock())[path]}"
    console.print(f"\nWritten to {path}{backup}", soft_wrap=True)
    search = plan.problem.typed.command("search", "--budget", "30m")
    if plan.problem.can_vary:
        console.print(f"Next:  {search}", soft_wrap=True)
    else:
        console.print(f"Next:  list the keys to tune under knobs: in {path}, then  {search}", soft_wrap=True)


_NOT_TRIED = (
    "The trainer was not tested with the section in its config. If it rejects unknown keys, write the section to a "
    "separate file: --separate."
)

_REACHED = {
    Reached.READ: "the trial's copy of the config was read",
    Reached.ON_THE_COMMAND_LINE: "the values are on its command line",
    Reached.IN_THE_ENVIRONMENT: "the values are in its environment",
    Reached.IN_THE_CODE: "the values are passed to the calls in its code",
    Reached.UNKNOWN: "unknown if the trial's copy of the config was read: this file system does not record it",
}


def _show_preflight(plan: InitPlan, call: Invocation, *, may_ask: bool) -> str | None:
    """Run the preflight and print it; return why the section must not go into the config, if so."""
    console, problem, clock, name = text_console(stderr=True), plan.problem, call.clock, _name(call.clock)
    second = None

    def remark(text: str) -> None:
        console.print(plain(text, longest=1000), soft_wrap=True)

    console.print("\nPreflight: running one short trial ...", soft_wrap=True)
    with _prepared(problem, call, name, remark) as (runner, checkpoints):
        side_effects = SideEffects(problem.trainer, clock, is_called_a_checkpoint)
        with _waiting(console):
            first, loss, error = _try(
                problem, runner, checkpoints, clock, name=name, skip="--no-preflight", tell=remark
            )
        if loss is None and error is None:
            console.print(
                f"{_steps(first)} seen, the first {format_duration(first.first_step_s or 0.0)} after the start; "
                f"{_REACHED[first.reached]}.",
                soft_wrap=True,
            )
            if not plan.is_new:
                with _waiting(console):
                    second = run_preflight(problem, runner, clock, name=f"{name}-section", with_section=True)
                loss = checkpoints.loss("the preflight's second trial")
        left = side_effects.since_then("the preflight trial")
    if left is not None:
        remark(left.sentence)
    if failure := loss or error:
        if loss is None:
            _print_stderr(console, first)
        if not may_ask:
            raise failure
        console.print(str(failure), soft_wrap=True)
        ask("Continue anyway?", must=True)
        if not plan.is_new and second is None:
            console.print(_NOT_TRIED, soft_wrap=True)
    elif left is None:  # otherwise later searches need the folder to attribute the files to this trial
        first.folder.delete()
    if second is None:
        return None
    if not second.steps:
        return _why_separate(problem.config_path, second)
    console.print(f"The trainer also works with the section in {problem.config_path.name}.", soft_wrap=True)
    if left is None:
        second.folder.delete()
    return None


def try_start(problem: Problem, call: Invocation, *, longest_s: float) -> float:
    """Run one short trial of the baseline; return the seconds to its third step and end.

    Args:
        longest_s: Time limit for the first step, if shorter than the section's.

    Raises:
        TrialError: No step was seen, the config was not read, or the user's checkpoints were overwritten.
    """
    clock = call.clock
    name = _name(clock)
    with _prepared(problem, call, name, no_remark) as (runner, checkpoints):
        began_s = clock.now_s()
        limit_s = min(longest_s, problem.limits.start_timeout_s)
        preflight, loss, error = _try(
            problem, runner, checkpoints, clock, name=name, skip="--no-check", start_timeout_s=limit_s
        )
        took_s = clock.now_s() - began_s
    if failure := loss or error:
        _print_stderr(text_console(stderr=True), preflight)
        raise failure
    preflight.folder.delete()
    return took_s


def _try(
    problem: Problem, runner: Runner, checkpoints: CheckpointBackups, clock: Clock, *, name: str, skip: str, **how: Any
) -> tuple[Preflight, TrialError | None, TrialError | None]:
    """Run a trial, and one with relative outputs if it crashed; return it, a loss of checkpoints, and its failure.

    Args:
        skip: Option that skips it.
        how: Options of `run_preflight`.
    """
    preflight = run_preflight(problem, runner, clock, name=name, **how)
    loss, error = checkpoints.loss("the preflight trial"), _error_of(preflight, skip)
    if loss is None and error is not None:
        error = _try_relative_outputs(problem, preflight, error, runner, clock, skip)
        loss = checkpoints.loss("the preflight's second trial")
    return preflight, loss, error


def _name(clock: Clock) -> str:
    return f"preflight-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _prepared(
    problem: Problem, call: Invocation, name: str, remark: OnRemark
) -> Iterator[tuple[Runner, CheckpointBackups]]:
    problem.state.create()
    clock = call.clock
    checkpoints = CheckpointBackups(problem.trainer, clock, name=name, remark=remark)
    with (
        sole_search(problem.state.search_lock(problem.study, problem.machine.name), problem.study),
        Guard() as guard,
        checkpoints,
    ):
        end_orphans(problem.state.trials(problem.study), clock)
        yield call.simulator or ZygoteRunner(guard, clock), checkpoints


def _waiting(console: Console) -> AbstractContextManager[object]:
    return console.status("waiting for the first step") if console.is_terminal else nullcontext()


def _why_separate(config: Path, trial: Preflight) -> str:
    own_file = f"writing the section to {separate_path(config).name} (output: {trial.folder.path})"
    why = f"{EXPLANATIONS[trial.ending].sentence.removesuffix('.')}{f': {trial.detail}' if trial.detail else ''}"
    if trial.ending is Ending.CRASHED:
        return f"the trainer fails with the section in {config.name} and works without it ({trial.detail}): {own_file}"
    return f"no step was seen with the section in {config.name}, but steps without it ({why}): {own_file}"


def _error_of(preflight: Preflight, skip: str) -> TrialError | None:
    explained = EXPLANATIONS[preflight.ending]
    remedy = explained.remedy
    if not preflight.steps:
        why = f"no step was seen: {_why_no_step(preflight)}"
    elif preflight.ending not in (Ending.STOPPED, Ending.COMPLETED):
        why = f"training ended after {_steps(preflight)}: {explained.sentence} ({preflight.detail})"
    elif preflight.reached is Reached.NOT_READ:
        why = "the trainer did not read the trial's copy of the config: tuned values would have no effect"
        remedy = "Check that the command passes {config} as the path of the config, or that the trainer's code opens "
        remedy += "the file by its name, and that nothing else selects the file."
    else:
        return None
    return TrialError(why, where=str(preflight.folder.path), remedy=f"{remedy}{_how_to_skip(skip)}")


def _how_to_skip(option: str) -> str:
    return f"\nTo skip this check: {option}."


def _try_relative_outputs(
    problem: Problem, first: Preflight, error: TrialError, runner: Runner, clock: Clock, skip: str
) -> TrialError:
    """Repeat a crashed trial with relative output paths; return the error of both."""
    if first.ending is not Ending.CRASHED or first.steps:
        return error
    tried = try_relative_outputs(problem, runner, clock, name=f"{first.folder.path.name}-outputs")
    if tried is None:
        return error
    if not tried.trial.steps:
        why = "" if tried.trial.detail == first.detail else f": {_why_no_step(tried.trial)}"
        text = f"{error.message}. With {tried}, no step was seen either{why}"
        return TrialError(text, where=error.where, remedy=error.remedy)
    tried.trial.folder.delete()
    return tried.error(first.detail, where=str(first.folder.path), go_on=_how_to_skip(skip))


def _why_no_step(preflight: Preflight) -> str:
    detail = f" ({preflight.detail})" if preflight.detail else ""
    if preflight.ending is Ending.NO_STEPS:
        return f"the trainer finished with exit status 0{detail}"
    if preflight.ending is Ending.NEVER_STARTED and preflight.detail:
        return preflight.detail
    return f"{EXPLANATIONS[preflight.ending].sentence}{detail}"


def _steps(preflight: Preflight) -> str:
    steps = counted(preflight.steps, "step")
    if not preflight.rank_nodes:
        return steps
    nodes = counted(len(set(preflight.rank_nodes.values())), "node")
    return f"{steps} of {counted(len(preflight.rank_nodes), 'rank')} on {nodes}"


def _print_stderr(console: Console, preflight: Preflight) -> None:
    for line in preflight.stderr_tail.splitlines()[-5:]:
        console.print(f"  | {plain(line)}", soft_wrap=True)
