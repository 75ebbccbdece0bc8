"""Steps of ``autotune init``: planning the section, showing what was found, trying the trainer, and writing."""

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from rich.console import Console

from autotune.clock import Clock, SystemClock, format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.output import ask, say_remarks
from autotune.config.apply import create_file, write_edits
from autotune.config.command import read_typed, refuse_secrets
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
    """Plan the section that a request asks for.

    Args:
        why_separate: Reason for which the section gets a file of its own unasked; None if none is known.

    Raises:
        AutotuneError: The command holds a secret or cannot be carried out, or the section cannot be added.
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
    """Show the knobs that were found, the keys that only look like knobs, the outputs, and the command."""
    # Not for everybody who tries a trainer: it brings what a search is made of.
    from autotune.commands.search_plan import command_notes, knob_table, left_out_lines, print_dim, redirected_line
    from autotune.search.warm_start import warm_start

    problem = plan.problem
    say_remarks(problem.state.remarks)
    if problem.space.within_reach({}).knobs:
        console.print(knob_table(problem))
    else:
        console.print("No knob was found by its name. Name what may vary under knobs: in the section.", soft_wrap=True)
    lines = [*left_out_lines(problem, plan.flags.left if plan.flags else None), *redirected_line(problem)]
    print_dim(console, [*lines, f"command: {plain(' '.join(masked(problem.command)), longest=1000)}"])
    for note in filter(None, (problem.batch_remark, *command_notes(problem), plan.why_separate)):
        console.print(note, soft_wrap=True)
    if problem.can_vary and (begins := warm_start(problem).sentence):
        console.print(plain(begins, longest=1000), soft_wrap=True)


def tried(console: Console, plan: InitPlan, request: InitRequest, call: Invocation) -> InitPlan:
    """Make the preflight, after a yes, which may have been typed as ``--yes``; return the plan to carry out after it.

    Returns:
        The plan; one with the section in a file of its own if the trainer was seen to fail with it in the config.

    Raises:
        AutotuneError: The preflight has failed, or the section cannot be written into a file of its own.
        click.Abort: It has failed, and somebody was asked and said no.
    """
    if request.no_preflight or not (request.yes or ask("\nStart the trainer once, to see that it can be measured?")):
        if plan.changes_config:
            console.print(NOT_TRIED, soft_wrap=True)
        return plan
    why_separate = show_preflight(plan, call, may_ask=request.may_ask)
    if why_separate is None:
        return plan
    console.print(plain(why_separate, longest=1000), soft_wrap=True)
    return plan_requested(request, why_separate=why_separate)


def show_change(console: Console, plan: InitPlan) -> None:
    """Show what would be written, as a diff."""
    console.print()
    console.print(plan.edit.diff, soft_wrap=True, end="")


def write_if_wanted(console: Console, plan: InitPlan, request: InitRequest) -> None:
    """Show the change, and write it after a yes, which may have been typed as ``--yes``.

    Raises:
        ConfigError: There is nobody to ask, or the file cannot be written.
    """
    path = plan.edit.path
    show_change(console, plan)
    if not (request.yes or request.may_ask):
        raise ConfigError(
            "this is what would be written; nothing was, because there is nobody here to ask",
            where=str(path),
            remedy="Write it with --yes.",
        )
    if request.may_ask and not ask(f"\nWrite this to {path}?"):
        console.print("Nothing was written.")
        return
    _write(console, plan)
    search = plan.problem.typed.command("search", "--budget", "30m")
    if plan.problem.can_vary:
        console.print(f"Next:  {search}", soft_wrap=True)
    else:
        console.print(f"Next:  say in {path} what may vary, under knobs:, then  {search}", soft_wrap=True)


def _write(console: Console, plan: InitPlan) -> None:
    if plan.is_new:
        create_file(plan.edit.path, plan.edit.new)
        console.print(f"\nWritten to {plan.edit.path}.", soft_wrap=True)
        return
    plan.problem.state.create()
    backup = write_edits([plan.edit], plan.problem.state.backups, SystemClock())[plan.edit.path]
    console.print(f"\nWritten to {plan.edit.path}; the file as it was: {backup}", soft_wrap=True)


NOT_TRIED = (
    "The trainer was not tried with the section in its config. If it rejects unknown keys, give the section a file of "
    "its own: --separate."
)
"""Sentence for a section that goes into the config unseen."""

_REACHED = {
    Reached.READ: "the trial's copy of the config was read",
    Reached.ON_THE_COMMAND_LINE: "the values are on its command line",
    Reached.IN_THE_ENVIRONMENT: "the values are in its environment, or its own code",
    Reached.UNKNOWN: "whether the trial's copy of the config was read cannot be known here, "
    "because this file system does not note it",
}


@dataclass(frozen=True, kw_only=True)
class _Trials:
    """Trials of a preflight.

    Attributes:
        second: The trial with it; None where there was none.
        trouble: What is wrong with the first; None if nothing is.
        loss: The user's checkpoints that are gone; None if all are there.
    """

    first: Preflight
    second: Preflight | None
    trouble: TrialError | None
    loss: TrialError | None
    left_files: bool


def show_preflight(plan: InitPlan, call: Invocation, *, may_ask: bool) -> str | None:
    """Makes a short trial of today's config, then one with the section in it, and says what they showed.

    The second is made where the section is to go into the config and the first one worked.

    Args:
        plan: The section, the config and the command.
        may_ask: True if somebody is there to say that a failed preflight does not matter.

    Returns:
        The reason for which the section must not go into the config, as a sentence; None if there is none.

    Raises:
        TrialError: No step was seen, the config did not reach the trainer, or it wrote over the user's checkpoints.
        click.Abort: The same, and somebody was asked and said no.
    """
    console = text_console(stderr=True)
    trials = _make(console, plan, call)
    trouble = trials.loss or trials.trouble
    if trouble is not None:
        if trials.loss is None:
            _print_stderr(console, trials.first)
        if not may_ask:
            raise trouble
        console.print(str(trouble), soft_wrap=True)
        ask("Go on all the same?", must=True)
        if plan.changes_config and trials.second is None:
            console.print(NOT_TRIED, soft_wrap=True)
    elif not trials.left_files:  # else its folder tells the searches to come whose what lies there is
        trials.first.folder.delete()
    return _why_separate(console, plan, trials) if trials.second else None


def try_start(problem: Problem, call: Invocation, *, longest_s: float) -> float:
    """Make one short trial of today's config, and nothing of it.

    Args:
        longest_s: Longest time to its first step, if that is less than the section's.

    Returns:
        The time that it took, in seconds, from the start of the trainer to its third step and its end.

    Raises:
        TrialError: No step was seen, the config did not reach the trainer, or it wrote over the user's checkpoints.
    """
    clock = call.clock
    name = _name(clock)
    with _prepared(problem, call, name, no_remark) as (runner, checkpoints):
        began_s = clock.now_s()
        limit_s = min(longest_s, problem.limits.start_timeout_s)
        preflight = run_preflight(problem, runner, clock, name=name, start_timeout_s=limit_s)
        took_s = clock.now_s() - began_s
        loss = checkpoints.loss("the trial")
        trouble = loss or _trouble(preflight, without="--no-check")
        if trouble is not None and loss is None:
            trouble = _tried_elsewhere(problem, preflight, trouble, runner, clock, without="--no-check")
            trouble = checkpoints.loss("the second trial") or trouble
    if trouble is not None:
        _print_stderr(text_console(stderr=True), preflight)
        raise trouble
    preflight.folder.delete()
    return took_s


def _name(clock: Clock) -> str:
    return f"preflight-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _prepared(
    problem: Problem, call: Invocation, name: str, remark: OnRemark
) -> Iterator[tuple[Runner, CheckpointBackups]]:
    """Hold this machine's part of the study, without orphans, and the user's checkpoints, while trials are made."""
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


def _make(console: Console, plan: InitPlan, call: Invocation) -> _Trials:
    """Make the first trial, and where that shows what it should the second one."""
    problem, clock, second = plan.problem, call.clock, None
    name = _name(clock)

    def remark(text: str) -> None:
        console.print(plain(text, longest=1000), soft_wrap=True)

    console.print("\nPreflight: one short trial, to see its steps ...", soft_wrap=True)
    with _prepared(problem, call, name, remark) as (runner, checkpoints):
        side_effects = SideEffects(problem.trainer, clock, is_called_a_checkpoint)
        with _waiting(console):
            first = run_preflight(
                problem, runner, clock, name=name, tell=lambda said: console.print(plain(said), soft_wrap=True)
            )
        loss, trouble = checkpoints.loss("the preflight trial"), _trouble(first)
        if loss is None and trouble is not None:
            with _waiting(console):
                trouble = _tried_elsewhere(problem, first, trouble, runner, clock)
            loss = checkpoints.loss("the preflight's second trial")
        elif loss is None:
            console.print(
                f"{_steps(first)} seen, the first {format_duration(first.first_step_s or 0.0)} after the start; "
                f"{_REACHED[first.reached]}.",
                soft_wrap=True,
            )
            if plan.changes_config:
                with _waiting(console):
                    second = run_preflight(problem, runner, clock, name=f"{name}-section", with_section=True)
                loss = checkpoints.loss("the preflight's second trial")
        left = side_effects.since_then("the preflight trial")
    if left is not None:
        remark(left.sentence)
    return _Trials(first=first, second=second, trouble=trouble, loss=loss, left_files=left is not None)


def _waiting(console: Console) -> AbstractContextManager[object]:
    return console.status("waiting for the first step") if console.is_terminal else nullcontext()


def _why_separate(console: Console, plan: InitPlan, trials: _Trials) -> str | None:
    second, config = trials.second, plan.problem.config_path
    assert second is not None, "the trainer was tried with the section"
    if second.steps:
        console.print(f"With the section in {config.name} it trains as well.", soft_wrap=True)
        if not trials.left_files:
            second.folder.delete()
        return None
    own_file = f"the section gets a file of its own, {separate_path(config).name} (output: {second.folder.path})"
    said = f"{EXPLANATIONS[second.ending].sentence.removesuffix('.')}{f': {second.detail}' if second.detail else ''}"
    if second.ending is Ending.CRASHED:
        return (
            f"with the section in {config.name} the trainer fails, and without it trains ({second.detail}): {own_file}"
        )
    return f"with the section in {config.name} no step was seen, and without it there were steps ({said}): {own_file}"


def _trouble(preflight: Preflight, *, without: str = "--no-preflight") -> TrialError | None:
    """Return what is wrong with a trial; None if nothing is.

    Args:
        without: Option of the command that goes on without one.
    """
    explained = EXPLANATIONS[preflight.ending]
    remedy = explained.remedy
    if not preflight.steps:
        why = f"no step was seen: {_why_no_step(preflight)}"
    elif preflight.ending not in (Ending.STOPPED, Ending.COMPLETED):
        why = f"training ended after {_steps(preflight)}: {explained.sentence} ({preflight.detail})"
    elif preflight.reached is Reached.NOT_READ:
        why = "steps were seen, but nobody read the trial's own copy of the config, so no tuned value would count"
        remedy = "See that {config} stands where the command takes the path of its config, or that its code opens the "
        remedy += "file by its name, and that nothing else decides which file is read."
    else:
        return None
    return TrialError(why, where=str(preflight.folder.path), remedy=f"{remedy}{_go_on(without)}")


def _go_on(without: str) -> str:
    return f"\nTo go on without trying it: {without}."


def _tried_elsewhere(
    problem: Problem,
    first: Preflight,
    trouble: TrialError,
    runner: Runner,
    clock: Clock,
    *,
    without: str = "--no-preflight",
) -> TrialError:
    """Try a trainer that crashed before its first step once more, with relative output paths; say what both showed."""
    if first.ending is not Ending.CRASHED or first.steps:
        return trouble
    tried = try_relative_outputs(problem, runner, clock, name=f"{first.folder.path.name}-outputs")
    if tried is None:
        return trouble
    if not tried.trial.steps:
        why = "" if tried.trial.detail == first.detail else f": {_why_no_step(tried.trial)}"
        return TrialError(
            f"{trouble.message}. With {tried} no step came either{why}",
            where=trouble.where,
            remedy=trouble.remedy,
        )
    tried.trial.folder.delete()
    return tried.error(first.detail, where=str(first.folder.path), go_on=_go_on(without))


def _why_no_step(preflight: Preflight) -> str:
    detail = f" ({preflight.detail})" if preflight.detail else ""
    if preflight.ending is Ending.NO_STEPS:
        return f"the trainer ran to its end, with exit status 0{detail}"
    if preflight.ending is Ending.NEVER_STARTED and preflight.detail:
        return preflight.detail
    return f"{EXPLANATIONS[preflight.ending].sentence}{detail}"


def _steps(preflight: Preflight) -> str:
    return "1 step" if preflight.steps == 1 else f"{preflight.steps} steps"


def _print_stderr(console: Console, preflight: Preflight) -> None:
    for line in preflight.stderr_tail.splitlines()[-5:]:  # of a failed trial's stderr
        console.print(f"  | {plain(line)}", soft_wrap=True)
