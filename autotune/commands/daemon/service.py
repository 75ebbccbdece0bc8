"""``autotune daemon install`` and ``uninstall``: the systemd unit of this user's daemon."""

import os
import pwd
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from autotune.commands.printing import say
from autotune.daemon.unit import NAME, daemon_command, remove_unit, unit_path, unit_text, write_unit
from autotune.errors import AutotuneError
from autotune.trial.search_child import run_short
from autotune.trial.termination import signals_held


@click.command(name="install")
@click.option("--now", is_flag=True, help="Also have systemd start it, now and at each login.")
@click.option(
    "--web", is_flag=True, help="Have it serve the page and the metrics, as `autotune daemon run --web` does."
)
@click.option("--force", is_flag=True, help="Replace a unit that somebody edited; a copy of it is kept.")
def install_command(now: bool, web: bool, force: bool) -> int:
    """Writes a systemd unit that starts the daemon at your login, and says how to enable it.

    The unit is yours alone, no administrator is needed. Nothing is started unless --now asks for it. Where there is no
    systemd, as in most containers, start `autotune daemon run` by whatever starts programs there.
    """
    with signals_held():
        import os
        import sys

        from autotune.clock import SystemClock
        from autotune.commands.daemon.run import web_module
        from autotune.daemon.home import open_home

    open_home(os.environ)  # where it cannot work, it need not be installed
    starts = daemon_command(sys.executable)
    check_command(starts)
    if web:
        web_module("server")  # what cannot be served is said here, and not in the log of a service
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


@click.command(name="uninstall")
@click.option("--now", is_flag=True, help="Also have systemd end the daemon, and forget the unit.")
@click.option("--force", is_flag=True, help="Take away a unit that somebody edited too; a copy of it is kept.")
def uninstall_command(now: bool, force: bool) -> int:
    """Takes the unit away that `autotune daemon install` wrote.

    Queue, advice and log stay where they are. Trainings are not touched; a search that runs ends after its trial.
    """
    with signals_held():
        import os

        from autotune.clock import SystemClock

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


# Requests to systemd about the daemon's unit, shared by ``install`` and ``uninstall``.


_SYSTEMCTL = ("systemctl", "--user")
_RELOAD = (*_SYSTEMCTL, "daemon-reload")
START = (_RELOAD, (*_SYSTEMCTL, "enable", "--now", NAME))
UPDATE = (_RELOAD, (*_SYSTEMCTL, "enable", NAME), (*_SYSTEMCTL, "restart", NAME))
STOP = ((*_SYSTEMCTL, "stop", NAME), _RELOAD)
_ASK_S = 10.0
_LINGERING = Path("/var/lib/systemd/linger")
_KEPT = ("HOME", "PATH", "LANG")


def check_command(daemon: Sequence[str]) -> None:
    """Raise an error if the daemon cannot be started by its command outside of this environment.

    Args:
        daemon: The command; its last two words are ``daemon run``.

    Raises:
        AutotuneError: The interpreter does not find autotune, or is none.
    """
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    answered = run_short((*daemon[:-2], "--version"), _ASK_S, env=env)
    if answered.status != 0:
        raise AutotuneError(
            f"systemd could not start the daemon: {answered.text or 'it failed'}",
            where=shlex.join(daemon),
            remedy="Install autotune into an environment (pip install), and use the `autotune` of that one.",
        )


def require_manager() -> None:
    """Raise an error if no systemd of this user answers.

    Raises:
        AutotuneError: None does.
    """
    answered = run_short((*_SYSTEMCTL, "show", "--property=Version"), _ASK_S)
    if answered.status != 0:
        raise AutotuneError(
            f"there is no systemd of yours to start services: {answered.text or f'status {answered.status}'}",
            where="systemctl --user",
            remedy="In a container, or under another init, start `autotune daemon run` itself. After `su` or `sudo` "
            "log in as that user instead: there is no session of theirs.",
        )


def run_commands(commands: Sequence[Sequence[str]]) -> None:
    """Run commands of systemd one after the other.

    Raises:
        AutotuneError: One fails.
    """
    for words in commands:
        answered = run_short(words, 120.0)  # the daemon says when it is up; systemd waits for that
        if answered.status != 0:
            raise AutotuneError(
                f"it failed: {answered.text or f'status {answered.status}'}",
                where=shlex.join(words),
                remedy=f"journalctl --user --unit={NAME} --lines=20 shows what the daemon said.",
            )


def lingers() -> bool:
    """Return whether services of this user go on without a login."""
    try:
        return (_LINGERING / pwd.getpwuid(os.getuid()).pw_name).exists()
    except (KeyError, OSError):
        return False
