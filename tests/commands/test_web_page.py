"""The page beside a real daemon and a real search of a toy trainer, from the queue to the advice."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.clock import SystemClock
from autotune.daemon.home import open_home
from autotune.daemon.web.daemon_view import DaemonView
from autotune.daemon.web.state import PageState
from tests.commands.conftest import Autotune
from tests.commands.test_queue import Daemon, add, home, start, until
from tests.daemon.web.browser import chromium, complaints, text_of
from tests.daemon.web.page_server import PageServer

__all__ = ["home", "start"]  # fixtures of the daemon


class Watching:
    """Page beside a daemon: what the daemon answers, and what stands in its files.

    Args:
        autotune: Asks the daemon.
    """

    def __init__(self, autotune: Autotune) -> None:
        self._autotune = autotune
        self._page = PageState(open_home(os.environ), SystemClock())

    def state(self) -> dict[str, Any]:
        """Return the state now."""
        answer = json.loads(self._autotune("daemon", "status", "--json").stdout)
        names = ("autotune", "pid", "started_utc", "hosted", "machine", "running", "reasons", "trouble")
        self._page.note(DaemonView(**{name: answer[name] for name in names}, why_no_gpus="there is no driver"))
        document = self._page.document()
        assert document is not None
        return dict(document)


def test_a_search_is_followed_from_the_queue_to_the_advice(
    project: Path, autotune: Autotune, start: Callable[[], Daemon]
) -> None:
    """It waits, it runs with its trials drawn, it ends with an advice; each comes by itself into an open page."""
    daemon = start()
    watching = Watching(autotune)
    with chromium() as page:
        served = PageServer(watching.state())

        def shows(selector: str, *texts: str) -> bool:
            served.state = watching.state()
            return all(text in text_of(page, selector) for text in texts)

        page.get(served.address)
        until(lambda: shows("h1", "Nothing runs, and nothing waits."), "the page is not there")
        add(autotune, "--when", "idle", "--budget", "40s", "--no-check")
        until(lambda: shows("#queue", "waiting", "waits for an idle machine"), "the entry does not wait")
        assert autotune("queue", "remove", "1").returncode == 0
        add(autotune, "--when", "now", "--budget", "40s", "--no-check")
        until(lambda: shows("#search", "explore", "best so far", "x num_workers="), daemon.said())
        assert page.execute_script("return document.querySelectorAll('svg.search .mark').length") > 1
        until(lambda: shows("h1", "Advice for", "as fast"), daemon.said())
        until(lambda: shows("#advice", "+    num_workers: 2", "autotune apply --config"), "there is no advice")
        assert shows("#queue", "done")
        assert shows("#search", "better than today's config", "today's config")
        assert complaints(page) == []
        served.stop()
