"""Server of the page for tests: the daemon's own, with a state that a test sets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.clock import SystemClock
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.server import Content, HttpServer
from autotune.errors import AutotuneError


class PageServer:
    """Server on loopback.

    Args:
        folder: Folder of the token.
        state: The state of the page.
        has_actions: Whether it lets actions through.

    Attributes:
        port: Its port; stays the same when it is started again.
        state: The state of the page.
        acted: Requests for actions that were let through.
        refusal: Answer to the next actions; None does them.
    """

    def __init__(self, folder: Path, state: Mapping[str, Any], *, has_actions: bool = True) -> None:
        self.port = 0
        self.has_actions = has_actions
        self.state = dict(state)
        self.acted: list[object] = []
        self.refusal: AutotuneError | None = None
        self.token = folder / "web-token"
        self.start()

    @property
    def origin(self) -> str:
        """Origin of the page, for requests that are made by hand."""
        return self._server.origin

    @property
    def address(self) -> str:
        """Fresh address of the page, which signs in."""
        return self._keys.new_address(self.origin)

    @property
    def streams(self) -> int:
        """Number of streams that are open."""
        return self._server.streams

    def start(self) -> None:
        """Start, at the same port as before."""
        self._keys = Keys(self.token, SystemClock(), "run")
        act = self._act if self.has_actions else None
        content = Content(document=self._document, metrics=lambda: (b"# EOF\n", "text/plain"), act=act)
        self._server = HttpServer(self.port, self._keys, content)
        self.port = self._server.port
        self._server.start()

    def stop(self) -> None:
        """End; streams end with it."""
        self._server.close()

    def _document(self) -> dict[str, Any]:
        return self.state

    def _act(self, request: object) -> None:
        self.acted.append(request)
        if self.refusal is not None:
            raise self.refusal
