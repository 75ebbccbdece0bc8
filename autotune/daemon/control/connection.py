"""One client of the daemon's socket: what it has sent so far, and what is still to be sent to it."""

import contextlib
import select
import socket
from enum import Enum, auto

from autotune.daemon.control.deferred import Deferred
from autotune.daemon.control.protocol import MOST_REQUEST_BYTES, BadRequest

_READ_BYTES = 1 << 16


class Stage(Enum):
    """Stage of a connection, which serves one request."""

    READING = auto()
    """The request is not whole yet."""
    WAITING = auto()
    """The answer is to be given later."""
    WRITING = auto()
    """The response is on its way."""
    OVER = auto()
    """It is closed."""


class Connection:
    """Connection of one client. No method blocks.

    Args:
        connected: The socket, which belongs to this object from here on.
        pid: Process of the client.
        now_s: The time.

    Attributes:
        pid: Process of the client.
        stage: What it is about.
        since_s: Time at which the stage began.
        deferred: The answer that is to be given later, while it is waited for.
        is_half_closed: Whether the client will send nothing more, but may still read.
    """

    def __init__(self, connected: socket.socket, pid: int | None, now_s: float) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.pid = pid
        self.stage = Stage.READING
        self.since_s = now_s
        self.deferred: Deferred | None = None
        self.is_half_closed = False
        self._received = bytearray()
        self._unsent = memoryview(b"")

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Read what is there.

        Returns:
            The request's line, once it is whole; None before.

        Raises:
            BadRequest: It is too large, or something follows it.
            OSError: The client is gone; `EOFError` if it went without a whole request.
        """
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        if self.stage is Stage.WAITING:
            if chunk:
                raise BadRequest("protocol", "something follows the request")
            self.is_half_closed = True
            return None
        if not chunk:
            raise EOFError
        position = chunk.find(b"\n")
        if position < 0:
            self._received += chunk
            if len(self._received) >= MOST_REQUEST_BYTES:
                raise _too_large()
            return None
        if len(self._received) + position >= MOST_REQUEST_BYTES:
            raise _too_large()
        line = bytes(self._received + chunk[:position])
        self._received = bytearray()
        return line

    def wait_for(self, deferred: Deferred, now_s: float) -> None:
        """Note that the answer comes later."""
        self.deferred = deferred
        self._enter(Stage.WAITING, now_s)

    def respond(self, response: bytes, now_s: float) -> None:
        """Begin to send the response; `send` goes on with it."""
        self.deferred = None
        self._received = bytearray()
        self._unsent = memoryview(response)
        self._enter(Stage.WRITING, now_s)

    def send(self) -> bool:
        """Send what the client takes.

        Returns:
            Whether that was the rest.

        Raises:
            OSError: The client is gone.
        """
        while self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return False
        return True

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes of the response that the client has not taken."""
        return len(self._unsent)

    def has_hung_up(self) -> bool:
        """Return whether nobody can read the response any more."""
        poller = select.poll()
        poller.register(self._socket, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))

    def close(self, farewell: bytes | None = None) -> None:
        """Close the connection; whoever was to answer is told that nobody waits any more.

        Args:
            farewell: Response to send if the client takes it at once.
        """
        if self.stage is Stage.OVER:
            return
        if farewell is not None and self.stage is not Stage.WRITING:
            with contextlib.suppress(OSError):
                self._socket.send(farewell)
        self.stage = Stage.OVER
        self._unsent = memoryview(b"")
        self._socket.close()
        if self.deferred is not None:
            self.deferred.abandon()

    def _enter(self, stage: Stage, now_s: float) -> None:
        self.stage, self.since_s = stage, now_s


def _too_large() -> BadRequest:
    return BadRequest("too_large", f"the request is larger than {MOST_REQUEST_BYTES >> 20} MiB")
