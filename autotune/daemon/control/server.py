"""Server side of the daemon's socket: one thread, no operation that blocks, limits on what clients may take up.

Clients are processes of the same user, yet one that hangs, is stopped or has a bug must keep neither the daemon from
its work nor other clients from an answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

from autotune.clock import Clock, SystemClock
from autotune.daemon.control.protocol import (
    MOST_REQUEST_BYTES,
    BadRequest,
    Request,
    decode_request,
    error_response,
    is_trusted,
    listen,
    peer_of,
    response_of,
    result_response,
    withdraw,
)
from autotune.daemon.home import DaemonHome
from autotune.errors import AutotuneError
from autotune.limits import expected

_log = logging.getLogger(__name__)


class Deferred:
    """Answer to one request that is given later, e.g. when a search has stopped; the client waits meanwhile.

    All its methods belong to the thread that serves.

    Attributes:
        is_abandoned: Whether nobody waits for it any more: the client is gone, or the daemon ends.
    """

    def __init__(self) -> None:
        self.is_abandoned = False
        self._response: bytes | None = None
        self._deliver: Callable[[bytes], None] | None = None

    @property
    def is_given(self) -> bool:
        """True once there is an answer."""
        return self._response is not None

    def complete(self, result: Mapping[str, Any]) -> None:
        """Answer the request; nothing happens if it was answered already, or nobody waits."""
        self._give(response_for(result))

    def fail(self, error: AutotuneError) -> None:
        """Answer the request with an error; see `complete`."""
        self._give(response_of(error))

    def when_given(self, deliver: Callable[[bytes], None]) -> None:
        """Set the function that sends the response; it is called at once if there is one."""
        self._deliver = deliver
        if self._response is not None:
            deliver(self._response)

    def abandon(self) -> None:
        """Note that nobody waits any more."""
        self.is_abandoned = True
        self._deliver = None

    def _give(self, response: bytes) -> None:
        if self._response is not None:
            return
        self._response = response
        if self._deliver is not None:
            self._deliver(response)


def response_for(result: Mapping[str, Any]) -> bytes:
    """Return the response for a result; for one that JSON cannot hold, that this is a bug."""
    try:
        return result_response(result)
    except (TypeError, ValueError, RecursionError) as error:
        _log.exception("the answer to a request cannot be sent")
        return bug_response(error)


def bug_response(error: Exception) -> bytes:
    """Return the response for an error that nobody expected; the log has its traceback."""
    return error_response(
        "bug",
        f"this is a bug of the daemon: {type(error).__name__}: {str(error)[:500]}",
        remedy="The daemon goes on; its log has the details. Please report them.",
    )


Answer = Callable[[Request], Mapping[str, Any] | Deferred]
MOST_CONNECTIONS = 64
MOST_WAITING = 48
"""Most clients that wait for a deferred answer: the rest of the connections is for those that are answered at once."""

REQUEST_S = 10.0
"""Time limit for a client to send its whole request."""

RESPONSE_S = 30.0
"""Time limit for a client to take its whole response."""

MOST_UNSENT_BYTES = 16 << 20
"""Most that is kept for clients that read slowly, all together."""

_BUSY = error_response(
    "busy", "the daemon has too many clients", remedy="Run the command again; end commands that hang."
)


class ControlServer:
    """Server of requests to the daemon; to be used in a ``with`` statement, by the holder of the daemon's lock.

    Args:
        home: Folders of the daemon; the socket is made at once.
        answer: Answers a request, at once or with a `Deferred`. An `AutotuneError` that it raises is sent to the
            client; any other error is logged, and the client is told that it is a bug.

    Raises:
        AutotuneError: The socket cannot be made.
    """

    def __init__(self, home: DaemonHome, answer: Answer, clock: Clock | None = None) -> None:
        self._home = home
        self._answer = answer
        self._clock = clock or SystemClock()
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._answered = 0
        self._deaf_until_s: float | None = None
        self._refused_s: float | None = None
        self._checked_s = self._clock.now_s()
        self._listener = listen(home)
        self._selector.register(self._listener.socket, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable while `serve` has something to do, for the selector of a larger loop."""
        return self._selector.fileno()

    def serve(self, timeout_s: float) -> int:
        """Serve clients; return after the time is over, or earlier when a request was answered.

        Args:
            timeout_s: Longest time to wait for clients; 0 serves those that are there.

        Returns:
            The number of requests that were handed to `answer`.
        """
        over_s = self._clock.now_s() + timeout_s
        answered_before = self._answered
        while True:
            now_s = self._clock.now_s()
            self._look_after_socket(now_s)
            wait_s = max(over_s - now_s, 0.0)
            if self._connections or self._deaf_until_s is not None:
                wait_s = min(wait_s, 1.0)  # between looks at the time limits, while there are clients
            for key, _ in self._selector.select(wait_s):
                if isinstance(key.fileobj, Connection):
                    self._serve_one(key.fileobj)
                else:
                    self._accept()
            self._expire()
            if self._answered > answered_before or self._clock.now_s() >= over_s:
                return self._answered - answered_before

    def close(self) -> None:
        """Tell waiting clients that the daemon ends, and take the socket away."""
        withdraw(self._home)
        self._listener.close()
        stopping = error_response(
            "stopping", "the daemon is ending", remedy="What it had begun is in its queue; start it again."
        )
        for connection in list(self._connections):
            self._drop(connection, stopping)
        self._selector.close()

    def _look_after_socket(self, now_s: float) -> None:
        """Listen again where the socket's file was taken away, and after a pause because of too many open files."""
        if self._deaf_until_s is not None and now_s >= self._deaf_until_s:
            self._deaf_until_s = None
            self._selector.register(self._listener.socket, selectors.EVENT_READ)
        if now_s - self._checked_s < 5.0:  # between looks at the socket's file
            return
        self._checked_s = now_s
        if self._listener.is_there:
            return
        try:
            replaced, self._listener = self._listener, listen(self._home)
        except (AutotuneError, OSError) as error:  # the disk may be away for a while
            _log.warning("the daemon's socket is gone, and cannot be made again: %s", error)
            return
        if self._deaf_until_s is None:
            self._selector.unregister(replaced.socket)
        self._deaf_until_s = None
        replaced.socket.close()
        self._selector.register(self._listener.socket, selectors.EVENT_READ)
        _log.info("the daemon's socket was taken away; it is now %s", self._listener.path)

    def _accept(self) -> None:
        for _ in range(128):  # then those that have sent something get their turn
            try:
                connected, _address = self._listener.socket.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no more open files: those of a client that asks nothing will do
                if victim := self._least_needed():
                    self._drop(victim, _BUSY)
                    continue
                self._hold(error)
                return
            self._admit(connected)

    def _hold(self, error: OSError) -> None:
        """Stop accepting for a moment: what cannot be accepted stays readable, and the loop would spin."""
        _log.warning("no client can be accepted: %s", error.strerror)
        self._selector.unregister(self._listener.socket)
        self._deaf_until_s = self._clock.now_s() + 1.0  # where no connection can be accepted: no more open files

    def _admit(self, connected: socket.socket) -> None:
        """Check who a client is, make room for it, and read what it has sent already."""
        try:
            peer = peer_of(connected)
        except OSError:
            connected.close()
            return
        connection = Connection(connected, peer.pid, self._clock.now_s())
        if not is_trusted(peer):
            self._say_refused(peer.uid)
            message = f"this daemon is of user {os.geteuid()}, and answers no other"
            connection.close(error_response("forbidden", message, remedy="Start one of your own."))
            return
        if len(self._connections) >= MOST_CONNECTIONS:
            victim = self._least_needed()
            if victim is None:
                connection.close(_BUSY)
                return
            self._drop(victim, _BUSY)
        self._connections[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)
        self._serve_one(connection)

    def _say_refused(self, uid: int) -> None:
        now_s = self._clock.now_s()
        # of refusals, which others could cause without end
        if self._refused_s is None or now_s - self._refused_s >= 60.0:
            self._refused_s = now_s
            _log.warning("a process of user %d was refused; the folder of the socket should be closed to it", uid)

    def _least_needed(self) -> Connection | None:
        """Return the connection to drop for another: the oldest that has asked nothing, else that reads too slowly."""
        for stage in (Stage.READING, Stage.WRITING):
            for connection in self._connections:
                if connection.stage is stage:
                    return connection
        return None

    def _serve_one(self, connection: Connection) -> None:
        if connection.stage is Stage.OVER:  # dropped for another since the selector named it
            return
        try:
            if connection.stage is Stage.WRITING:
                if connection.send():
                    self._drop(connection)
                return
            line = connection.receive()
        except BadRequest as error:
            self._drop(connection, error.response)
            return
        except (OSError, EOFError):
            self._drop(connection)
            return
        if line is not None:
            self._handle(connection, line)
        elif connection.is_half_closed:
            if connection.has_hung_up():
                self._drop(connection)
            else:  # it may still read, and would be readable for ever
                self._selector.unregister(connection)

    def _handle(self, connection: Connection, line: bytes) -> None:
        try:
            request = decode_request(line, connection.pid)
        except BadRequest as error:
            self._respond(connection, error.response)
            return
        self._answered += 1
        try:
            given = self._answer(request)
        except Exception as error:  # noqa: BLE001 -- a bug in one answer must not end the daemon
            trouble = expected(error)
            if trouble is None:
                _log.exception("the request %s failed", request.op)
            self._respond(connection, response_of(trouble) if trouble else bug_response(error))
            return
        if not isinstance(given, Deferred):
            self._respond(connection, response_for(given))
            return
        waiting = sum(other.stage is Stage.WAITING for other in self._connections)
        if waiting >= MOST_WAITING and not given.is_given:
            given.abandon()
            self._respond(connection, _BUSY)
            return
        connection.wait_for(given, self._clock.now_s())
        given.when_given(lambda response: self._respond(connection, response))

    def _respond(self, connection: Connection, response: bytes) -> None:
        if connection.stage is Stage.OVER:
            return
        connection.respond(response, self._clock.now_s())
        try:
            if connection.send():
                self._drop(connection)
                return
        except OSError:
            self._drop(connection)
            return
        if connection.is_half_closed:
            self._selector.register(connection, selectors.EVENT_WRITE)
        else:
            self._selector.modify(connection, selectors.EVENT_WRITE)
        self._make_room(connection)

    def _make_room(self, latest: Connection) -> None:
        """Drop the oldest of those that read slowly while too much is kept for them; the latest has its turn."""
        slow = [connection for connection in self._connections if connection.stage is Stage.WRITING]
        unsent = sum(connection.unsent_bytes for connection in slow)
        for connection in slow:
            if unsent > MOST_UNSENT_BYTES and connection is not latest:
                unsent -= connection.unsent_bytes
                self._drop(connection)

    def _expire(self) -> None:
        """Drop clients that take too long, or are gone."""
        now_s = self._clock.now_s()
        for connection in list(self._connections):
            waited_s = now_s - connection.since_s
            if connection.stage is Stage.READING and waited_s > REQUEST_S:
                message = f"the request did not come within {REQUEST_S:.0f} s"
                self._drop(connection, error_response("too_slow", message))
                continue
            # The selector does not look any more at one that has closed its own side.
            is_gone = connection.is_half_closed and connection.has_hung_up()
            if is_gone or (connection.stage is Stage.WRITING and waited_s > RESPONSE_S):
                self._drop(connection)

    def _drop(self, connection: Connection, farewell: bytes | None = None) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
        connection.close(farewell)


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

    Attributes:
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
            chunk = self._socket.recv(1 << 16)
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
