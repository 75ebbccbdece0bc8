"""``autotune profile step``: the phases of a training step."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import json_option
from autotune.process.termination import signals_held


@click.command(name="step")
@json_option
@click.pass_obj
def command(call: Invocation, as_json: bool) -> int:
    """Times the phases of the shipped text-to-speech model's training step, compiled as it trains.

    Batches are random: no data set is needed. It runs in a process of its own, with this installation's TensorFlow.
    """
    with signals_held():
        from dataclasses import asdict

        from autotune.commands.printing import say_object
        from autotune.profile.step_phases import profile_shipped_step
        from autotune.report.console import text_console
        from autotune.report.phase_table import print_step_profile

    profile = profile_shipped_step()
    if as_json:
        call.answer(lambda: say_object({"format": 1, **asdict(profile)}, indent=2))
    else:
        print_step_profile(text_console(), profile)
    return 0
