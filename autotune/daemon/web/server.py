"""Server of the page: a thread beside the daemon's loop, which it neither waits for nor keeps waiting."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import uvicorn

from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue.queue import Queue
from autotune.daemon.web.actions import act
from autotune.daemon.web.app import CSRF_PLACE, Served, application
from autotune.daemon.web.broadcast import Broadcast
from autotune.daemon.web.connections import BoundedProtocol
from autotune.daemon.web.daemon_view import DaemonView
from autotune.daemon.web.gpu_poller import GpuPoller
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.metrics import Metrics
from autotune.daemon.web.state import PageState
from autotune.daemon.web.trial_endings import TrialEndings
from autotune.errors import AutotuneError
from autotune.process.process_tree import descendants

_BACKLOG = 64
_NOTE_S = 1.0
_CLOSING_S = 3.0
_LONGEST_HEAD_BYTES = 16 << 10
_IDLE_S = 5  # between two requests of one connection

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """Options of the page.

    Attributes:
        address: IP address to listen on.
        port: Port; 0 takes a free one.
        actions: Whether the page may change the queue.
    """

    address: str = "127.0.0.1"
    port: int = 8577
    actions: bool = False


class WebServer:
    """Server of the page and the metrics.

    Args:
        home: Folders of the daemon.
        options: Options.
        clock: The machine's clock.

    Raises:
        AutotuneError: The port is taken, or the token cannot be used.
    """

    def __init__(self, home: DaemonHome, options: WebOptions, clock: Clock) -> None:
        self._options = options
        self._keys = Keys(home.state / "web-token", clock)
        self._socket = _listening(options)
        self._page = PageState(home, clock)
        self._gpus = GpuPoller(clock, lambda: descendants(os.getpid()))
        self._view: DaemonView | None = None
        self._metrics = Metrics(lambda: self._view, TrialEndings(home, clock).counts)
        self._queue, self._advices = Queue(home.queue, clock), Advices(home.advice)
        self._on_action: Callable[[], None] = lambda: None
        self._broadcast: Broadcast | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(self._served()),
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=_LONGEST_HEAD_BYTES,
            )
        )
        self._thread = threading.Thread(target=self._run, name="autotune-web", daemon=True)

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._socket.getsockname()[1])

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """
        self._on_action = on_action
        self._gpus.start()
        self._thread.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=_CLOSING_S)
        self._gpus.close()
        self._socket.close()

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now; takes microseconds."""
        self._view = replace(view, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def new_address(self) -> str:
        """Return an address that signs one browser in, once, within two minutes."""
        return f"http://{_in_address(self._options.address)}:{self.port}/login?code={self._keys.new_code()}"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001 -- whatever it is, searches and trainings are looked after without the page
            _log.exception("the page is not served any more; the daemon goes on")

    async def _serve(self) -> None:
        self._broadcast = Broadcast(self._document)
        beside = [asyncio.create_task(self._broadcast.run()), asyncio.create_task(self._note_for_ever())]
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for task in beside:
                task.cancel()

    async def _note_for_ever(self) -> None:
        """Keep the last hour of the GPUs and trainings, whether a page is open or not."""
        while True:
            if (view := self._view) is not None:
                self._page.note(replace(view, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none))
            await asyncio.sleep(_NOTE_S)

    def _document(self) -> dict[str, Any] | None:
        csrf = CSRF_PLACE.strip('"') if self._options.actions else None
        document = self._page.document(actions=self._options.actions, csrf=csrf)
        return None if document is None else dict(document)

    def _served(self) -> Served:
        names = {self._options.address, *_names(self._options.address)}
        return Served(
            keys=self._keys,
            hosts=tuple(f"{_in_address(name)}:{self.port}" for name in names),
            cookie=f"autotune-{self.port}",
            broadcast=self._the_broadcast,
            metrics=self._metrics.text,
            act=self._act if self._options.actions else None,
        )

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()

    def _the_broadcast(self) -> Broadcast:
        assert self._broadcast is not None, "made before the first request"
        return self._broadcast


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an IP address.

    Raises:
        ValueError: It is no IP address.
    """
    return ip_address(address).is_loopback


def _names(address: str) -> tuple[str, ...]:
    """Return the names by which browsers may call the server, besides its address."""
    return ("localhost",) if is_loopback(address) else (socket.gethostname(), socket.getfqdn())


def _in_address(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _listening(options: WebOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.address, options.port))
        listening.listen(_BACKLOG)
        os.set_inheritable(listening.fileno(), False)
    except OSError as error:
        listening.close()
        raise AutotuneError(
            f"the page cannot be served at {options.address}, port {options.port}: {error.strerror}",
            where="--web",
            remedy="Something else listens there, perhaps; name another port with --web-port.",
        ) from error
    return listening
