"""``autotune queue resume``: let paused entries go on."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import entries_argument, json_option
from autotune.trial.termination import signals_held


@click.command(name="resume")
@entries_argument
@json_option
@click.pass_obj
def command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Lets paused entries go on, tries failed ones again, and applies what is held because a value was edited."""
    with signals_held():
        from autotune.commands.queue.changing import change_entries

    return change_entries(call, numbers, "resume", as_json=as_json)
