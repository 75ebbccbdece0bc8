"""``autotune search``: the search itself."""

import math
from pathlib import Path

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.parameters import (
    Duration,
    config_option,
    dry_run_option,
    json_option,
    seed_option,
    state_dir_option,
)
from autotune.commands.search_answer import SearchAnswer
from autotune.commands.watchdog import Watchdog
from autotune.errors import AutotuneError
from autotune.process.termination import end_by_force_with, signals_held


@click.command(name="search")
@config_option
@click.option("--budget", "budget_s", type=Duration(), default="30m", show_default=True, help="Wall for everything.")
@seed_option
@click.option("--fresh", is_flag=True, help="Start a new record; the old one is kept beside it.")
@click.option("--apply", "and_apply", is_flag=True, help="Write the best values into the config if they are better.")
@click.option("--same-training", is_flag=True, help="Turn only knobs that leave the training itself unchanged.")
@click.option("--allow-busy-gpu", is_flag=True, help="Search although somebody else is on the GPU.")
@dry_run_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
    call: Invocation,
    config: Path,
    budget_s: float,
    seed: int,
    fresh: bool,
    and_apply: bool,
    same_training: bool,
    allow_busy_gpu: bool,
    dry_run: bool,
    as_json: bool,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> int:
    """Finds better values for the knobs of a config: short real trainings, measured, compared, confirmed.

    Starts a study of this config on this machine, or goes on with it. The config itself is not touched
    (see `autotune apply`). The trainer's command comes from the config's autotune: section, or after --.
    """
    if dry_run and as_json:
        raise click.UsageError("--dry-run is for people and has no JSON form; leave --json out.")
    clock = SystemClock()
    answer = SearchAnswer(call, config, budget_s, clock)
    end_by_force_with(answer.interrupted)
    with Watchdog(math.inf if dry_run else call.started_s + budget_s, answer.by_force, clock) as watchdog:
        try:
            with signals_held():
                from autotune.commands.apply import apply_values
                from autotune.commands.preview import preview
                from autotune.commands.showing import failures, show_plan
                from autotune.report.answer import print_failures
                from autotune.report.console import text_console
                from autotune.report.live import SearchDisplay
                from autotune.results import Verdict
                from autotune.search.open import SearchOptions, open_search
                from autotune.search.problem import open_problem
                from autotune.settings.typed import typed_tokens

            typed = typed_tokens(trainer, config, Path.cwd())
            problem = open_problem(config, command=typed, state_dir=state_dir, same_training=same_training)
            problem.require_runnable()
            progress, output = text_console(stderr=True), text_console()
            if dry_run:
                preview(output, problem, budget_s, clock)
                return 0

            show_plan(progress, problem, budget_s)
            options = SearchOptions(
                budget_s=budget_s,
                started_s=call.started_s,
                seed=seed,
                fresh=fresh,
                allow_busy_gpu=allow_busy_gpu,
            )
            display = SearchDisplay(progress, clock, started_s=call.started_s, budget_s=budget_s)
            with open_search(problem, options, clock, display) as search:
                answer.begin(problem, search)
                answer.clear = display.close
                try:
                    with display:
                        result = search.run()
                except AutotuneError:
                    print_failures(progress, failures(search.tuner.failures, search.tuner.outcomes))
                    raise
            if problem.config_changed():
                progress.print(
                    f"{config} was changed during the search; the answer is for the file as it was at the start.",
                    soft_wrap=True,
                )

            def apply_if_better() -> None:
                watchdog.stand_down()  # somebody may be asked
                if and_apply and result.verdict is Verdict.BETTER and result.best and result.baseline:
                    best, today = result.best, result.baseline.values
                    apply_values(problem, best.point, best.values, today, console=progress, force=False, dry_run=False)

            if as_json:
                apply_if_better()  # first, so that a failure is the one object on stdout
            ended_by = search.tuner.ended_by
            answer.give(result, failures(search.tuner.failures, result.outcomes), ended_by=ended_by)
            if not as_json:
                apply_if_better()
            if ended_by:
                call.say_error(ended_by)
        except KeyboardInterrupt as interrupt:
            return answer.interrupted(interrupt)
    return 1 if ended_by else 0
