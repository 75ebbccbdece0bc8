"""``autotune profile``."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.output import say_object, say_remarks
from autotune.commands.parameters import OrderedGroup, config_option, json_option, state_dir_option
from autotune.report.plain_text import plain
from autotune.trial.termination import signals_held

command = OrderedGroup(name="profile", help="Time the parts of a training step and its batches.")


@command.command("pipeline", short_help="time the batches and the waits for them")
@config_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def pipeline(call: Invocation, /, **options: Any) -> int:
    """Time the loader alone, the waits for batches, and the steps without loading.

    Runs a separate trial of today's config, which searches ignore. The trainer's command is the section's, or follows
    --.
    """
    with signals_held():
        from autotune.diagnose.profiles import profile_pipeline
        from autotune.report.diagnosis import print_pipeline_profile

    return _profile(call, profile_pipeline, print_pipeline_profile, **options)


@command.command("step", short_help="time the phases of a step and its slowest operations")
@config_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def step(call: Invocation, /, **options: Any) -> int:
    """Time the phases of a training step and its slowest operations.

    Runs a separate trial, as `pipeline`. PyTorch's phases are data, forward, backward, optimizer and the rest; others
    have data and the rest. Operations are from PyTorch's or TensorFlow's profiler.
    """
    with signals_held():
        from autotune.diagnose.profiles import profile_step
        from autotune.report.diagnosis import print_step_profile

    return _profile(call, profile_step, print_step_profile, **options)


def _profile(
    call: Invocation,
    make: Callable[..., Any],
    show: Callable[..., None],
    *,
    config: Path,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> int:
    from autotune.report.console import text_console
    from autotune.search.problem import open_problem

    problem = open_problem(config, command=trainer or None, state_dir=state_dir)
    problem.require_command()
    problem.require_program()
    profile, remarks = make(problem, SystemClock())
    say_remarks(plain(one, longest=1000) for one in remarks)
    if call.as_json:
        call.answer(lambda: say_object({"format": 1, **asdict(profile)}, indent=2))
    else:
        show(text_console(), profile)
    return 0
