"""Profiles, as the commands make and say them; imported when one is wanted."""

from dataclasses import asdict
from pathlib import Path

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.printing import say_aside, say_object
from autotune.diagnose.pipeline_profile import profile_grid, profile_pipeline
from autotune.diagnose.profile_trials import open_trials
from autotune.diagnose.step_profile import TrainerStep, profile_shipped_step, profile_trainer_step
from autotune.report.console import text_console
from autotune.report.plain_text import plain
from autotune.report.profile_tables import print_grid, print_pipeline_profile, print_step_profile
from autotune.search.problem import Problem, open_problem


def answer_step(
    call: Invocation, config: Path | None, *, as_json: bool, state_dir: Path | None, trainer: tuple[str, ...]
) -> None:
    """Profiles a training step, and says the profile.

    Args:
        config: The trainer's config; None for the shipped model.

    Raises:
        AutotuneError: It cannot be made.
    """
    if config is None:
        made = TrainerStep(profile=profile_shipped_step(), remarks=())
    else:
        made = profile_trainer_step(_problem(config, state_dir, trainer), SystemClock())
    for remark in made.remarks:
        say_aside(plain(remark, longest=1000))
    if as_json:
        call.answer(lambda: say_object({"format": 1, **asdict(made.profile)}, indent=2))
    else:
        print_step_profile(text_console(), made.profile)


def answer_pipeline(
    call: Invocation,
    config: Path,
    *,
    with_grid: bool,
    as_json: bool,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> None:
    """Profiles an input pipeline, and says the profile.

    Args:
        with_grid: Whether batch sizes and workers are tried, too.

    Raises:
        AutotuneError: It cannot be made.
    """
    problem = _problem(config, state_dir, trainer)
    with open_trials(problem, SystemClock()) as trials:
        profile = profile_pipeline(problem, trials)
        found = profile_grid(problem, trials, say_aside) if with_grid else None
        remarks = tuple(trials.remarks)
    for remark in remarks:
        say_aside(plain(remark, longest=1000))
    if as_json:
        document = {"format": 1, **asdict(profile), "grid": None if found is None else asdict(found)}
        call.answer(lambda: say_object(document, indent=2))
    else:
        print_pipeline_profile(text_console(), profile)
        if found is not None:
            print_grid(text_console(), found)


def _problem(config: Path, state_dir: Path | None, trainer: tuple[str, ...]) -> Problem:
    problem = open_problem(config, command=trainer or None, state_dir=state_dir)
    if not problem.command:
        problem.require_searchable()  # says how the command is told
    problem.require_program()
    return problem
