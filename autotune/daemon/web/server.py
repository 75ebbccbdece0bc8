"""Server of the daemon's page and metrics: what it shows, and what it does."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue.queue import Queue
from autotune.daemon.web.actions import act
from autotune.daemon.web.daemon_view import DaemonView
from autotune.daemon.web.files_read import FilesRead
from autotune.daemon.web.gpu_poller import GpuPoller
from autotune.daemon.web.http_server import Content, HttpServer
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.metrics import Metrics
from autotune.daemon.web.state import PageState
from autotune.daemon.web.trial_endings import TrialEndings
from autotune.process.process_tree import descendants

_NOTE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """Options of the page.

    Attributes:
        address: IP address to listen on.
        port: Port; 0 takes a free one.
        actions: Whether the page may change the queue, and have advice applied.
    """

    address: str = "127.0.0.1"
    port: int = 8577
    actions: bool = False


class WebServer:
    """Server of the page and the metrics; see `autotune.daemon.web.page.Page`.

    Args:
        home: Folders of the daemon.
        options: Options.
        clock: The machine's clock.

    Raises:
        AutotuneError: The port is taken, or the token cannot be used.
    """

    def __init__(self, home: DaemonHome, options: WebOptions, clock: Clock) -> None:
        self._actions = options.actions
        self._page = PageState(home, clock)
        self._gpus = GpuPoller(clock, lambda: descendants(os.getpid()))
        self._known: DaemonView | None = None
        self._queue, self._advices = Queue(home.queue, clock), Advices(home.advice)
        self._on_action: Callable[[], None] = lambda: None
        self._entries, self._endings = FilesRead(home.queue, self._queue.entries), TrialEndings()
        metrics = Metrics(self._view, lambda: self._endings.counts)
        content = Content(document=self._document, metrics=metrics.text, act=self._act if options.actions else None)
        self._server = HttpServer(options.address, options.port, Keys(home.web_token, clock), content)
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
        self._gpus.start()
        self._noting.start()
        self._server.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._ends.set()
        self._server.close()
        self._gpus.close()

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now; takes microseconds."""
        self._known = view

    def new_address(self) -> str:
        """Return an address that signs one browser in, once, within two minutes."""
        return self._server.new_address()

    def _view(self) -> DaemonView | None:
        known = self._known
        return known and replace(known, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def _note_for_ever(self) -> None:
        """Keep the last hour, and count the trials, whether a page is open or not."""
        while not self._ends.wait(_NOTE_S):
            self._endings.look(self._entries.now()[0])
            if view := self._view():
                self._page.note(view)

    def _document(self, csrf: str | None) -> dict[str, Any] | None:
        document = self._page.document(actions=self._actions, csrf=csrf)
        return None if document is None else dict(document)

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()
