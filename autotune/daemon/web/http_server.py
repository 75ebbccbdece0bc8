"""HTTP server of the page: a thread of its own, which the daemon's loop neither waits for nor keeps waiting."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn

from autotune.daemon.web.app import CSRF_PLACE, Act, Broadcast, Served, application
from autotune.daemon.web.connections import BoundedProtocol, Visitors
from autotune.daemon.web.gate import has_session
from autotune.daemon.web.keys import Keys
from autotune.errors import AutotuneError

_BACKLOG = 4096  # waiting to be accepted: where that is full, the owner's browser tries again after a second
_AT_ONCE = 8  # accepted in one turn of the loop: the oldest strangers are cut before many more have a file open

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is served.

    Attributes:
        document: Makes the page's state, given the place that stands for the token of whoever reads it (None where
            nothing can be changed); None as long as there is none. Called in a thread of its own.
        metrics: Returns the metrics in OpenMetrics, and their content type.
        act: Does an action; None where the page may change nothing.
    """

    document: Callable[[str | None], dict[str, Any] | None]
    metrics: Callable[[], tuple[bytes, str]]
    act: Act | None = None


class HttpServer:
    """HTTP server that listens from the start, and answers once it is started.

    Raises:
        AutotuneError: The port is taken.
    """

    def __init__(self, address: str, port: int, keys: Keys, content: Content) -> None:
        self._address = address
        self._keys = keys
        self._socket = _listening(address, port)
        place = CSRF_PLACE.strip('"') if content.act is not None else None
        self._broadcast = Broadcast(lambda: content.document(place))
        names = {address, *_names(address)}
        served = Served(
            keys=keys,
            hosts=tuple(f"{_in_address(name)}:{self.port}" for name in names),
            cookie=f"autotune-{self.port}",
            broadcast=self._broadcast,
            metrics=content.metrics,
            act=content.act,
        )
        visitors = Visitors(lambda head: has_session(head, served.cookie, keys))
        self._server = _Server(
            uvicorn.Config(
                application(served),
                http=partial(BoundedProtocol, visitors),  # type: ignore[arg-type]  # called as the class is
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",  # what a client sends is no reason to fill the daemon's log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                backlog=_AT_ONCE,
            )
        )
        self._thread = threading.Thread(target=self._run, name="autotune-web", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return f"http://{_in_address(self._address)}:{self.port}"

    @property
    def streams(self) -> int:
        """Number of streams that are open."""
        return self._broadcast.streams

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._server.should_exit = True
        self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001 -- whatever it is, searches and trainings are looked after without the page
            _log.exception("the page is not served any more; the daemon goes on")

    async def _serve(self) -> None:
        broadcasting = asyncio.create_task(self._broadcast.run())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            broadcasting.cancel()


class _Server(uvicorn.Server):
    """Server for which more connections may wait than asyncio's one figure for both has accepted at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_BACKLOG)


def _names(address: str) -> tuple[str, ...]:
    """Return the names by which browsers may call the server, besides its address."""
    return ("localhost",) if ip_address(address).is_loopback else (socket.gethostname(), socket.getfqdn())


def _in_address(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(_BACKLOG)
        os.set_inheritable(listening.fileno(), False)
    except OSError as error:
        listening.close()
        raise AutotuneError(
            f"the page cannot be served at {address}, port {port}: {error.strerror}",
            where="--web",
            remedy="Another daemon, or something else, listens there perhaps: name another port with --web-port.",
        ) from error
    return listening
