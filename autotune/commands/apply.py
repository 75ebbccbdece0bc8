"""``autotune apply``: the best values go into the config."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.commands.parameters import config_option, dry_run_option, force_option, state_dir_option
from autotune.commands.printing import ask
from autotune.errors import ConfigError, TrialError
from autotune.process.termination import signals_held
from autotune.records import Values
from autotune.results import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.search.problem import Problem


@click.command(name="apply")
@config_option
@click.option("--trial", type=int, metavar="TRIAL", help="Take the values of this trial instead of the best.")
@dry_run_option
@force_option
@state_dir_option
def command(config: Path, trial: int | None, dry_run: bool, force: bool, state_dir: Path | None) -> int:
    """Writes the best values that a search found into the config, and nothing else.

    Shows the change as a diff and keeps a backup; `autotune revert` undoes it.
    """
    with signals_held():
        from autotune.commands.showing import show_remarks
        from autotune.report.console import text_console
        from autotune.search.known import Study
        from autotune.search.problem import open_problem

    problem = open_problem(config, command=None, state_dir=state_dir)
    show_remarks(problem.state)
    study = Study.of(problem)
    result = study.answer()
    console = text_console()
    if trial is not None:
        chosen = next((one for one in study.trials if one.number == trial), None)
        if chosen is None:
            raise TrialError(
                f"there is no trial {trial} in study {study.name}",
                where=str(study.path),
                remedy=f"It has the trials 0 to {len(study.trials) - 1}; see `autotune status --config {config}`.",
            )
        if not chosen.comparable and not force:
            raise TrialError(
                f"trial {trial} gave no numbers to go by ({chosen.ending.value})",
                where=str(study.path),
                remedy="Choose another trial, or write its values all the same with --force.",
            )
        point, values = chosen.point, chosen.values
    elif result.verdict is Verdict.NO_CHANGE:
        console.print(f"No change: {result.why}.", soft_wrap=True)
        return 0
    elif result.verdict is Verdict.NO_BASELINE and not force:
        raise TrialError(
            "these values were never compared with today's: today's config gave no numbers",
            where=str(config),
            remedy="Write them all the same with --force.",
        )
    else:
        assert result.best is not None, "a search with numbers and another verdict has a best point"
        point, values = result.best.point, result.best.values
    today = result.baseline.values if result.baseline else {}
    return apply_values(problem, point, values, today, console=console, force=force, dry_run=dry_run)


def apply_values(
    problem: "Problem", point: str, values: Values, today: Values, *, console: "Console", force: bool, dry_run: bool
) -> int:
    """Writes a point into the config.

    Args:
        problem: The config's.
        point: Name of the point.
        values: Its values; refused if the point is none of the space any more.
        today: What the search took as today's values.
        console: Where the diff goes.
        force: Do not ask where a value is neither today's nor the new one.
        dry_run: Show the diff only.

    Returns:
        The exit code.
    """
    with signals_held():
        from autotune.clock import SystemClock
        from autotune.settings.apply import plan_edit, write_edit
        from autotune.settings.load import load_settings
        from autotune.space.knob import same_scalar

    if not problem.space.contains(values):
        raise ConfigError(
            "the values of that trial are not among those that this config allows now",
            where=str(problem.config_path),
            remedy="Widen the domains under autotune: knobs:, or search again.",
        )
    if not problem.space.is_named(point, values):
        moving = ", ".join(path for knob in problem.space.knobs for path in knob.paths[1:])
        raise ConfigError(
            f"a key that moves with the values of that trial held something else then than it would now: {moving}",
            where=str(problem.config_path),
            remedy="Put back what it was when that search began, or search again.",
        )
    # Read again: the search may have taken half an hour, and the file may have been edited since.
    fresh = load_settings(problem.config_path)
    present = {path: fresh.today(path) for path in values}
    edited = [
        f"{path} is {present[path]}, the search took {today[path]} as today's"
        for path in values
        if path in today
        and not same_scalar(present[path], today[path])
        and not same_scalar(present[path], values[path])
    ]
    if edited and not dry_run and not force:
        _ask("Edited since the search: " + "; ".join(edited) + ". Overwrite?", str(problem.config_path))

    changed = False
    for file, edits in fresh.edits(problem.space.keys(values)).items():
        edit = plan_edit(file, edits)
        if edit.nothing_to_do:
            continue
        changed = True
        console.print(edit.diff, soft_wrap=True, end="")
        if not dry_run:
            problem.state.create()
            backup = write_edit(edit, problem.state.backups, SystemClock())
            console.print(f"\nWritten to {file}; the file as it was: {backup}", soft_wrap=True)
    if not changed:
        console.print(f"Nothing to do: {problem.config_path} holds these values already.", soft_wrap=True)
    return 0


def _ask(question: str, where: str) -> None:
    """Asks for a yes; without a terminal to ask on, says how to go on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(question.removesuffix(" Overwrite?"), where=where, remedy="Overwrite it with --force.")
    ask(question, must=True)
