"""Control of the daemon by commands: a pipe that wakes it, and a file in which it writes what it does.

Both are in the daemon's state folder, which is its user's alone. A command writes a word of its own into the pipe, and
reads the file until the word is in it: among those that were seen or, of a change to the queue, those that were
followed. While a daemon has the pipe open, the kernel lets a command open it; there is no other sign of life to keep.
"""

import errno
import json
import os
import select
import stat
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from autotune import __version__
from autotune.clock import Clock, SystemClock, format_duration
from autotune.daemon.home import DaemonHome, json_object
from autotune.errors import AutotuneError, DaemonAway
from autotune.files import create_private, read_beginning

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
