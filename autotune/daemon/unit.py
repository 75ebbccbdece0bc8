"""Text of the systemd unit that starts the daemon for its user: written by ``autotune daemon install``.

It holds no secret, and begins with a hash of the rest, which tells a unit that somebody has edited since.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from autotune import __version__
from autotune.daemon.home import VARIABLE

NAME = "autotune.service"

_CARRIED = (VARIABLE, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
"""Variables that say where state and settings are: the user manager does not read the shell's start files."""

_HEAD = """\
# Written by `autotune daemon install` (autotune {version}), which writes it anew when it is asked again.
# Changes belong into a file beside it: systemctl --user edit autotune.service
# sha256 of what follows: {digest}
"""
_BODY = """\
[Unit]
Description=autotune: tunes configs on idle GPUs, watches trainings
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
{environment}WatchdogSec=60
TimeoutStartSec=60
TimeoutStopSec=20
Restart=on-failure
RestartSec=5
# What autotune exits with when it is told to end (130, 143), and when it was started wrongly (2).
SuccessExitStatus=130 143
RestartPreventExitStatus=2
# A search is a process of its own, which ends by itself after its running trial; without this it would be killed.
KillMode=process
# A trial that runs out of memory is the search's business, and no reason to stop the daemon.
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
_PLAIN = re.compile(r"[\w/.:=+-]+", re.ASCII)
_UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\\'\"$]")
_PARTS = re.compile(r"(?:# [^\n]*\n)*# sha256 of what follows: ([0-9a-f]{64})\n(.*)", re.DOTALL)


class UnitOrigin(Enum):
    """Origin of a unit file."""

    OURS = auto()
    """Written by this program, and as it was then."""
    EDITED = auto()
    """Written by this program, and edited since."""
    FOREIGN = auto()
    """Written by somebody else."""


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
    body = _BODY.format(command=_command_line(command), environment="".join(lines))
    digest = hashlib.sha256(os.fsencode(body)).hexdigest()
    return _HEAD.format(version=__version__, digest=digest) + body


def origin_of(text: str) -> UnitOrigin:
    """Return who a unit's text is from."""
    match = _PARTS.fullmatch(text)
    if match is None:
        return UnitOrigin.FOREIGN
    is_whole = hashlib.sha256(os.fsencode(match[2])).hexdigest() == match[1]
    return UnitOrigin.OURS if is_whole else UnitOrigin.EDITED


def _command_line(command: Sequence[str]) -> str:
    """Return a command as ``ExecStart=`` takes it; see systemd.service(5), "Command lines"."""
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
