"""Page of one search, which `autotune search --web` serves from its own process for as long as that goes on."""

import os
import secrets
import socket
import threading
from typing import Any, Self

from autotune.clock import Clock
from autotune.daemon.web.app import Content
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.search_section import StudyFollower, event_file_in, section_of
from autotune.daemon.web.server import HttpServer
from autotune.search.problem import Problem

_LAST_LOOK_S = 1.5  # in which pages that are open get what came last


class SearchPage:
    """Page of the search that this process makes; a context manager that serves it.

    Args:
        started_s: When the search began, on the clock's monotonic time.

    Attributes:
        address: Address that signs one browser in, once, within two minutes.

    Raises:
        AutotuneError: It cannot be served.
    """

    def __init__(self, problem: Problem, clock: Clock, *, budget_s: float, started_s: float) -> None:
        self._problem, self._clock = problem, clock
        self._budget_s, self._started_s = budget_s, started_s
        self._study: StudyFollower | None = None
        self._lock = threading.Lock()
        problem.state.create()
        keys = Keys(problem.state.path / "web-token", clock, secrets.token_hex(8))
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
                path = event_file_in(self._problem.state, socket.gethostname(), os.getpid())
                self._study = StudyFollower(path) if path is not None else None
            if self._study is None:
                return None
            self._study.has_news()
            progress = self._study.progress
            search = section_of(
                progress,
                entry=None,
                config=str(self._problem.config_path),
                is_running=not progress.has_ended,
                verdict=progress.verdict or None,
                budget_s=self._budget_s,
                used_s=min(self._budget_s, self._clock.now_s() - self._started_s),
            )
        utc = self._clock.utc().isoformat(timespec="seconds")
        return {"format": 1, "utc": utc, "host": socket.gethostname(), "search": search, "actions": False, "csrf": None}
