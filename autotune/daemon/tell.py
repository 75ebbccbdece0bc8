"""Telling: what the daemon does and finds, as sentences for people and as facts for the user's own command."""

from typing import Any, Protocol


class Tell(Protocol):
    """Receiver of what happens."""

    def __call__(self, kind: str, text: str, **facts: Any) -> None:
        """Take note of something that happened.

        Args:
            kind: Kind of event, a stable word such as ``search_started``.
            text: A sentence for people.
            facts: Facts, as JSON holds them.
        """
        ...
