"""systemd: the file of the user unit, never one that somebody else wrote or edited, and messages to the manager."""

import hashlib
import logging
import math
import os
import re
import socket
import stat
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
    """Return the file of the unit, in the folder in which systemd looks for units of this user."""
    return settings_folder(environ) / "systemd" / "user" / NAME


def write_unit(path: Path, text: str) -> bool:
    """Write the unit; return whether there was none.

    Raises:
        AutotuneError: There is one that somebody wrote or edited, or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_folder(path.parent)
        before = _read_ours(path)
        replace_durably(path, os.fsencode(text))
        path.chmod(0o644)  # systemd warns of a unit that not all may read
    except OSError as error:
        raise _unusable(path, error) from error
    return before is None


def remove_unit(path: Path) -> bool:
    """Take the unit away, and the link by which systemd starts it at a login; return whether there was one.

    Raises:
        AutotuneError: Somebody wrote or edited it, or it cannot be taken away.
    """
    link = path.parent / "default.target.wants" / path.name
    try:
        before = _read_ours(path)
        if before is not None:
            path.unlink()
        if link.is_symlink() and not link.exists():
            link.unlink()
    except OSError as error:
        raise _unusable(path, error) from error
    return before is not None


def _check_folder(folder: Path) -> None:
    """Raise an error if somebody else could write into the folder of the units: what is there gets started."""
    real = Path(os.path.realpath(folder))
    if why := why_not_ours(real, frozenset({os.geteuid()})) or why_exposed(real.parent):
        raise AutotuneError(
            f"no unit is written there: {why}",
            where=str(real),
            remedy="Whoever may write there can have programs started as you. If it is yours, close it (chmod go-w).",
        )


def _read_ours(path: Path) -> str | None:
    """Return the text of the present unit; None if there is none.

    Raises:
        AutotuneError: Somebody wrote or edited it; a link is in its place, or something else that is no file.
        OSError: It cannot be read.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise AutotuneError(
            f"the unit is a link to {os.readlink(path)}",
            where=str(path),
            remedy=f"A masked unit is a link to /dev/null: systemctl --user unmask {NAME}. Else take the link away.",
        )
    with open_regular(path) as file:
        text = os.fsdecode(file.read(_MOST_BYTES))
    match = _PARTS.fullmatch(text)
    if match is None or hashlib.sha256(os.fsencode(match[2])).hexdigest() != match[1]:
        written = "was edited since autotune wrote it" if match else "was not written by autotune"
        raise AutotuneError(
            f"this unit {written}",
            where=str(path),
            remedy=f"Move it away. Changes belong into a file beside it (systemctl --user edit {NAME}).",
        )
    return text


def _unusable(path: Path, error: OSError) -> AutotuneError:
    return AutotuneError(
        f"the unit cannot be changed: {error.strerror or error}",
        where=str(path),
        remedy="Check that its folder exists, may be written to, and has space.",
    )


_CARRIED = (VARIABLE, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
"""Variables that say where state and settings are: the user manager does not read the shell's start files."""

_PLAIN = re.compile(r"[\w/.:=+-]+", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\\'\"$]")
_PARTS = re.compile(r"(?:# [^\n]*\n)*# sha256 of what follows: ([0-9a-f]{64})\n(.*)", re.DOTALL)


def daemon_command(python: str) -> tuple[str, ...]:
    """Return the command that starts the daemon, for a process without any of this one's environment.

    Args:
        python: Absolute path of the interpreter.
    """
    # -P: a file autotune.py in the working directory, which is the user's home, must not be taken for us.
    return (python, "-P", "-m", "autotune", "daemon", "run")


def unit_text(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the text of the unit.

    Args:
        command: The command that starts the daemon; its first word is an absolute path.
        environ: The environment of whoever installs it: where state and settings are is taken over, nothing else.
    """
    lines = [f"Environment={_quoted(f'{name}={environ[name]}')}\n" for name in _CARRIED if environ.get(name)]
    head, begin, body = files(__package__).joinpath(NAME).read_text("utf-8").partition("[Unit]\n")
    body = begin + body.format(command=_command_line(command), environment="".join(lines))
    digest = hashlib.sha256(os.fsencode(body)).hexdigest()
    return head.format(version=__version__, digest=digest) + body


def _command_line(command: Sequence[str]) -> str:
    if _UNFIT.search(command[0]):  # systemd refuses such a program, but not such an argument
        command = ("/bin/sh", "-c", 'exec "$0" "$@"', *command)
    words = [word if _PLAIN.fullmatch(word) else _quoted(word).replace("$", "$$") for word in command]
    return " ".join(words)


def _quoted(word: str) -> str:
    """Return a word in quotes, with what systemd would read as an escape or a specifier (``%``) escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{"".join(map(_escaped, escaped))}"'


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


# The service manager of a running daemon, if it has one.


def hosted_by(environ: Mapping[str, str], *, is_service: bool) -> str:
    """Return how this process is hosted, in words."""
    if is_service:
        how = "a systemd user unit: started again when it fails; ends with your last session unless you linger"
    elif environ.get("TMUX") or environ.get("STY"):
        how = f"a {'tmux' if environ.get('TMUX') else 'screen'} session: runs until that, or the machine, ends"
    elif sys.stderr is not None and sys.stderr.isatty():
        how = "a terminal: ends with it, or with ^C"
    else:
        how = "a process in the background: nothing starts it again"
    return f"{how}; in a container" if is_in_container() else how


class ServiceManager:
    """Service manager of this process, if it has one; none of the methods raises. See sd_notify(3).

    Args:
        environ: The environment. The manager's variables are taken out of it, so that no child is taken for this
            process.

    Attributes:
        watchdog_s: Time within which it wants to hear of this process; None without a watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._alive_s = -math.inf
        name = environ.pop("NOTIFY_SOCKET", "")  # a path, or a name in the abstract namespace, which begins with @
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        for_pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        is_ours = self.is_there and for_pid in ("", str(os.getpid())) and microseconds.isdigit()
        self.watchdog_s = int(microseconds) / 1e6 or None if is_ours else None

    @property
    def is_there(self) -> bool:
        """True if a service manager started this process."""
        return bool(self._address)

    def alive(self) -> None:
        """Say that the service is alive if half of the watchdog's time has gone by; to be called in its loop."""
        now_s = self._clock.now_s()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / 2 and self.send("WATCHDOG=1"):
            self._alive_s = now_s

    def send(self, message: str) -> bool:
        """Send a message, see sd_notify(3); return whether it was taken."""
        if not self.is_there:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(0.2)  # a manager that reads no messages must not hold up the loop for longer
                sending.sendto(message.encode(), self._address)
        except OSError as error:
            _log.debug("the service manager does not listen: %s", error)
            return False
        return True
