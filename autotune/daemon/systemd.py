"""systemd: the user unit file, and messages to the service manager."""

import hashlib
import logging
import math
import os
import re
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.resources import files
from pathlib import Path

from autotune import __version__
from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.files import open_regular, replace_durably
from autotune.measure.host import is_in_container
from autotune.process import settings_folder
from autotune.trial.folders import why_exposed, why_not_ours
from autotune.trial.user_folder import VARIABLE

_MOST_BYTES = 1 << 20
_log = logging.getLogger(__name__)
NAME = "autotune.service"


def unit_path(environ: Mapping[str, str]) -> Path:
    """Return the user unit's path."""
    return settings_folder(environ) / "systemd" / "user" / NAME


def write_unit(path: Path, text: str) -> bool:
    """Write the unit; return whether it is new.

    Raises:
        AutotuneError: The existing unit is edited or not autotune's, or others can write to its folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_folder(path.parent)
    before = _read_ours(path)
    replace_durably(path, os.fsencode(text))
    path.chmod(0o644)  # systemd warns about units that aren't world-readable
    return before is None


def remove_unit(path: Path) -> bool:
    """Remove the unit and the link that starts it; return whether it existed. Raises like `write_unit`."""
    link = path.parent / "default.target.wants" / path.name
    before = _read_ours(path)
    if before is not None:
        path.unlink()
    if link.is_symlink() and not link.exists():
        link.unlink()
    return before is not None


def _check_folder(folder: Path) -> None:
    """Raise AutotuneError if others can write to the folder, because systemd starts its units."""
    real = Path(os.path.realpath(folder))
    if why := why_not_ours(real, frozenset({os.geteuid()})) or why_exposed(real.parent):
        raise AutotuneError(
            f"the unit was not written: {why}",
            where=str(real),
            remedy="Anyone who can write to it can start programs as you. If it is yours, run `chmod go-w` on it.",
        )


def _read_ours(path: Path) -> str | None:
    """Return the existing unit's text, if any; raise an error if it isn't autotune's."""
    if path.is_symlink():
        raise AutotuneError(
            f"the unit is a link to {os.readlink(path)}",
            where=str(path),
            remedy=f"If it is masked (a link to /dev/null): systemctl --user unmask {NAME}. Otherwise remove the link.",
        )
    try:
        with open_regular(path) as file:
            text = os.fsdecode(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return None
    match = _PARTS.fullmatch(text)
    if match is None or hashlib.sha256(os.fsencode(match[2])).hexdigest() != match[1]:
        written = "was edited since autotune wrote it" if match else "was not written by autotune"
        raise AutotuneError(
            f"this unit {written}",
            where=str(path),
            remedy=f"Move it away. To change settings, use a drop-in file: systemctl --user edit {NAME}",
        )
    return text


_CARRIED = (VARIABLE, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
"""Variables that locate state and settings; the user manager doesn't read the shell's startup files."""

_PLAIN = re.compile(r"[\w/.:=+-]+", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\\'\"$]")
_PARTS = re.compile(r"(?:# [^\n]*\n)*# sha256 of what follows: ([0-9a-f]{64})\n(.*)", re.DOTALL)


def daemon_command(python: str) -> tuple[str, ...]:
    """Return the command that starts the daemon; `python` is absolute."""
    # -P: autotune.py in the working directory, the user's home, must not shadow this package.
    return (python, "-P", "-m", "autotune", "daemon", "run")


def unit_text(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the unit; it keeps the locations of state and settings in `environ`."""
    lines = [f"Environment={_quoted(f'{name}={environ[name]}')}\n" for name in _CARRIED if environ.get(name)]
    head, begin, body = files(__package__).joinpath(NAME).read_text("utf-8").partition("[Unit]\n")
    body = begin + body.format(command=_command_line(command), environment="".join(lines))
    digest = hashlib.sha256(os.fsencode(body)).hexdigest()
    return head.format(version=__version__, digest=digest) + body


def _command_line(command: Sequence[str]) -> str:
    if _UNFIT.search(command[0]):  # systemd refuses such characters in the program, not in arguments
        command = ("/bin/sh", "-c", 'exec "$0" "$@"', *command)
    words = [word if _PLAIN.fullmatch(word) else _quoted(word).replace("$", "$$") for word in command]
    return " ".join(words)


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{"".join(map(_escaped, escaped))}"'


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


# Service manager of a running daemon.


def hosted_by(environ: Mapping[str, str], *, is_service: bool) -> str:
    """Return how this process is hosted."""
    if is_service:
        how = "a systemd user unit: restarts on failure; stops with your last session unless lingering is enabled"
    elif environ.get("TMUX") or environ.get("STY"):
        how = f"a {'tmux' if environ.get('TMUX') else 'screen'} session: stops with the session or the machine"
    elif sys.stderr is not None and sys.stderr.isatty():
        how = "a terminal: stops with the terminal or with ^C"
    else:
        how = "a background process: not restarted automatically"
    return f"{how}; in a container" if is_in_container() else how


class ServiceManager:
    """Connection to the service manager, if any, by sd_notify(3). Methods don't raise.

    Removes its variables from `environ`, so that children don't inherit them. `watchdog_s` is the maximum time between
    watchdog messages.
    """

    def __init__(self, environ: MutableMapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._alive_s = -math.inf
        name = environ.pop("NOTIFY_SOCKET", "")  # a path, or @ and a name in the abstract namespace
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        for_pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        is_ours = self.is_there and for_pid in ("", str(os.getpid())) and microseconds.isdigit()
        self.watchdog_s = int(microseconds) / 1e6 or None if is_ours else None

    @property
    def is_there(self) -> bool:
        return bool(self._address)

    def alive(self) -> None:
        """Send a watchdog message if half of `watchdog_s` has passed."""
        now_s = self._clock.now_s()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / 2 and self.send("WATCHDOG=1"):
            self._alive_s = now_s

    def send(self, message: str) -> bool:
        """Send a message; return whether it was accepted."""
        if not self.is_there:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(0.2)  # limits how long an unresponsive manager blocks the main loop
                sending.sendto(message.encode(), self._address)
        except OSError as error:
            _log.debug("cannot reach the service manager: %s", error)
            return False
        return True
