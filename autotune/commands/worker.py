"""``autotune worker``."""

from contextlib import suppress
from typing import Any

import click

from autotune.clock import format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.output import kept_trials
from autotune.commands.parameters import (
    BATCH_LIMIT,
    DURATION,
    config_option,
    place_options,
    seed_option,
    warm_start_option,
)
from autotune.errors import TrialError
from autotune.options import SearchRequest
from autotune.trial.termination import signals_held


@click.command(name="worker")
@config_option
@click.option(
    "--budget",
    "budget_s",
    type=DURATION,
    help="Total time limit (default: that of the joined search, or 30m).",
)
@seed_option
@click.option("--same-training", is_flag=True, help="As in the joined search.")
@click.option("--batch", type=BATCH_LIMIT, metavar="[Nx|same|free]", help="As in the joined search.")
@warm_start_option
@click.option("--allow-busy-gpu", is_flag=True, help="Work although the GPU is busy.")
@place_options
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Run trials for the searches of a shared study, until it needs no more.

    Trials aren't duplicated. Uses this machine's trainer and config. On SIGTERM, returns its trial to the study.
    """
    if as_long_as_others := options["budget_s"] is None:
        options["budget_s"] = SearchRequest.budget_s
    request = SearchRequest(**options)
    with signals_held():
        from autotune.report.console import text_console
        from autotune.report.live import SearchDisplay
        from autotune.search.open import Session, open_search
        from autotune.search.problem import open_requested
        from autotune.study.members import Role
        from autotune.study.summary import has_answer
        from autotune.trial.children import Lifeline

    problem = open_requested(request)
    part = Session(
        started_s=call.started_s,
        lifeline=Lifeline.of_environment(),
        role=Role.WORKER,
        as_long_as_others=as_long_as_others,
    )
    console = text_console(stderr=True)
    display = SearchDisplay(console, call.clock, started_s=call.started_s, budget_s=request.budget_s)
    with open_search(problem, request, part, call.clock, display, simulator=call.simulator) as search:
        if search.search == search.name and has_answer(
            problem.code.of_now(search.study.records()), problem.space.name(problem.space.baseline), problem.objective
        ):
            console.print("The study has an answer, and no process works on it: `autotune search` starts a new search.")
            return 0
        if not any(one.role is Role.SEARCH for one in search.study.members.others()):
            console.print(
                f"No search is running on this study: for at most {format_duration(request.budget_s)}, this "
                "worker explores and confirms on its own. `autotune status` shows its results; later searches join.",
                soft_wrap=True,
            )
        try:
            with display, suppress(TrialError):  # no trial has a measurement; other machines' trials may have one
                search.run()
        except KeyboardInterrupt:
            kept = sum(search.tuner.outcomes.values())
            console.print(f"{kept_trials(kept)}; the same command resumes.", soft_wrap=True)
            raise
        count = sum(search.tuner.outcomes.values())
    tuner = search.tuner
    if tuner.ended_by:
        call.say_error(tuner.ended_by)
        return 1
    why = f"this machine is excluded: {tuner.left_because}" if tuner.left_because else "the study needs no more trials"
    console.print(f"Ran {count} trials; {why}.", soft_wrap=True)
    return 1 if tuner.left_because else 0
