"""``autotune apply``."""

from pathlib import Path

import click

from autotune.commands.output import say_remarks
from autotune.commands.parameters import config_option, dry_run_option, force_option, place_options
from autotune.trial.termination import signals_held


@click.command(name="apply")
@config_option
@click.option("--trial", type=int, metavar="TRIAL", help="Write the values of this trial instead of the best.")
@click.option("--answer", metavar="ID", help="Write this answer (id from --json), only if current.")
@click.option(
    "--all", "whole", is_flag=True, help="Also write changes to the training (batch, precision, unknown effect)."
)
@click.option("--learning-rate", is_flag=True, help="Also write the learning rate that the race found better.")
@click.option("--code", is_flag=True, help="Also edit the trainer's code (default: write a patch).")
@dry_run_option
@force_option
@place_options
def command(
    config: Path,
    trial: int | None,
    answer: str | None,
    whole: bool,
    learning_rate: bool,
    code: bool,
    dry_run: bool,
    force: bool,
    state_dir: Path | None,
    storage: str | None,
) -> int:
    """Write the best values of the search into the config.

    Shows a diff and keeps a backup for `autotune revert`. Without --all, writes only confirmed values: those that leave
    the training unchanged, or an answer that changes batch or precision if its race showed that it converges as fast.
    Asks, on a terminal, if the training changes or the data could not be verified.
    """
    if sum((whole, trial is not None, answer is not None)) > 1:
        raise click.UsageError("--all, --trial and --answer conflict: give one of them.")
    with signals_held():
        from autotune.commands.apply_answer import (
            apply_values,
            changes_of_trial,
            named_answer,
            print_training_changes,
            proposed_rate,
            without_consent,
        )
        from autotune.records import UNCHANGED
        from autotune.report.answer import verdict
        from autotune.report.console import text_console
        from autotune.search.answer import Study
        from autotune.search.problem import open_problem

    problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
    say_remarks(problem.state.remarks)
    study, console, question = Study.of(problem), text_console(), ""
    result = study.answer() if answer is None else named_answer(study, answer, config)
    if trial is None and result.verdict in UNCHANGED:
        unchanged = f"Nothing was written: {config} keeps today's values."
        console.print(*verdict(result), unchanged, sep="\n", soft_wrap=True)
        return 0
    rate = proposed_rate(result, config) if learning_rate else {}
    if trial is not None:
        new = changes_of_trial(study, result, trial, problem.typed, force=force)
    else:
        is_chosen = whole or learning_rate or answer is not None
        result = result if is_chosen else without_consent(study, result, problem.typed)
        new = study.change_set(result)
        question = print_training_changes(result, console)
    apply_values(problem, new, console, further=rate, question=question, code=code, force=force, dry_run=dry_run)
    return 0
