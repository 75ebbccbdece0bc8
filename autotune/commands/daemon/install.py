"""``autotune daemon install``: the systemd unit of this user's daemon."""

import shlex

import click

from autotune.commands.printing import say
from autotune.trial.termination import signals_held


@click.command(name="install")
@click.option("--now", is_flag=True, help="Also have systemd start it, now and at each login.")
@click.option(
    "--web", is_flag=True, help="Have it serve the page and the metrics, as `autotune daemon run --web` does."
)
@click.option("--force", is_flag=True, help="Replace a unit that somebody edited; a copy of it is kept.")
def command(now: bool, web: bool, force: bool) -> int:
    """Writes a systemd unit that starts the daemon at your login, and says how to enable it.

    The unit is yours alone, no administrator is needed. Nothing is started unless --now asks for it. Where there is no
    systemd, as in most containers, start `autotune daemon run` by whatever starts programs there.
    """
    with signals_held():
        import os
        import sys

        from autotune.clock import SystemClock
        from autotune.commands.daemon.run import page_server
        from autotune.commands.daemon.service_manager import (
            START,
            UPDATE,
            check_command,
            lingers,
            require_manager,
            run_commands,
        )
        from autotune.daemon.home import open_home
        from autotune.daemon.unit import daemon_command, unit_path, unit_text, write_unit

    open_home(os.environ)  # where it cannot work, it need not be installed
    starts = daemon_command(sys.executable)
    check_command(starts)
    if web:
        page_server()  # what cannot be served is said here, and not in the log of a service
        starts = (*starts, "--web")
    if now:
        require_manager()
    change = write_unit(unit_path(os.environ), unit_text(starts, os.environ), SystemClock(), force=force)
    say(f"{'Written' if change.is_new else 'Written anew'}: {change.path}")
    if change.backup is not None:
        say(f"The unit as it was: {change.backup}")
    commands = START if change.is_new else UPDATE
    if now:
        run_commands(commands)
        say("The daemon runs, and is started at each login. `autotune daemon status` shows what it does.")
    else:
        say("To start the daemon now and at each login:")
        for words in commands:
            say(f"  {shlex.join(words)}")
    if not lingers():
        say("It ends with your last login. To have it run at all times, from the boot of the machine on:")
        say("  loginctl enable-linger")
    return 0
