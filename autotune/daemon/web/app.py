"""Application of the page: what is served under which path. Nothing of a request is used as a path or a command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from autotune.daemon.advice import Advices, AdviceState, why_not_permitted
from autotune.daemon.queue import ALL_SCOPES, CHANGES, Queue, accepted
from autotune.daemon.web.gate import Gate
from autotune.daemon.web.keys import COOKIE_S, Keys
from autotune.errors import AutotuneError

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
CSRF_PLACE = json.dumps("csrf-token-of-the-page")
"""Stands in the state for the token of the page that reads it: one state is made for all."""

_NOT_YET = "The daemon has only just begun; ask again in a moment.\n"


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an application is made of.

    Attributes:
        hosts: What a request may name as its host, with the port.
        metrics: Returns the metrics in OpenMetrics, and their content type.
        act: Does an action; None where the page may change nothing.
    """

    keys: Keys
    hosts: tuple[str, ...]
    cookie: str
    broadcast: Broadcast
    metrics: Callable[[], tuple[bytes, str]]
    act: Act | None


def application(served: Served) -> ASGIApp:
    """Return the application, behind its gate."""
    static = {
        file.name: (file.read_bytes(), _TYPES[file.name[file.name.rindex(".") :]])
        for file in files(__package__).joinpath("static").iterdir()
    }

    def file(name: str) -> Response:
        if name not in static:
            return PlainTextResponse("There is no such file.\n", 404)
        content, kind = static[name]
        return Response(content, media_type=kind)

    def page(_request: Request) -> Response:
        return file("index.html")

    def static_file(request: Request) -> Response:
        return file(request.path_params["name"])

    def sign_in(request: Request) -> Response:
        cookie = served.keys.exchange(request.query_params.get("code", ""))
        if cookie is None:
            text = "This address was used already, or is too old. `autotune daemon url` prints another one.\n"
            return PlainTextResponse(text, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(served.cookie, cookie, max_age=int(COOKIE_S), httponly=True, samesite="strict", path="/")
        return answer

    async def state(request: Request) -> Response:
        if not (text := await served.broadcast.text()):
            return PlainTextResponse(_NOT_YET, 503)
        return Response(_signed(text, request, served), media_type="application/json")

    async def events(request: Request) -> Response:
        if served.broadcast.is_full:
            return PlainTextResponse("Too many pages are open.\n", 503, {"retry-after": "10"})

        async def signed() -> AsyncIterator[str]:
            async for event in served.broadcast.events():
                yield _signed(event, request, served)

        return StreamingResponse(signed(), media_type="text/event-stream")

    async def action(request: Request) -> Response:
        if served.act is None:
            error = AutotuneError("this page changes nothing", remedy="Start the daemon with --web-actions.")
            return JSONResponse(error_document(error), 403)
        try:
            await run_in_threadpool(served.act, json.loads(await request.body()))
        except AutotuneError as error:
            return JSONResponse(error_document(error), 409)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": {"message": f"this is no action: {error}", "remedy": None}}, 400)
        return JSONResponse({})

    async def metrics(_request: Request) -> Response:
        content, kind = await run_in_threadpool(served.metrics)
        return Response(content, headers={"content-type": kind})

    def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/login", sign_in, methods=["GET"]),
            Route("/static/{name}", static_file),
            Route("/api/state", state),
            Route("/api/events", events),
            Route("/api/action", action, methods=["POST"]),
            Route("/metrics", metrics),
            Route("/health", health),
        ]
    )
    return Gate(app, served.keys, served.hosts, served.cookie)


def _signed(text: str, request: Request, served: Served) -> str:
    """Return the state with the token of this page's cookie in its place; one without actions has no place for it."""
    return text.replace(CSRF_PLACE, json.dumps(served.keys.csrf(request.scope["state"]["cookie"])), 1)


# Actions of the page: what it may change, where the daemon was started with that permission.


_LONGEST_ID = 64
Act = Callable[[object], None]


def act(queue: Queue, advices: Advices, request: object) -> None:
    """Do what a request asks for.

    Args:
        request: The request's JSON: ``action``, and the ``id`` of an entry, or of an advice for ``apply``. An id is
            looked for among those there are, and is used for nothing else.

    Raises:
        ValueError: It is no such request.
        AutotuneError: There is no such entry or advice, it is in no state for that, or the queue cannot be written.
    """
    match request:
        case {"action": str() as action, "id": str() as id} if len(id) <= _LONGEST_ID:
            pass
        case _:
            raise ValueError("an action and the id of an entry or an advice are expected")
    if action == "apply":
        _apply(queue, advices, id)
    elif action != "remove" and action not in CHANGES:
        raise ValueError(f"there is no such action: {', '.join(('apply', 'remove', *CHANGES))}")
    elif all(entry.id != id for entry in queue.entries()):
        raise AutotuneError("there is no such entry any more", remedy="Look at the queue again.")
    elif action == "remove":
        queue.remove(id)
    else:
        queue.change(id, CHANGES[action])


def _apply(queue: Queue, advices: Advices, id: str) -> None:
    """Have the daemon apply an advice, by the way of one that was permitted when its search was asked for."""
    advice = next((one for one in advices.all() if one.id == id), None)
    if advice is None:
        raise AutotuneError("there is no such advice any more", remedy="Look at the advice again.")
    remedy = f"In a terminal: autotune apply --config {advice.config}"
    if advice.state is AdviceState.APPLIED:
        raise AutotuneError("it is applied already", remedy=f"To undo it: autotune revert --config {advice.config}")
    if why := why_not_permitted(advice, ALL_SCOPES):
        raise AutotuneError(why, remedy=remedy)
    of_it = [entry for entry in queue.entries() if entry.answer is not None and entry.answer.advice == id]
    if not of_it or queue.change(of_it[-1].id, accepted) is None:
        raise AutotuneError("the search that gave it is not in the queue any more", remedy=remedy)


def error_document(error: AutotuneError) -> Mapping[str, Any]:
    """Return an error as the page shows it."""
    return {"error": {"message": error.message, "remedy": error.remedy}}


EVERY_S = 1.0
MOST_STREAMS = 40
_QUIET_S = 15.0
"""Longest silence of a stream: proxies and browsers take a longer one for a broken connection."""


class Broadcast:
    """Broadcast of a document, in one event loop.

    Args:
        make: Makes the document; called in a thread of its own. None as long as there is none.
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
