"""Folders and lock of the one daemon per user and machine, and requests by commands."""

import errno
import fcntl
import json
import os
import select
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from autotune import __version__
from autotune.clock import SystemClock, format_duration
from autotune.errors import AutotuneError, DaemonAway
from autotune.files import create_private, json_object, make_private_folder, open_regular, read_beginning
from autotune.trial.user_folder import ELSEWHERE, TRAININGS, require_ours, unusable, user_folder


class DaemonHome:
    """Paths of a user's daemon on this machine."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.lock = state / "lock"
        self.pipe = state / "wake"  # pipe by which commands wake the daemon
        self.status = state / "status.json"  # status that a running daemon writes
        self.queue = state / "queue"
        self.trainings = state / TRAININGS  # folder of reports by watched trainings
        self.advice = state / "advice"
        self.web_token = state / "web-token"  # token of the page and the metrics
        self.notify_log = state / "notify.log"  # output of the user's notify command


def locate_home(environ: Mapping[str, str]) -> DaemonHome:
    """Locate the folders without creating them; raises as `user_folder`."""
    return DaemonHome(state=user_folder(environ))


def open_home(environ: Mapping[str, str]) -> DaemonHome:
    """Create the private folders.

    Raises:
        AutotuneError: As `locate_home`, or a folder can't be created or written.
    """
    home = locate_home(environ)
    for folder in (home.state.parent, home.state, home.queue, home.trainings, home.advice):
        try:
            if folder != home.state.parent or not folder.exists():  # an existing parent may hold other files
                make_private_folder(folder)
        except OSError as error:
            raise unusable(folder, error.strerror) from error
        require_ours(folder)  # another user may have created it first
    if not os.access(home.state, os.W_OK | os.X_OK, effective_ids=True):
        raise unusable(home.state, "it is read-only")
    return home


@contextmanager
def sole_daemon(home: DaemonHome) -> Iterator[Callable[[], bool]]:
    """Hold the lock, which the kernel frees when the process ends; yield a test if its file is still there.

    Raises:
        AutotuneError: Another daemon is running, or the lock file can't be used.
    """
    with open_regular(home.lock, append=True, create=True) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            number = file.read(20)
            holder = f" (process {int(number)})" if number.isdigit() else ""
            raise AutotuneError(
                f"a daemon is already running{holder}",
                where=str(home.lock),
                remedy="`autotune daemon status` shows its status. To start another one, stop it with ^C in its "
                "terminal, or with `systemctl --user stop autotune`.",
            ) from None
        except OSError as error:  # some network file systems don't support locks
            raise AutotuneError(
                f"this file system does not support locks: {error.strerror}", where=str(home.lock), remedy=ELSEWHERE
            ) from error
        with suppress(OSError):  # the process id is only for the error message above
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), b"%d" % os.getpid())
        yield lambda: _is_at(file.fileno(), home.lock)


# Requests by commands: a pipe wakes the daemon, and a status file holds its answer.
#
# Both are in the daemon's private state folder. A command writes a random request id to the pipe, then reads the file
# until the id is in ``seen`` or, after a change to the queue, in ``followed``. A command can open the pipe only while a
# daemon has it open, so no heartbeat is needed.


_VERSION = 1
_REQUEST_BYTES = 8
_MAX_REQUESTS = 256  # remembered; older requests have been answered or have timed out


class Control:
    """Daemon's side of requests, for the holder of its lock."""

    def __init__(self, home: DaemonHome) -> None:
        self._home = home
        self._pipe = _open_pipe(home.pipe)
        self._seen: deque[str] = deque(maxlen=_MAX_REQUESTS)
        self._followed: deque[str] = deque(maxlen=_MAX_REQUESTS)
        self._written = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if _is_at(self._pipe, self._home.pipe):  # otherwise another daemon uses this folder now
            for path in (self._home.pipe, self._home.status):
                path.unlink(missing_ok=True)
        os.close(self._pipe)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request; return False after the timeout."""
        if not select.select([self._pipe], [], [], timeout_s)[0]:
            return False
        for request in os.read(self._pipe, 1 << 16).decode("ascii", "replace").split():
            if len(request) == 2 * _REQUEST_BYTES:
                self._seen.append(request)
        return True

    def write(self, status: Mapping[str, Any], *, page: Mapping[str, str] | None, has_followed: bool) -> None:
        """Write the status file if it changes, and recreate a removed pipe.

        Args:
            has_followed: Whether the queue has been applied since the last request.
        """
        if not _is_at(self._pipe, self._home.pipe):
            old, self._pipe = self._pipe, _open_pipe(self._home.pipe)
            os.close(old)
        if has_followed:
            self._followed.extend(request for request in self._seen if request not in self._followed)
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


def ask(home: DaemonHome, *, to_follow: bool = False, timeout_s: float = 10.0) -> dict[str, Any]:
    """Wake the daemon; return the document that it then writes, with ``status`` and ``page``.

    Args:
        to_follow: Whether to wait until it has applied a change to the queue.
        timeout_s: Stopping a search takes up to 3 s.

    Raises:
        DaemonAway: No daemon is running, or it ended.
        AutotuneError: It doesn't answer in time, or has another version.
    """
    clock = SystemClock()
    deadline_s = clock.now_s() + timeout_s
    request = os.urandom(_REQUEST_BYTES).hex()
    _wake(home, request)
    while True:
        document = _read(home.status)
        if request in document.get("followed" if to_follow else "seen", ()):
            return document
        if clock.now_s() >= deadline_s:
            raise AutotuneError(
                f"the daemon did not answer within {format_duration(timeout_s)}",
                where=str(home.status),
                remedy="Run the command again; if that fails, restart the daemon.",
            )
        clock.wait(0.01)
        _wake(home, "")  # raises if the daemon has ended


def _wake(home: DaemonHome, request: str) -> None:
    try:
        pipe = os.open(home.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR):
            remedy = "To find the cause, start it in a terminal: `autotune daemon run`."
            why = f"the daemon cannot be reached: {error.strerror}"
            raise AutotuneError(why, where=str(home.pipe), remedy=remedy) from error
        raise DaemonAway(
            "found no daemon of this user on this machine",
            where=str(home.pipe),
            remedy="Start it with `autotune daemon run`, or at each login with `autotune daemon install --now`.",
        ) from None
    try:
        if request and stat.S_ISFIFO(os.fstat(pipe).st_mode):
            with suppress(BlockingIOError):  # the pipe is full: a hanging daemon won't answer
                os.write(pipe, f"\n{request}\n".encode())
    finally:
        os.close(pipe)


def _read(path: Path) -> dict[str, Any]:
    document = json_object(read_beginning(path, 1 << 26))
    if document and document.get("v") != _VERSION:
        raise AutotuneError(
            f"version mismatch: the daemon is autotune {document.get('autotune')}, this command autotune {__version__}",
            where=str(path),
            remedy="Restart the daemon: `systemctl --user restart autotune`, or `autotune daemon run` again.",
        )
    return document


def _open_pipe(path: Path) -> int:
    """Open the pipe, created if missing, for both directions, so that it has no end of file."""
    try:
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return pipe
        os.close(pipe)
        why: str | None = "the path is not a pipe"
    except OSError as error:
        why = error.strerror
    remedy = "Remove what is at this path, or set AUTOTUNE_DAEMON_DIR to a folder on a local disk."
    raise AutotuneError(f"the daemon's pipe cannot be created: {why}", where=str(path), remedy=remedy)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
