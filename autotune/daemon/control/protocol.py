"""Messages between the daemon and its clients: one JSON object a line, one request and one response a connection.

Request: ``{"v": 1, "op": "status", "args": {...}}``. Response: ``{"v": 1, "autotune": "0.1.0", "ok": true, "result":
{...}}``, or ``{..., "ok": false, "error": {"kind", "message", "where", "remedy"}}``. Of a message of another version,
``v`` and ``error`` are understood all the same, so that each side can say what is the matter.
"""

import contextlib
import json
import logging
import math
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autotune import __version__
from autotune.daemon.home import DaemonHome
from autotune.errors import AutotuneError
from autotune.files import create_private, make_private_folder, read_beginning

VERSION = 1
"""Version of the protocol."""

MOST_REQUEST_BYTES = 1 << 20
MOST_RESPONSE_BYTES = 1 << 26
_LONGEST_OP = 64
RESTART = (
    "Restart the daemon, so that it is of the version that you use: `systemctl --user restart autotune`, or end "
    "`autotune daemon run` and start it again."
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a client.

    Attributes:
        args: Its arguments, as they came: types and values are to be checked.
        pid: Process that asks; None if it is not visible from here.
    """

    op: str
    args: Mapping[str, Any]
    pid: int | None = None


class BadRequest(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Refusal of a request that cannot be understood."""

    def __init__(self, kind: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.response = error_response(kind, message, remedy=remedy)


def encode_request(op: str, args: Mapping[str, Any]) -> bytes:
    """Return the line of a request."""
    return _line({"v": VERSION, "op": op, "args": dict(args)})


def decode_request(line: bytes, pid: int | None) -> Request:
    """Parse the line of a request, which anything may have been written into.

    Raises:
        BadRequest: It is no request of this version.
    """
    try:
        message = json.loads(line, parse_int=_whole, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise BadRequest("protocol", "the request is nested too deeply") from None
    except ValueError as error:  # no JSON, no UTF-8, a number that is none
        raise BadRequest("protocol", f"the request is no JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise BadRequest("protocol", "the request is no JSON object")
    _check_version(message.get("v"))
    op, args = message.get("op"), message.get("args", {})
    if not isinstance(op, str) or not 0 < len(op) <= _LONGEST_OP or not op.isprintable():
        raise BadRequest("protocol", "the request names no operation (op)")
    if not isinstance(args, dict):
        raise BadRequest("protocol", "the arguments of the request (args) are no JSON object")
    if _is_deep(args, 32):
        raise BadRequest("protocol", "the request is nested too deeply")
    return Request(op=op, args=args, pid=pid)


def result_response(result: Mapping[str, Any]) -> bytes:
    """Return the line of a response.

    Raises:
        TypeError: The result holds what JSON cannot.
        ValueError: The same; NaN for one.
        RecursionError: The result is nested too deeply.
    """
    return _line({"v": VERSION, "autotune": __version__, "ok": True, "result": dict(result)})


def error_response(kind: str, message: str, *, where: str | None = None, remedy: str | None = None) -> bytes:
    """Return the line of a response that says what is wrong."""
    error = {"kind": kind, "message": message, "where": where, "remedy": remedy}
    return _line({"v": VERSION, "autotune": __version__, "ok": False, "error": error})


def response_of(error: AutotuneError) -> bytes:
    """Return the line of a response for an expected error."""
    return error_response(error.kind, error.message, where=error.where, remedy=error.remedy)


def decode_response(line: bytes) -> dict[str, Any]:
    """Parse the line of a response.

    Returns:
        The result.

    Raises:
        AutotuneError: The error that the daemon answered with, its kind included; or the line is no response of this
            version.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AutotuneError("the daemon's answer cannot be understood", remedy=RESTART) from error
    if not isinstance(message, dict):
        raise AutotuneError("the daemon's answer cannot be understood", remedy=RESTART)
    told = message.get("error")
    if isinstance(told, dict):
        raise _told(told)
    if message.get("v") != VERSION or message.get("ok") is not True or not isinstance(message.get("result"), dict):
        raise AutotuneError(
            f"the daemon (autotune {message.get('autotune')}) speaks version {message.get('v')} of the protocol, and "
            f"this command (autotune {__version__}) version {VERSION}",
            remedy=RESTART,
        )
    result: dict[str, Any] = message["result"]
    return result


def unknown_operation(request: Request, known: Iterable[str]) -> AutotuneError:
    """Return the error for an operation that this daemon does not have; a newer command may ask for it."""
    return AutotuneError(
        f"the daemon (autotune {__version__}) has no operation {request.op!r}; it has {', '.join(sorted(known))}",
        remedy=RESTART,
    )


def _check_version(version: object) -> None:
    if version == VERSION and not isinstance(version, bool):
        return
    if isinstance(version, bool) or not isinstance(version, int):
        raise BadRequest("protocol", "the request does not say its version (v)")
    is_newer = version > VERSION
    raise BadRequest(
        "version",
        f"the daemon (autotune {__version__}) speaks version {VERSION} of the protocol, and this command version "
        f"{version}",
        RESTART if is_newer else f"Use autotune {__version__}, which the daemon is of. Or: {RESTART}",
    )


def _told(told: Mapping[str, Any]) -> AutotuneError:
    kind, message, where, remedy = (told.get(name) for name in ("kind", "message", "where", "remedy"))
    error = AutotuneError(
        str(message),
        where=where if isinstance(where, str) else None,
        remedy=remedy if isinstance(remedy, str) else None,
    )
    error.kind = str(kind)
    return error


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _whole(text: str) -> int:
    if len(text) > 19 + 1:  # of 64 bits; what is longer is no number that anybody counts with
        raise ValueError("a number in it has too many digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number in it is too large")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _is_deep(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        inside: Iterable[object] = value.values()
    elif isinstance(value, list):
        inside = value
    else:
        return False
    return levels == 0 or any(isinstance(item, dict | list) and _is_deep(item, levels - 1) for item in inside)


_CREDENTIALS = struct.Struct("iII")  # ucred of unix(7): process, user, group
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
    """Listening socket and its file."""

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
    written = read_beginning(home.address, 4096).removesuffix(b"\n")
    named = (Path(os.fsdecode(written)),) if written.startswith(b"/") and b"\0" not in written else ()
    return tuple(dict.fromkeys((*named, home.socket, home.own_runtime / home.socket.name)))


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connect to the daemon's socket.

    Args:
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
        listening.listen(256)
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
