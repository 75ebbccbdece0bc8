"""Application of the page: what is served under which path, behind a gate. Nothing of a request is used as a path.

The gate is pure ASGI, so that nothing is read of a request that is refused. Sources: the Fetch standard
(Sec-Fetch-Site, Origin), RFC 6265bis (SameSite), and OWASP's cheat sheets on CSRF and on DNS rebinding.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.daemon.advice import Advices, AdviceState, why_not_permitted
from autotune.daemon.queue import ALL_SCOPES, CHANGES, Queue, accepted
from autotune.daemon.web.connections import MOST_BODY_BYTES
from autotune.daemon.web.keys import COOKIE_S, Keys
from autotune.daemon.web.without_script import plain_html
from autotune.errors import AutotuneError

MOST_STREAMS = 40
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_CSRF_PLACE = "csrf-token-of-the-page"  # stands for the token of whoever reads the state, which is one for all


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is served.

    Attributes:
        document: Makes the page's state, given what stands for the token of whoever reads it (None where nothing can
            be changed); None as long as there is none. Called in a thread of its own.
        metrics: Returns the metrics in OpenMetrics, and their content type.
        act: Does an action; None where the page may change nothing.
    """

    document: Callable[[str | None], Mapping[str, Any] | None]
    metrics: Callable[[], tuple[bytes, str]]
    act: Callable[[object], None] | None = None


def application(content: Content, broadcast: Broadcast, keys: Keys, hosts: Iterable[str], cookie: str) -> ASGIApp:
    """Return the application, behind its gate.

    Args:
        hosts: What a request may name as its host, with the port.
        cookie: Name of the cookie.
    """
    static = {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}

    async def plain(_request: Request) -> Response:
        text = await broadcast.text()
        state = plain_html(json.loads(text)) if text else "It has only just begun."
        return HTMLResponse(static["plain.html"].decode().replace("$state", state, 1))

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            return PlainTextResponse("There is no such file.\n", 404)
        return Response(static[name], media_type=_TYPES[name[name.rindex(".") :]])

    def sign_in(request: Request) -> Response:
        value = keys.exchange(request.query_params.get("code", ""))
        if value is None:
            text = "This address was used already, or is too old. `autotune daemon url` prints another one.\n"
            return PlainTextResponse(text, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, value, max_age=int(COOKIE_S), httponly=True, samesite="strict", path="/")
        return answer

    def signed(text: str, request: Request) -> str:
        """Return the state with the token of this page in its place; one without actions has no place for it."""
        return text.replace(json.dumps(_CSRF_PLACE), json.dumps(keys.csrf(request.state.cookie)), 1)

    async def state(request: Request) -> Response:
        if not (text := await broadcast.text()):
            return PlainTextResponse("The daemon has only just begun; ask again in a moment.\n", 503)
        return Response(signed(text, request), media_type="application/json")

    async def events(request: Request) -> Response:
        if broadcast.streams >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", 503, {"retry-after": "10"})
        stream = (signed(event, request) async for event in broadcast.events())
        return StreamingResponse(stream, media_type="text/event-stream")

    async def action(request: Request) -> Response:
        try:
            if content.act is None:
                raise AutotuneError("this page changes nothing", remedy="Start the daemon with --web-actions.")
            await run_in_threadpool(content.act, json.loads(await request.body()))
        except AutotuneError as error:
            status = 409 if content.act else 403
            return JSONResponse({"error": {"message": error.message, "remedy": error.remedy}}, status)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": {"message": f"this is no action: {error}", "remedy": None}}, 400)
        return JSONResponse({})

    async def metrics(_request: Request) -> Response:
        text, kind = await run_in_threadpool(content.metrics)
        return Response(text, headers={"content-type": kind})

    routes = [
        Route("/", lambda _request: HTMLResponse(static["index.html"])),
        Route("/plain", plain),
        Route("/login", sign_in, methods=["GET"]),
        Route("/static/{name}", file),
        Route("/api/state", state),
        Route("/api/events", events),
        Route("/api/action", action, methods=["POST"]),
        Route("/metrics", metrics),
        Route("/health", lambda _request: JSONResponse({"status": "ok"})),
    ]
    return RequestGuard(Starlette(routes=routes), keys, hosts, cookie)


