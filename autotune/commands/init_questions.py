"""Steps of ``autotune init``: planning the section, showing what was found, and writing it."""

from rich.console import Console

from autotune.clock import SystemClock
from autotune.commands.init_preflight import NOT_TRIED, show_preflight
from autotune.commands.printing import ask, say_remarks
from autotune.commands.search_plan import command_notes, knob_rows
from autotune.config.apply import create_file, write_edits
from autotune.config.secrets import masked
from autotune.config.typed import read_typed, refuse_secrets
from autotune.errors import ConfigError
from autotune.options import InitRequest
from autotune.report.knob_tables import Inventory, print_inventory
from autotune.report.plain_text import plain
from autotune.search.init_plan import InitPlan, not_taken, plan_init, plan_init_from_flags
from autotune.search.warm_start import warm_start


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
    problem = plan.problem
    say_remarks(problem.state.remarks)
    left_flags = plan.flags.left if plan.flags else {}
    inventory = Inventory(
        knobs=knob_rows(problem),
        not_taken={**{skipped.path: skipped.why for skipped in not_taken(problem)}, **left_flags},
        redirected=problem.redirected,
        left=problem.settings.outputs.left,
        command=masked(problem.command),
    )
    print_inventory(console, inventory)
    for note in filter(None, (problem.batch_remark, *command_notes(problem), plan.why_separate)):
        console.print(note, soft_wrap=True)
    if problem.can_vary and (begins := warm_start(problem).sentence):
        console.print(plain(begins, longest=1000), soft_wrap=True)


def tried(console: Console, plan: InitPlan, request: InitRequest) -> InitPlan:
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
    why_separate = show_preflight(plan, may_ask=request.may_ask)
    if why_separate is None:
        return plan
    console.print(plain(why_separate, longest=1000), soft_wrap=True)
    return plan_requested(request, why_separate=why_separate)


def write_if_wanted(console: Console, plan: InitPlan, request: InitRequest) -> None:
    """Show the change, and write it after a yes, which may have been typed as ``--yes``.

    Raises:
        ConfigError: There is nobody to ask, or the file cannot be written.
    """
    path = plan.edit.path
    console.print()
    console.print(plan.edit.diff, soft_wrap=True, end="")
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
