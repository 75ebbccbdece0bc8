"""Folders of the daemon, the lock of the one daemon of a user on a machine, and its control by commands."""

import errno
import fcntl
import json
import os
import select
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from autotune import __version__
from autotune.clock import Clock, SystemClock, format_duration
from autotune.errors import AutotuneError, DaemonAway
from autotune.files import create_private, json_object, make_private_folder, open_regular, read_beginning
from autotune.trial.user_folder import ELSEWHERE, TRAININGS, require_ours, unusable, user_folder


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
        self.trainings = state / TRAININGS  # folder of what watched trainings report
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


def locate_home(environ: Mapping[str, str]) -> DaemonHome:
    """Locate the folders of this user's daemon on this machine; nothing is made.

    Args:
        environ: The environment; see `user_folder`.

    Raises:
        AutotuneError: Somebody else could put something into the state folder, or replace it; or the variable names no
            absolute path.
    """
    return DaemonHome(state=user_folder(environ))


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
            raise unusable(folder, error.strerror) from error
        require_ours(folder)  # somebody else may have been faster
    if not os.access(home.state, os.W_OK | os.X_OK, effective_ids=True):
        raise unusable(home.state, "it is read-only")
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
            remedy=f"Take away what is in its place. {ELSEWHERE}",
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
                f"files cannot be locked there: {error.strerror}", where=str(home.lock), remedy=ELSEWHERE
            ) from error
        try:
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), b"%d" % os.getpid())
        except OSError as error:
            if error.errno != errno.ENOSPC:  # the number is only for the message to others
                raise unusable(home.lock, error.strerror) from error
        yield DaemonLock(path=home.lock, file=file)


# Control by commands: a pipe that wakes the daemon, and a file in which it writes what it does.
#
# Both are in the daemon's state folder, which is its user's alone. A command writes a word of its own into the pipe,
# and reads the file until the word is in it: among those that were seen or, of a change to the queue, those that were
# followed. While a daemon has the pipe open, the kernel lets a command open it; there is no other sign of life to keep.


_VERSION = 1
_WORD_BYTES = 8
_REMEMBERED = 256  # words: whoever wrote an earlier one has read the answer, or waits no more


class Control:
    """Control as the daemon has it; to be used in a ``with`` statement, by the holder of the daemon's lock.

    Raises:
        AutotuneError: The pipe cannot be made.
    """

    def __init__(self, home: DaemonHome) -> None:
        self._home = home
        self._pipe = _open_pipe(home.pipe)
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)
        self._followed: deque[str] = deque(maxlen=_REMEMBERED)
        self._written = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if _is_at(self._pipe, self._home.pipe):  # and not at that of another daemon, whose folder this is now
            for path in (self._home.pipe, self._home.status):
                path.unlink(missing_ok=True)
        os.close(self._pipe)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a command wakes the daemon, or the time is over; return whether one did."""
        if not select.select([self._pipe], [], [], timeout_s)[0]:
            return False
        for word in os.read(self._pipe, 1 << 16).decode("ascii", "replace").split():
            if len(word) == 2 * _WORD_BYTES:
                self._seen.append(word)
        return True

    def write(self, status: Mapping[str, Any], *, page: Mapping[str, str] | None, has_followed: bool) -> None:
        """Write what the daemon does, if it is something new; and make the pipe again if it was taken away.

        Args:
            page: Where its page is served, see `autotune.daemon.web.keys`; None without one.
            has_followed: Whether everything is as the queue says, as the daemon has seen it since it was last woken.

        Raises:
            AutotuneError: The pipe cannot be made.
            OSError: The file cannot be written.
        """
        if not _is_at(self._pipe, self._home.pipe):
            old, self._pipe = self._pipe, _open_pipe(self._home.pipe)
            os.close(old)
        if has_followed:
            self._followed.extend(word for word in self._seen if word not in self._followed)
        document = {
            "v": _VERSION,
            "autotune": __version__,
            "status": status,
            "page": page,
            "seen": list(self._seen),
            "followed": list(self._followed),
        }
        if (text := json.dumps(document)) == self._written and self._home.status.exists():
            return
        new = self._home.status.with_name("status.new")
        create_private(new, text.encode())
        os.replace(new, self._home.status)
        self._written = text


def ask(
    home: DaemonHome, *, to_follow: bool = False, timeout_s: float = 10.0, clock: Clock | None = None
) -> dict[str, Any]:
    """Wake the daemon of this user on this machine, and return what it then writes.

    Args:
        home: Folders of the daemon; they need not exist.
        to_follow: Whether to wait until it has followed a change to the queue: nothing runs that should not.

    Returns:
        Its document: ``status``, and ``page``.

    Raises:
        DaemonAway: No daemon runs; or it has ended since.
        AutotuneError: It does not answer in time, or is of another version.
    """
    clock = clock or SystemClock()
    over_s = clock.now_s() + timeout_s
    word = os.urandom(_WORD_BYTES).hex()
    _wake(home, word)
    while True:
        document = _read(home.status)
        if word in document.get("followed" if to_follow else "seen", ()):
            return document
        if clock.now_s() >= over_s:
            raise AutotuneError(
                f"the daemon did not answer within {format_duration(timeout_s)}",
                where=str(home.status),
                remedy="Run the command again; if it stays so, end the daemon and start it again.",
            )
        clock.wait(0.01)
        _wake(home, "")  # it may have ended


def _wake(home: DaemonHome, word: str) -> None:
    try:
        pipe = os.open(home.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR):
            raise AutotuneError(
                f"the daemon cannot be reached: {error.strerror}",
                where=str(home.pipe),
                remedy="`autotune daemon run` in a terminal says what is in its way.",
            ) from error
        raise DaemonAway(
            "no daemon of yours was found on this machine",
            where=str(home.pipe),
            remedy="Start it with `autotune daemon run`, or for good with `autotune daemon install --now`.",
        ) from None
    try:
        if word and stat.S_ISFIFO(os.fstat(pipe).st_mode):
            with suppress(BlockingIOError):  # it has not read for long: no answer will come
                os.write(pipe, f"\n{word}\n".encode())
    finally:
        os.close(pipe)


def _read(path: Path) -> dict[str, Any]:
    document = json_object(read_beginning(path, 1 << 26))
    if document and document.get("v") != _VERSION:
        raise AutotuneError(
            f"the daemon is of autotune {document.get('autotune')}, whose words this command (autotune {__version__}) "
            "does not know",
            where=str(path),
            remedy="Restart the daemon, so that it is of the version that you use: `systemctl --user restart "
            "autotune`, or end `autotune daemon run` and start it again.",
        )
    return document


def _open_pipe(path: Path) -> int:
    """Return the pipe, open to both sides, so that it has no end; made where it is not there."""
    try:
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return pipe
        os.close(pipe)
        why: str | None = "something that is no pipe is in its place"
    except OSError as error:
        why = error.strerror
    raise AutotuneError(
        f"the daemon's pipe cannot be made: {why}",
        where=str(path),
        remedy="Take away what is in its place, or name a folder on a local disk with AUTOTUNE_DAEMON_DIR.",
    )


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
