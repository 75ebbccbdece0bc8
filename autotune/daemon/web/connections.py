"""Connections of the page's server: so many at a time, and none that is kept without asking or taking something."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from autotune.daemon.web.gate import SLOWEST_S

MOST_CONNECTIONS = 96


class BoundedProtocol(H11Protocol):
    """Protocol of one connection, which is cut where too many are open, no request comes, or an answer is not taken.

    uvicorn bounds requests (``limit_concurrency``) and idle time between two of them; a connection that never sends a
    whole head counts as neither, and for one that takes nothing it waits for ever.
    """

    _waiting: asyncio.TimerHandle | None = None
    _full: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """See `asyncio.Protocol`."""
        if len(self.connections) >= MOST_CONNECTIONS:
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self.transport is None:  # it was refused
            return
        super().data_received(data)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        for timer in (self._waiting, self._full):
            if timer is not None:
                timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client does not take what was sent."""
        super().pause_writing()
        self._full = self.loop.call_later(SLOWEST_S, self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        super().resume_writing()
        if self._full is not None:
            self._full.cancel()

    def _wait_for_request(self) -> None:
        """Cut the connection in a while, unless a request is being answered by then."""
        if self._waiting is not None and not self._waiting.cancelled():
            return
        self._waiting = self.loop.call_later(SLOWEST_S, self._is_late)

    def _is_late(self) -> None:
        self._waiting = None
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._wait_for_request()
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.abort()
