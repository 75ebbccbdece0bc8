"""Connections of the page's server: bounds on a request before anything of it is parsed, and on who holds connections.

uvicorn bounds requests (``limit_concurrency``) and idle time between two of them. A connection that never sends a whole
head counts as neither, a head that comes in one piece may be of any size, and for a client that takes nothing of an
answer it waits for ever. Each connection has one request here, so that its head is the first that it sends.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 96
"""Number of open connections with a session."""

MOST_STRANGERS = 256
"""Number of open connections without one, or of which that is not known yet."""

MOST_HEAD_BYTES = 16 << 10
MOST_HEAD_LINES = 100
MOST_BODY_BYTES = 1 << 14
STRANGER_S = 5.0
"""Time in which a head has to have come."""

SLOWEST_S = 15.0
"""Time in which a body has to have come, and for which a client may take nothing of an answer."""

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
_HEADER_BYTES, _UID_AT = 16, 80  # nlmsghdr; nlmsghdr and what stands before idiag_uid in inet_diag_msg
_ANY = 0xFFFFFFFF

_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Visitors:
    """Connections of a server: those with a session, and strangers, which have shown none yet.

    Too many strangers are cut, the oldest of the user first who has the most.

    Args:
        has_session: Returns whether the lines of a head hold a valid session; takes linear time.
    """

    def __init__(self, has_session: Callable[[list[bytes]], bool]) -> None:
        self._has_session = has_session
        self._known: set[BoundedProtocol] = set()
        self._strangers: dict[int | None, dict[BoundedProtocol, None]] = {}

    def add(self, one: "BoundedProtocol") -> None:
        """Hold one more stranger."""
        self._strangers.setdefault(one.uid, {})[one] = None
        if sum(map(len, self._strangers.values())) > MOST_STRANGERS:
            most: dict[BoundedProtocol, None] = max(self._strangers.values(), key=len)
            oldest = next(iter(most))
            self.discard(oldest)
            oldest.transport.abort()

    def let_in(self, one: "BoundedProtocol", head: bytes) -> bool:
        """Return whether a request with this head is answered: it is not where too many have a session."""
        if not self._has_session(head.splitlines()):
            return True  # to say so
        self.discard(one)
        if len(self._known) >= MOST_CONNECTIONS:
            return False
        self._known.add(one)
        return True

    def discard(self, one: "BoundedProtocol") -> None:
        """Hold one less."""
        self._known.discard(one)
        of_user = self._strangers.get(one.uid, {})
        of_user.pop(one, None)
        if not of_user:
            self._strangers.pop(one.uid, None)


class BoundedProtocol(H11Protocol):
    """Protocol of one connection, which is cut where its request is too long or too slow, or an answer is not taken.

    Attributes:
        uid: User at the other end; None where the system does not tell it, as of other machines.
    """

    uid: int | None = None

    def __init__(self, visitors: Visitors, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._visitors = visitors
        self._head = bytearray()
        self._left_bytes: int | None = None  # of a body, once the head is there
        self._late: asyncio.TimerHandle | None = None
        self._full: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.uid = _user_of(transport)
        self._late = self.loop.call_later(STRANGER_S, transport.abort)
        self._visitors.add(self)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._left_bytes is None:
            looked_at = max(0, len(self._head) - 2)
            self._head += data
            end = _END_OF_HEAD.search(self._head, looked_at)
            head = self._head[: end.end() if end else None]
            if len(head) > MOST_HEAD_BYTES or head.count(b"\n") > MOST_HEAD_LINES:
                self.transport.abort()
                return
            if not end:
                return
            if self._late is not None:
                self._late.cancel()
            self._late = self.loop.call_later(SLOWEST_S, self._cut_without_body)
            if not self._visitors.let_in(self, bytes(head)):
                self.transport.abort()
                return
            data, self._left_bytes = bytes(self._head), MOST_BODY_BYTES + len(head)
            self._head.clear()
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self.transport.abort()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._full):
            if timer is not None:
                timer.cancel()
        self._visitors.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client does not take what was sent."""
        super().pause_writing()
        self._full = self.loop.call_later(SLOWEST_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._full is not None:
            self._full.cancel()

    def _cut_without_body(self) -> None:
        cycle: Any = self.cycle
        if cycle is None or cycle.more_body:
            self.transport.abort()


def _user_of(transport: asyncio.Transport) -> int | None:
    """Return the user whose socket is at the other end of a TCP connection within this machine; see sock_diag(7)."""
    ends = [transport.get_extra_info(name) for name in ("peername", "sockname")]
    try:
        family = socket.AF_INET6 if ":" in ends[0][0] else socket.AF_INET
        ports = struct.pack("!HH", *(end[1] for end in ends))
        addresses = b"".join(socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in ends)
        wanted = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, _ANY) + ports + addresses
        wanted += struct.pack("=III", 0, _ANY, _ANY)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)  # it answers at once
            kernel.send(struct.pack("=IHHII", _HEADER_BYTES + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
            answer = kernel.recv(4096)
        (kind,) = struct.unpack_from("=H", answer, 4)
        uid, inode = struct.unpack_from("=II", answer, _UID_AT)
        return int(uid) if kind == _BY_FAMILY and inode else None  # one that is closed already is root's to the kernel
    except (OSError, TypeError, struct.error):  # it is gone already, or no system to ask
        return None
