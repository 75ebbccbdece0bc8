"""``autotune queue remove``: take entries out of the queue."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import entries_argument, json_option
from autotune.trial.termination import signals_held


@click.command(name="remove")
@entries_argument
@json_option
@click.pass_obj
def command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Takes entries out of the queue. A search that runs is ended first; its finished trials stay in the study."""
    with signals_held():
        from autotune.commands.queue.changing import change_entries

    return change_entries(call, numbers, "remove", as_json=as_json)
