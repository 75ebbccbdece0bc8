"""Servers of the daemon's page and metrics, and of one search's page, each in threads that keep nobody waiting."""

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import uvicorn

from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import Queue
from autotune.daemon.web.app import Broadcast, Content, act, application, has_session
from autotune.daemon.web.connections import BoundedProtocol, Visitors
from autotune.daemon.web.gpus import GpuPoller
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.metrics import Metrics, TrialEndings
from autotune.daemon.web.search_section import StudyFollower, event_file_in, section_of
from autotune.daemon.web.state import PageState, View
from autotune.errors import AutotuneError
from autotune.measure.host import descendants
from autotune.trial.folders import StateFolder

_BACKLOG = 4096  # waiting to be accepted: where that is full, the owner's browser tries again after a second
_AT_ONCE = 8  # accepted in one turn of the loop: the oldest strangers are cut before many more have a file open

_LAST_LOOK_S = 1.5  # in which pages of a search that are open get what came last

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """Options of the page.

    Attributes:
        actions: Whether the page may change the queue, and have advice applied.
    """

    address: str = "127.0.0.1"
    port: int = 8577
    actions: bool = False


class WebServer:
    """Server of the page and the metrics.

    Attributes:
        run: Name of this run of it, see `Keys`.

    Raises:
        AutotuneError: The port is taken, or the token cannot be used.
    """

    def __init__(self, home: DaemonHome, options: WebOptions, clock: Clock) -> None:
        self.run = secrets.token_hex(8)
        self._status: Mapping[str, Any] | None = None
        self._on_action: Callable[[], None] = lambda: None
        self._queue, self._advices = Queue(home.queue, clock), Advices(home.advice)
        self._gpus = GpuPoller(clock, lambda: descendants(os.getpid()))
        self._endings = TrialEndings()
        page = self._page = PageState(home, clock)
        content = Content(
            document=lambda csrf: page.document(actions=options.actions, csrf=csrf),
            metrics=Metrics(self._view, lambda: self._endings.counts).text,
            act=self._act if options.actions else None,
        )
        self._server = HttpServer(options.address, options.port, Keys(home.web_token, clock, self.run), content)
        self._ends = threading.Event()
        self._noting = threading.Thread(target=self._note_for_ever, name="autotune-web-hour", daemon=True)

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return self._server.origin

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """
        self._on_action = on_action
        self._noting.start()
        self._server.start()

    def close(self) -> None:
        """End; streams that are open end with it, and a driver that hangs is left to itself."""
        self._ends.set()
        self._server.close()
        self._noting.join(timeout=1.0)

    def note(self, status: Mapping[str, Any]) -> None:
        """Take over what the daemon says now, see `Service.status`; takes microseconds, and never waits."""
        self._status = status

    def _view(self) -> View | None:
        if self._status is None:
            return None
        return View(status=self._status, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def _note_for_ever(self) -> None:
        """Read the GPUs, keep the last hour, and count the trials, whether a page is open or not."""
        while not self._ends.wait(1.0):
            try:
                if view := self._view():
                    self._page.note(view)
                self._endings.look(self._queue.entries())
                self._gpus.look()
            except AutotuneError:  # of the queue, which the page says
                continue
            except Exception:  # noqa: BLE001 -- whatever it is, the page goes on with what it has
                _log.exception("a bug in the daemon's page; it goes on")

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()


class SearchPage:
    """Page of the search that this process makes; a context manager that serves it.

    Args:
        state: Its state folder, with the events of its searches.
        config: The config, as typed.
        started_s: When the search began, on the clock's monotonic time.

    Attributes:
        address: Address that signs one browser in, once, within two minutes.

    Raises:
        AutotuneError: It cannot be served.
    """

    def __init__(self, state: StateFolder, config: Path, clock: Clock, *, budget_s: float, started_s: float) -> None:
        self._state, self._config, self._clock = state, config, clock
        self._budget_s, self._started_s = budget_s, started_s
        self._study: StudyFollower | None = None
        self._lock = threading.Lock()
        state.create()
        keys = Keys(state.path / "web-token", clock, secrets.token_hex(8))
        content = Content(document=lambda _csrf: self._document(), metrics=lambda: (b"# EOF\n", "text/plain"))
        self._server = HttpServer("127.0.0.1", 0, keys, content)
        self.address = keys.new_address(self._server.origin)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None and self._server.streams:
            self._clock.wait(_LAST_LOOK_S)
        self._server.close()

    def _document(self) -> dict[str, Any] | None:
        """Return the state that the page shows, of which the sections of a daemon are absent; None before it begins."""
        with self._lock:
            if self._study is None:
                path = event_file_in(self._state, socket.gethostname(), os.getpid())
                self._study = StudyFollower(path) if path is not None else None
            if self._study is None:
                return None
            self._study.has_news()
            progress = self._study.progress
            search = section_of(
                self._study,
                entry=None,
                config=str(self._config),
                is_running=not progress.has_ended,
                verdict=progress.verdict or None,
                budget_s=self._budget_s,
                used_s=min(self._budget_s, self._clock.now_s() - self._started_s),
            )
        utc = self._clock.utc().isoformat(timespec="seconds")
        return {"format": 1, "utc": utc, "host": socket.gethostname(), "search": search, "actions": False, "csrf": None}


class HttpServer:
    """HTTP server that listens from the start, and answers once it is started.

    Raises:
        AutotuneError: The port is taken.
    """

    def __init__(self, address: str, port: int, keys: Keys, content: Content) -> None:
        self._socket = _listening(address, port)
        self.port = int(self._socket.getsockname()[1])
        self.origin = f"http://{_in_address(address)}:{self.port}"
        self._broadcast = Broadcast(content)
        others = ("localhost",) if ip_address(address).is_loopback else (socket.gethostname(), socket.getfqdn())
        hosts = [f"{_in_address(name)}:{self.port}" for name in (address, *others)]  # as browsers may call it
        cookie = f"autotune-{self.port}"
        visitors = Visitors(lambda head: has_session(head, cookie, keys))
        self._server = _Server(
            uvicorn.Config(
                application(content, self._broadcast, keys, hosts, cookie),
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
    def streams(self) -> int:
        """Number of streams that are open."""
        return self._broadcast.streams

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except Exception:  # noqa: BLE001 -- whatever it is, searches and trainings are looked after without the page
            _log.exception("the page is not served any more; the daemon goes on")


class _Server(uvicorn.Server):
    """Server for which more connections may wait than asyncio's one figure for both has accepted at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_BACKLOG)


def _in_address(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise AutotuneError(
            f"the page cannot be served at {address}, port {port}: {os.strerror(error.errno or 0)}",
            where="--web",
            remedy="Another daemon, or something else, listens there perhaps: name another port with --web-port.",
        ) from error
