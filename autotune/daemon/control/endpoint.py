"""Socket file of the daemon: made and found so that nobody else can listen in its place, or speak through it.

Both sides open the folder first, check its owner, and name the socket as ``/proc/self/fd/N/socket``: no folder on the
way can be replaced meanwhile, and the path fits into the 107 bytes that a socket's path may have, however long it is.
"""

import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.daemon.home import DaemonHome
from autotune.errors import AutotuneError
from autotune.files import create_private, make_private_folder, read_beginning

_BACKLOG = 256
_CREDENTIALS = struct.Struct("iII")  # ucred of unix(7): process, user, group
_LONGEST_PATH_BYTES = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Process at the other end of a connection.

    Attributes:
        pid: Its id; None if it is not visible from here.
        uid: Its effective user when it connected, or began to listen.
    """

    pid: int | None
    uid: int


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Listening socket and its file.

    Attributes:
        socket: The socket, non-blocking.
        path: Its file.
        inode: Device and inode of the file.
    """

    socket: socket.socket
    path: Path
    inode: tuple[int, int]

    @property
    def is_there(self) -> bool:
        """True while the file leads to this socket; the system may take the runtime folder away at a logout."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.inode

    def close(self) -> None:
        """Close the socket, and take its file away."""
        if self.is_there:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.socket.close()


def peer_of(connected: socket.socket) -> Peer:
    """Return the process at the other end, as the kernel knows it.

    Raises:
        OSError: The kernel does not tell.
    """
    pid, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid=pid or None, uid=uid)


def is_trusted(peer: Peer) -> bool:
    """Return whether a process may speak with the daemon: one of its user's, or of root's."""
    return peer.uid in (os.geteuid(), 0)


def listen(home: DaemonHome) -> Listener:
    """Make the daemon's socket, and write down where it is.

    To be called by the holder of the daemon's lock only: the socket of a daemon that was killed is replaced.

    Raises:
        AutotuneError: It cannot be made, in the runtime folder or in the state folder.
    """
    trouble: OSError | None = None
    for folder in dict.fromkeys((home.runtime, home.own_runtime)):
        if not folder.parents[1].is_dir():  # the system's, gone with the last login: it is not ours to make
            continue
        try:
            make_private_folder(folder)
            listener = _listen(folder / home.socket.name)
        except OSError as error:
            trouble = trouble or error
            continue
        _publish(home, listener.path)
        return listener
    why = "its folder is gone" if trouble is None else trouble.strerror or str(trouble)
    raise AutotuneError(
        f"the daemon's socket cannot be made: {why}",
        where=str(home.socket),
        remedy="Take away what is in its place, or name a folder on a local disk with AUTOTUNE_DAEMON_DIR.",
    ) from trouble


def withdraw(home: DaemonHome) -> None:
    """Take away what `listen` has written down."""
    with contextlib.suppress(OSError):
        home.address.unlink(missing_ok=True)


def places(home: DaemonHome) -> tuple[Path, ...]:
    """Return the paths at which the daemon's socket may be, the likeliest first."""
    written = read_beginning(home.address, _LONGEST_PATH_BYTES).removesuffix(b"\n")
    named = (Path(os.fsdecode(written)),) if written.startswith(b"/") and b"\0" not in written else ()
    return tuple(dict.fromkeys((*named, home.socket, home.own_runtime / home.socket.name)))


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connect to the daemon's socket.

    Args:
        path: The socket.
        timeout_s: Time limit of the socket's operations from here on.

    Raises:
        OSError: Nobody listens there; `BlockingIOError` if too many are about to connect.
        AutotuneError: Somebody else's folder or process is in its place.
    """
    with _opened(path.parent) as folder:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout_s)
            connected.connect(f"/proc/self/fd/{folder}/{path.name}")
            peer = peer_of(connected)
        except BaseException:
            connected.close()
            raise
    if not is_trusted(peer):
        connected.close()
        raise AutotuneError(
            f"a process of another user (number {peer.uid}) listens in the daemon's place",
            where=str(path),
            remedy="Do not use this socket; tell whoever administers this machine.",
        )
    return connected


def _listen(path: Path) -> Listener:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _opened(path.parent) as folder:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise FileExistsError(None, "something that is no socket is in its place", str(path))
                os.unlink(path.name, dir_fd=folder)
            before = os.umask(0o177)
            try:
                listening.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.umask(before)
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return Listener(socket=listening, path=path, inode=(status.st_dev, status.st_ino))


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder, and check that only this user may write to it.

    Raises:
        OSError: It cannot be opened, or is a link.
        AutotuneError: It is not this user's alone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise AutotuneError(
                f"the folder of the daemon's socket is not this user's alone ({stat.filemode(status.st_mode)}, user "
                f"{status.st_uid})",
                where=str(folder),
                remedy="If it is yours, close it (chmod 700); else name another place with AUTOTUNE_DAEMON_DIR.",
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _publish(home: DaemonHome, path: Path) -> None:
    """Write down where the socket is; without that only clients with the daemon's environment find it."""
    new = home.address.with_name("address.new")
    try:
        create_private(new, os.fsencode(path) + b"\n")
        os.replace(new, home.address)
    except OSError as error:
        _log.warning("%s cannot be written: %s", home.address, error.strerror)
