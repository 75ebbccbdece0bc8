"""``autotune daemon url``: a fresh address of the daemon's page."""

import click

from autotune.trial.termination import signals_held

_ASK_S = 5.0


@click.command(name="url")
def command() -> int:
    """Prints an address of the daemon's page that signs one browser in, once, within two minutes."""
    with signals_held():
        import os

        from autotune.commands.printing import say
        from autotune.daemon.control.client import ask
        from autotune.daemon.home import locate_home

    say(ask(locate_home(os.environ), "url", {}, timeout_s=_ASK_S)["url"])
    return 0
