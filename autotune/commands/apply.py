"""``autotune apply``: the best values go into the config."""

from pathlib import Path

import click

from autotune.commands.output import say_remarks
from autotune.commands.parameters import config_option, dry_run_option, force_option, state_dir_option, storage_option
from autotune.trial.termination import signals_held


@click.command(name="apply")
@config_option
@click.option("--trial", type=int, metavar="TRIAL", help="Take the values of this trial instead of the best.")
@click.option(
    "--answer", metavar="ID", help="Write the answer of this id, see --json; fail if it does not stand any more."
)
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help="Also write what changes the training itself (batch, precision), where an answer without that was confirmed.",
)
@click.option(
    "--learning-rate",
    is_flag=True,
    help="Also write the learning rate that the search proposes with another batch, where its race found that better.",
)
@click.option(
    "--code",
    is_flag=True,
    help="Also write what the answer changes in the trainer's own code; without it, that goes into a patch.",
)
@dry_run_option
@force_option
@state_dir_option
@storage_option
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
    """Writes the best values that a search found into the config, and nothing else.

    Where the best changes the training itself, and the best that does not was confirmed beside it, that is written.
    Shows the change as a diff and keeps a backup; `autotune revert` undoes it.
    """
    if sum((whole, trial is not None, answer is not None)) > 1:
        raise click.UsageError("--all, --trial and --answer each choose what is written: give one of them.")
    with signals_held():
        from autotune.commands.apply_answer import (
            OTHER_TRAINING,
            apply_values,
            changes_of_answer,
            changes_of_trial,
            named_answer,
            proposed_rate,
        )
        from autotune.records import Verdict
        from autotune.report.answer import verdict, why_it_may_learn_more_slowly
        from autotune.report.console import text_console
        from autotune.search.answer import Study
        from autotune.search.problem import open_problem

    problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
    say_remarks(problem.state.remarks)
    study, console = Study.of(problem), text_console()
    result = study.answer() if answer is None else named_answer(study, answer, config)
    chooses = whole or learning_rate or trial is not None or answer is not None
    if result.applies_same_training and not chooses:
        result = study.answer(excluded=OTHER_TRAINING)
    if trial is not None:
        new = changes_of_trial(study, result, trial, problem.typed, force=force)
    elif result.verdict is Verdict.NO_CHANGE:
        console.print(*verdict(result), sep="\n", soft_wrap=True)
        return 0
    else:
        new = changes_of_answer(study, result, config, force=force)
    rate = proposed_rate(result, config) if learning_rate else {}
    asks = trial is None and not rate and not whole and result.may_learn_more_slowly
    why_ask = why_it_may_learn_more_slowly(result) if asks else ""
    apply_values(problem, new, console, further=rate, why_ask=why_ask, code=code, force=force, dry_run=dry_run)
    return 0
