"""``autotune daemon uninstall``: takes the systemd unit of this user's daemon away."""

import shlex

import click

from autotune.commands.printing import say
from autotune.trial.termination import signals_held


@click.command(name="uninstall")
@click.option("--now", is_flag=True, help="Also have systemd end the daemon, and forget the unit.")
@click.option("--force", is_flag=True, help="Take away a unit that somebody edited too; a copy of it is kept.")
def command(now: bool, force: bool) -> int:
    """Takes the unit away that `autotune daemon install` wrote.

    Queue, advice and log stay where they are. Trainings are not touched; a search that runs ends after its trial.
    """
    with signals_held():
        import os

        from autotune.clock import SystemClock
        from autotune.commands.daemon.service_manager import STOP, require_manager, run_commands
        from autotune.daemon.unit import remove_unit, unit_path

    if now:
        require_manager()
    path = unit_path(os.environ)
    change = remove_unit(path, SystemClock(), force=force)
    if change is None:
        say(f"There is no unit to take away: {path}")
        return 0
    say(f"Taken away: {change.path}")
    if change.backup is not None:
        say(f"The unit as it was: {change.backup}")
    if now:
        run_commands(STOP)
        say("The daemon has ended.")
        return 0
    say("To end the daemon that systemd started:")
    for words in STOP:
        say(f"  {shlex.join(words)}")
    return 0