class Broadcast:
    """The page's state for all who follow it, made anew at most once a second, in one event loop."""

    def __init__(self, content: Content) -> None:
        self._make = content.document
        self._place = _CSRF_PLACE if content.act is not None else None
        self._shown: Mapping[str, Any] | None = None
        self._text = ""
        self._made_s = -math.inf
        self._making = asyncio.Lock()
        self.streams = 0

    async def text(self) -> str:
        """Return the state as JSON; empty as long as there is none."""
        async with self._making:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._made_s >= 0.9:
                document = await asyncio.to_thread(self._make, self._place)
                shown = document and {**document, "utc": None}  # its moment alone is no news
                if document and shown != self._shown:
                    self._shown, self._text = shown, json.dumps(document)
                self._made_s = now_s
        return self._text

    async def events(self) -> AsyncIterator[str]:
        """Yield a server-sent event for each change, from the present state on."""
        self.streams += 1
        try:
            sent, quiet_s = "", 0
            while True:
                text = await self.text()
                if text != sent:
                    sent, quiet_s = text, 0
                    yield f"event: state\ndata: {text}\n\n"
                elif quiet_s >= 15:  # proxies and browsers take a longer silence for a broken connection
                    quiet_s = 0
                    yield ": nothing new\n\n"
                quiet_s += 1
                await asyncio.sleep(1.0)
        finally:
            self.streams -= 1


CSRF_HEADER = "x-csrf-token"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "connection": "close",
}


class RequestGuard:
    """Gate in front of an application: who may ask, from where, how much, and what browsers may do with the answer.

    The application finds the cookie of a request, if that has one, as ``request.state.cookie``.
    """

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return  # a websocket that nobody accepts is closed

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope)
        status, why = self._refusal(request)
        answer = PlainTextResponse(f"{why}\n", status) if status else self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> tuple[int, str]:
        """Return the status and the reason of a refusal; 0 for none."""
        path, way, host = request.scope["path"], request.method, _only(request, "host")
        if host not in self._hosts:
            return 421, "This page is served under another name and port."  # also for a name that was rebound
        if way not in ("GET", "HEAD", "POST"):
            return 405, "GET, HEAD or POST."
        if path == "/login" and way == "GET":
            return 0, ""
        cookie = valid_cookie("; ".join(request.headers.getlist("cookie")), self._cookie, self._keys)
        request.state.cookie = cookie
        kind, _, token = _only(request, "authorization").partition(" ")
        has_token = kind.lower() == "bearer" and self._keys.is_token(token.strip())
        if not cookie and not (path == "/metrics" and has_token):
            return 401, "Sign in with the address that `autotune daemon url` prints."
        is_write = way == "POST"
        sites = request.headers.getlist("sec-fetch-site")
        is_foreign = is_write and _only(request, "origin") != f"http://{host}"
        if is_foreign or sites not in ([], ["same-origin"], ["none"]):
            return 403, "Asked for by another site."
        return self._refusal_of_write(request, cookie) if is_write else (0, "")

    def _refusal_of_write(self, request: Request, cookie: str) -> tuple[int, str]:
        if _only(request, "content-type").partition(";")[0].strip().lower() != "application/json":
            return 415, "JSON is expected."
        if not cookie or not self._keys.is_csrf(_only(request, CSRF_HEADER), cookie):
            return 403, "The token of the page is missing; load it again."
        length = _only(request, "content-length")
        if not (length.isascii() and length.isdigit()):
            return 411, "The length is missing."
        if int(length) > MOST_BODY_BYTES:
            return 413, f"More than {MOST_BODY_BYTES} bytes."
        return 0, ""


def _only(request: Request, name: str) -> str:
    """Return a header that may stand once only; two are as good as none."""
    values = request.headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def valid_cookie(header: str, name: str, keys: Keys) -> str:
    """Return the first valid cookie of a name in a ``Cookie`` header, in linear time; empty if there is none."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    values = (value.strip('"') for key, _, value in pairs if key == name)
    return next((value for value in islice(values, 8) if keys.is_cookie(value)), "")  # each costs an HMAC


def has_session(head: Iterable[bytes], name: str, keys: Keys) -> bool:
    """Return whether the lines of a request's head hold a valid cookie of a name."""
    fields = (line.decode("latin-1").partition(":") for line in head)
    return any(valid_cookie(value, name, keys) for field, _, value in fields if field.lower() == "cookie")


# Actions of the page: what it may change, where the daemon was started with that permission.


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
        case {"action": ("apply" | "remove" | "pause" | "resume") as action, "id": str() as id} if len(id) <= 64:
            pass
        case _:
            raise ValueError("apply, remove, pause or resume, and the id of an entry or an advice, are expected")
    if action == "apply":
        _apply(queue, advices, id)
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
