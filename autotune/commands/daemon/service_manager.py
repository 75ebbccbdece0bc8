"""Requests to systemd about the daemon's unit, shared by ``install`` and ``uninstall``."""

import os
import pwd
import shlex
from collections.abc import Sequence
from pathlib import Path

from autotune.daemon.unit import NAME
from autotune.errors import AutotuneError
from autotune.trial.search_child import run_short

_SYSTEMCTL = ("systemctl", "--user")
_RELOAD = (*_SYSTEMCTL, "daemon-reload")
START = (_RELOAD, (*_SYSTEMCTL, "enable", "--now", NAME))
UPDATE = (_RELOAD, (*_SYSTEMCTL, "enable", NAME), (*_SYSTEMCTL, "restart", NAME))
STOP = ((*_SYSTEMCTL, "stop", NAME), _RELOAD)

_ASK_S = 10.0
_RUN_S = 120.0  # the daemon says when it is up; systemd waits for that
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
        answered = run_short(words, _RUN_S)
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
