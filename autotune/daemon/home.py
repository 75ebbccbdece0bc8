"""Folders of the daemon, and the lock by which there is one daemon for each user and machine.

Home folders may be shared between machines, so that each machine has a folder of its own in the state folder.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from autotune.errors import AutotuneError
from autotune.files import make_private_folder, open_regular
from autotune.trial.folders import user_state_folder, why_exposed, why_not_ours

VARIABLE = "AUTOTUNE_DAEMON_DIR"
"""Variable that names the folder of all state of the daemon."""

_ELSEWHERE = f"Name a place that is yours alone, on a local disk, with {VARIABLE}."


class DaemonHome:
    """Folders and files of a user's daemon on this machine.

    Args:
        state: Folder of what is kept.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.lock = state / "lock"  # file that the one daemon holds
        self.pipe = state / "wake"  # pipe by which commands wake the daemon
        self.status = state / "status.json"  # file in which a running daemon writes what it does
        self.queue = state / "queue"
        self.trainings = state / "trainings"  # folder of what watched trainings report
        self.advice = state / "advice"
        self.web_token = state / "web-token"  # file that holds the token of the page and of the metrics
        self.notify_log = state / "notify.log"  # log of the user's command that is told of events


@dataclass(frozen=True, kw_only=True)
class DaemonLock:
    """Lock of the one daemon, held."""

    path: Path
    file: BinaryIO

    @property
    def is_lost(self) -> bool:
        """True if the lock file was taken away, with the state folder perhaps: another daemon could start."""
        try:
            return not os.path.samestat(os.lstat(self.path), os.fstat(self.file.fileno()))
        except OSError:
            return True


def json_object(text: bytes) -> dict[str, Any]:
    """Return the object of a JSON text; an empty one for anything else, such as a torn line."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def locate_home(environ: Mapping[str, str]) -> DaemonHome:
    """Locate the folders of this user's daemon on this machine; nothing is made.

    Args:
        environ: The environment. The state is kept in ``$AUTOTUNE_DAEMON_DIR``, else in ``autotune/daemon`` in
            ``$XDG_STATE_HOME`` or ``~/.local/state``, in a folder named like the machine.

    Raises:
        AutotuneError: Somebody else could put something into the state folder, or replace it; or the variable names no
            absolute path.
    """
    named = environ.get(VARIABLE)
    if named and not os.path.isabs(named):
        raise AutotuneError(
            f"{VARIABLE} is {named!r}, which depends on where a command is typed",
            where=VARIABLE,
            remedy="Name an absolute path.",
        )
    place = _own(Path(named) if named else user_state_folder(environ) / "daemon")
    state = place / _machine(os.uname().nodename)
    _check(state)
    return DaemonHome(state=state)


def open_home(environ: Mapping[str, str]) -> DaemonHome:
    """Locate the folders of this user's daemon on this machine, and make them, for this user alone.

    Raises:
        AutotuneError: As `locate_home`; or a folder cannot be made or written to.
    """
    home = locate_home(environ)
    for folder in (home.state.parent, home.state, home.queue, home.trainings, home.advice):
        try:
            if folder != home.state.parent or not folder.exists():  # which may be a folder with other things in it
                make_private_folder(folder)
        except OSError as error:
            raise _unusable(folder, error.strerror) from error
        _check(folder)  # somebody else may have been faster
    if not os.access(home.state, os.W_OK | os.X_OK, effective_ids=True):
        raise _unusable(home.state, "it is read-only")
    return home


@contextmanager
def sole_daemon(home: DaemonHome) -> Iterator[DaemonLock]:
    """Hold the lock of the one daemon of this user on this machine; the kernel frees it when its holder dies.

    Raises:
        AutotuneError: A daemon runs already, or the lock file cannot be used.
    """
    try:
        opened = open_regular(home.lock, append=True, create=True)
    except OSError as error:
        raise AutotuneError(
            f"the lock of the daemon cannot be used: {error.strerror}",
            where=str(home.lock),
            remedy=f"Take away what is in its place. {_ELSEWHERE}",
        ) from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            number = file.read(20)
            holder = f" (process {int(number)})" if number.isdigit() else ""
            raise AutotuneError(
                f"a daemon runs already{holder}",
                where=str(home.lock),
                remedy="`autotune daemon status` shows what it does. To start another one, end it first: with ^C in "
                "its terminal, or `systemctl --user stop autotune`.",
            ) from None
        except OSError as error:  # some network file systems have none
            raise AutotuneError(
                f"files cannot be locked there: {error.strerror}", where=str(home.lock), remedy=_ELSEWHERE
            ) from error
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), b"%d" % os.getpid())
        except OSError as error:
            if error.errno != errno.ENOSPC:  # the number is only for the message to others
                raise _unusable(home.lock, error.strerror) from error
        yield DaemonLock(path=home.lock, file=file)


def _own(place: Path) -> Path:
    """Return a folder with its links resolved, if nobody else could plant something in it or replace it.

    Raises:
        AutotuneError: Somebody could.
    """
    try:
        is_planted = place.is_symlink() and place.lstat().st_uid not in (os.geteuid(), 0)
        real = Path(os.path.realpath(place))
    except (OSError, RuntimeError) as error:
        raise _unusable(place, getattr(error, "strerror", None) or str(error)) from error
    if is_planted:
        raise _not_ours(place, "it is a link that another user made")
    if why := why_exposed(real.parent):
        raise _not_ours(real, why)
    _check(real)
    return real


def _check(folder: Path) -> None:
    """Raise an error if a folder exists and is not this user's alone."""
    if why := why_not_ours(folder, frozenset({os.geteuid()})):
        raise _not_ours(folder, why)


def _machine(node: str) -> str:
    """Return a machine's name as part of a path; one that had to be changed ends in a hash of the original."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", node).lstrip(".")[:64]
    if safe == node and node:
        return node
    return f"{safe or 'machine'}-{hashlib.sha256(os.fsencode(node)).hexdigest()[:8]}"


def _not_ours(folder: Path, why: str) -> AutotuneError:
    return AutotuneError(
        f"the daemon's folder is not used: {why}",
        where=str(folder),
        remedy=f"Whoever may write to it could have code of theirs run. If it is yours, close it (chmod go-w). "
        f"{_ELSEWHERE}",
    )


def _unusable(folder: Path, why: str | None) -> AutotuneError:
    return AutotuneError(f"the daemon's folder cannot be written: {why}", where=str(folder), remedy=_ELSEWHERE)
