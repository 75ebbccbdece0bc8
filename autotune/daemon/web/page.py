"""Page as the daemon's loop sees it: the server behind it needs packages that the daemon does without."""

from collections.abc import Callable
from typing import Protocol

from autotune.daemon.web.daemon_view import DaemonView


class Page(Protocol):
    """Page of a daemon; made by `autotune.daemon.web.server.WebServer`."""

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        ...

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """

    def close(self) -> None:
        """End."""

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now; takes microseconds, and never waits."""

    def new_address(self) -> str:
        """Return an address that signs one browser in, once."""
        ...
