"""Application of the page: what is served under which path. Nothing of a request is used as a path or a command."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from autotune.daemon.web.actions import Act, error_document
from autotune.daemon.web.broadcast import Broadcast
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
        keys: Keys of the page.
        hosts: What a request may name as its host, with the port.
        cookie: Name of the cookie.
        broadcast: The page's state.
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
