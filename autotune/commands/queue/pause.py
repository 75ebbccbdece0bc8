"""``autotune queue pause``: keep entries from starting."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import entries_argument, json_option
from autotune.trial.termination import signals_held


@click.command(name="pause")
@entries_argument
@json_option
@click.pass_obj
def command(call: Invocation, numbers: tuple[int, ...], as_json: bool) -> int:
    """Keeps entries from starting. A search that runs is ended; its trials and the rest of its budget stay."""
    with signals_held():
        from autotune.commands.queue.changing import change_entries

    return change_entries(call, numbers, "pause", as_json=as_json)
