"""``autotune profile``: how long the parts of a training step take, and its batches."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.output import say_object, say_remarks
from autotune.commands.parameters import (
    OrderedGroup,
    config_option,
    json_option,
    state_dir_option,
)
from autotune.report.plain_text import plain
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.search.problem import Problem

command = OrderedGroup(name="profile", help="How long the parts of a training step take, and its batches.")


@command.command("pipeline", short_help="times of batches, waits for them, their cycle")
@config_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def pipeline(call: Invocation, config: Path, state_dir: Path | None, trainer: tuple[str, ...]) -> int:
    """Times the batches of the loader alone, the waits of the training for them, and the steps without loading.

    In a trial of its own that no search looks at, with today's values. The command stands in the config's section, or
    behind --.
    """
    with signals_held():
        from autotune.diagnose.profiles import profile_pipeline
        from autotune.report.console import text_console
        from autotune.report.diagnosis import print_pipeline_profile

    profile, remarks = profile_pipeline(_opened(config, state_dir, trainer), SystemClock())
    say_remarks(plain(one, longest=1000) for one in remarks)
    if call.as_json:
        call.answer(lambda: say_object({"format": 1, **asdict(profile)}, indent=2))
    else:
        print_pipeline_profile(text_console(), profile)
    return 0


@command.command("step", short_help="data, forward, backward, optimizer, the rest; the slowest operations")
@config_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def step(call: Invocation, config: Path, state_dir: Path | None, trainer: tuple[str, ...]) -> int:
    """Times the phases of a training step, and the operations that take longest in it.

    In a trial of its own that no search looks at, with today's values. PyTorch's steps are divided into data, forward,
    backward, optimizer and the rest, all others into data and the rest. The operations are those that PyTorch's or
    TensorFlow's own profiler sees. The command stands in the config's section, or behind --.
    """
    with signals_held():
        from autotune.diagnose.profiles import profile_step
        from autotune.report.console import text_console
        from autotune.report.diagnosis import print_step_profile

    profile, remarks = profile_step(_opened(config, state_dir, trainer), SystemClock())
    say_remarks(plain(one, longest=1000) for one in remarks)
    if call.as_json:
        call.answer(lambda: say_object({"format": 1, **asdict(profile)}, indent=2))
    else:
        print_step_profile(text_console(), profile)
    return 0


def _opened(config: Path, state_dir: Path | None, trainer: tuple[str, ...]) -> "Problem":
    from autotune.search.problem import open_problem

    problem = open_problem(config, command=trainer or None, state_dir=state_dir)
    problem.require_command()
    problem.require_program()
    return problem
