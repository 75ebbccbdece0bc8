"""Broadcast of the page's state: made once for all pages that are open, and only while one is."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

EVERY_S = 1.0
MOST_STREAMS = 40
_QUIET_S = 15.0
"""Longest silence of a stream: proxies and browsers take a longer one for a broken connection."""


class Broadcast:
    """Broadcast of a document, in one event loop.

    Args:
        make: Makes the document; called in a thread of its own. None as long as there is none.

    Attributes:
        streams: Number of streams that are open.
    """

    def __init__(self, make: Callable[[], dict[str, Any] | None]) -> None:
        self._make = make
        self._text = ""
        self._shown: dict[str, Any] | None = None
        self._number = 0
        self.streams = 0
        self._changed = asyncio.Condition()

    @property
    def is_full(self) -> bool:
        """True if no further stream is served."""
        return self.streams >= MOST_STREAMS

    async def text(self) -> str:
        """Return the document as JSON, as it is now; empty as long as there is none."""
        if not self.streams:
            await self._refresh()
        return self._text

    async def run(self) -> None:
        """Make the document every second while somebody follows it, for ever."""
        while True:
            if self.streams:
                await self._refresh()
            await asyncio.sleep(EVERY_S)

    async def events(self) -> AsyncIterator[str]:
        """Yield a server-sent event for each change, from the present state on."""
        self.streams += 1
        try:
            await self._refresh()
            seen = 0
            while True:
                if self._number == seen:
                    try:
                        async with asyncio.timeout(_QUIET_S), self._changed:
                            await self._changed.wait_for(lambda: self._number != seen)  # noqa: B023 -- awaited at once
                    except TimeoutError:
                        yield ": nothing new\n\n"
                        continue
                seen = self._number
                yield f"event: state\ndata: {self._text}\n\n"
        finally:
            self.streams -= 1

    async def _refresh(self) -> None:
        document = await asyncio.to_thread(self._make)
        if document is None:
            return
        shown = {name: part for name, part in document.items() if name != "utc"}
        if shown == self._shown:
            return
        self._shown, self._text = shown, json.dumps(document)
        async with self._changed:
            self._number += 1
            self._changed.notify_all()
