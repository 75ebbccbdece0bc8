"""``autotune daemon run``: the daemon, in the foreground."""

import click

from autotune.process.termination import signals_held


@click.command(name="run")
def command() -> int:
    """Runs the daemon until ^C: it makes the searches of the queue while the machine is idle, and watches trainings.

    Ending it changes nothing that trains. A search that runs ends by itself after its running trial, and goes on with
    the rest of its budget when the daemon is there again.
    """
    with signals_held():
        import os

        from autotune.clock import SystemClock
        from autotune.commands.printing import say_aside
        from autotune.daemon.home import open_home
        from autotune.daemon.service import Service
        from autotune.settings.daemon_settings import load_daemon_settings

    clock = SystemClock()

    def say(text: str) -> None:
        say_aside(f"{clock.utc().astimezone():%H:%M:%S} {text}")

    Service(open_home(os.environ), load_daemon_settings(os.environ), clock, say).run()
    return 0
