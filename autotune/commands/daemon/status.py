"""``autotune daemon status``: whether the daemon runs, how it is hosted, and what it does."""

from datetime import datetime

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import json_option
from autotune.trial.termination import signals_held

_ASK_S = 5.0


@click.command(name="status")
@json_option
@click.pass_obj
def command(call: Invocation, as_json: bool) -> int:
    """Shows whether the daemon runs, how it is hosted, and what it sees; exit code 1 if it does not run."""
    with signals_held():
        import os

        from autotune.commands.printing import say, say_object
        from autotune.daemon.control.client import ask
        from autotune.daemon.home import locate_home

    status = ask(locate_home(os.environ), "status", {}, timeout_s=_ASK_S)
    if as_json:
        call.answer(lambda: say_object({"format": 1, **status}, indent=2))
        return 0
    since = datetime.fromisoformat(status["started_utc"]).astimezone()
    say(f"autotune {status['autotune']} daemon, process {status['pid']}, since {since:%Y-%m-%d %H:%M:%S}")
    say(f"hosted by {status['hosted']}")
    say(f"machine: {status['machine']}")
    if status["running"] is not None:
        say(f"running: the search of queue {status['running']}; `autotune queue log -f {status['running']}`")
    waiting = sum(reason != "its search runs" for reason in status["reasons"].values())
    say(f"queue: {waiting or 'nothing'} waiting; `autotune queue list`")
    for training in status["trainings"]:
        speed = (
            f"{training['samples_per_s']:.4g} samples/s" if training["samples_per_s"] else f"{training['steps']} steps"
        )
        slow = ", slower than itself" if training["is_slow"] else ""
        say(f"training: {training['name']} (process {training['pid']}), {speed}{slow}")
    if status["trouble"]:
        say(f"trouble: {status['trouble']}")
    return 0
