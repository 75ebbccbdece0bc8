"""HTTP servers of the daemon's page and metrics, and of one search's page.

Access control is pure ASGI, so that the body of a refused request isn't read; no part of a request is used as a path.
Sources: Fetch standard (Sec-Fetch-Site, Origin), RFC 6265bis (SameSite), OWASP cheat sheets on CSRF and DNS rebinding.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Self

import uvicorn
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
from uvicorn.protocols.http.h11_impl import H11Protocol

from autotune.clock import Clock
from autotune.daemon.advice import AdviceState, Recommendations, why_not_permitted
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import ALL_SCOPES, CHANGES, Queue, accepted
from autotune.daemon.web.keys import COOKIE_S, Keys
from autotune.daemon.web.search_section import StudyProgress, clean, event_file_in, section_of
from autotune.daemon.web.state import GpuReader, Metrics, PageState, TrialEndings, View
from autotune.errors import AutotuneError
from autotune.measure.host import descendants
from autotune.trial.folders import StateFolder

_ADDRESS = "127.0.0.1"  # not encrypted; other machines connect through ssh
_BACKLOG = 128  # connections waiting to be accepted, and accepted at once before the oldest pending ones are closed
_LAST_UPDATE_S = 1.5  # in which open pages of a search receive the last events

_log = logging.getLogger(__name__)


class WebServer:
    """Server of the daemon's page and metrics.

    Args:
        port: On loopback; 0 for a free one.

    Raises:
        AutotuneError: The port is in use, or the token can't be used.
    """

    def __init__(self, home: DaemonHome, port: int, clock: Clock, *, has_actions: bool) -> None:
        self.run = secrets.token_hex(8)
        self._status: Mapping[str, Any] | None = None
        self._on_action: Callable[[], None] = lambda: None
        self._queue, self._advices = Queue(home.queue, clock), Recommendations(home.advice)
        self._gpus = GpuReader(clock, lambda: descendants(os.getpid()))
        self._endings = TrialEndings()
        self._page = PageState(home, clock)
        content = Content(
            document=self._page.document,
            metrics=Metrics(self._view, lambda: self._endings.counts).text,
            act=self._act if has_actions else None,
        )
        self._server = HttpServer(port, Keys(home.web_token, clock, self.run), content)
        self._stopped = threading.Event()
        self._updating = threading.Thread(target=self._update_loop, name="autotune-web-hour", daemon=True)

    @property
    def origin(self) -> str:
        return self._server.origin

    def start(self, on_action: Callable[[], None]) -> None:
        """Start serving; `on_action` is called in another thread after each action."""
        self._on_action = on_action
        self._updating.start()
        self._server.start()

    def close(self) -> None:
        """Stop serving and close streams, without waiting for a hanging driver."""
        self._stopped.set()
        self._server.close()
        self._updating.join(timeout=1.0)

    def note(self, status: Mapping[str, Any]) -> None:
        """Set the `Service.status`; doesn't block."""
        self._status = status

    def _view(self) -> View | None:
        if self._status is None:
            return None
        return View(status=self._status, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def _update_loop(self) -> None:
        """Update readings, history and trial counts, also without an open page."""
        while not self._stopped.wait(1.0):
            try:
                if view := self._view():
                    self._page.note(view)
                self._endings.poll(self._queue.entries())
                self._gpus.poll()
            except AutotuneError:  # of the queue; shown on the page
                continue
            except Exception:  # noqa: BLE001 -- a bug must not stop the page
                _log.exception("bug in the daemon's page; continuing")

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()


class SearchPage:
    """Context manager that serves the page of this process's search; `address` logs in once."""

    def __init__(self, state: StateFolder, config: Path, clock: Clock, *, budget_s: float, started_s: float) -> None:
        self._state, self._config, self._clock = state, config, clock
        self._budget_s, self._started_s = budget_s, started_s
        self._study = StudyProgress()
        self._lock = threading.Lock()
        state.create()
        keys = Keys(state.path / "web-token", clock, secrets.token_hex(8))
        content = Content(document=self._document, metrics=lambda: (b"# EOF\n", "text/plain"))
        self._server = HttpServer(0, keys, content)
        self.address = keys.new_address(self._server.origin)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None and self._server.streams:
            self._clock.wait(_LAST_UPDATE_S)
        self._server.close()

    def _document(self) -> dict[str, Any] | None:
        """Return the state; None before the first event."""
        with self._lock:
            if self._study.path is None:
                self._study = StudyProgress(event_file_in(self._state, socket.gethostname(), os.getpid()))
            if self._study.path is None:
                return None
            self._study.poll()
            search = {
                **section_of(self._study, is_running=not self._study.has_ended),
                "entry": None,
                "config": clean(str(self._config)),
                "verdict": self._study.verdict or None,
                "budget_s": self._budget_s,
                "used_s": round(min(self._budget_s, self._clock.now_s() - self._started_s)),
            }
        utc = self._clock.utc().isoformat(timespec="seconds")
        return {"format": 1, "utc": utc, "host": socket.gethostname(), "search": search}


# Actions of the page, enabled by --web-actions.


def act(queue: Queue, recommendations: Recommendations, request: object) -> None:
    """Perform an action.

    Args:
        request: JSON object with ``action``, and the ``id`` of an entry or, for ``apply``, of a recommendation.

    Raises:
        ValueError: The request is invalid.
        AutotuneError: The entry or recommendation doesn't allow it.
    """
    match request:
        case {"action": ("apply" | "remove" | "pause" | "resume") as action, "id": str() as id} if len(id) <= 64:
            pass
        case _:
            raise ValueError("expected apply, remove, pause or resume, and the id of an entry or a recommendation")
    if action == "apply":
        _apply(queue, recommendations, id)
    elif all(entry.id != id for entry in queue.entries()):
        raise AutotuneError("the entry no longer exists", remedy="Check the queue.")
    elif action == "remove":
        queue.remove(id)
    else:
        queue.change(id, CHANGES[action])


def _apply(queue: Queue, recommendations: Recommendations, id: str) -> None:
    """Let the daemon apply a recommendation as if its entry had the permission."""
    advice = next((one for one in recommendations.all() if one.id == id), None)
    if advice is None:
        raise AutotuneError("the recommendation no longer exists", remedy="Check the recommendations.")
    if advice.now().state is AdviceState.APPLIED:
        raise AutotuneError("it is already applied", remedy=f"To revert it: {advice.command}")
    remedy = f"In a terminal: {advice.command}"
    if why := why_not_permitted(advice, ALL_SCOPES):
        raise AutotuneError(why, remedy=remedy)
    entries = [entry for entry in queue.entries() if entry.answer is not None and entry.answer.advice == id]
    if not entries or queue.change(entries[-1].id, accepted) is None:
        raise AutotuneError("its search is no longer in the queue", remedy=remedy)


# HTTP application and server.


class HttpServer:
    """HTTP server on loopback: listens when created, answers after `start`."""

    def __init__(self, port: int, keys: Keys, content: Content) -> None:
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self.origin = f"http://{_ADDRESS}:{self.port}"
        self._broadcast = Broadcast(content)
        hosts = [f"{name}:{self.port}" for name in (_ADDRESS, "localhost")]
        cookie = f"autotune-{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(content, self._broadcast, keys, hosts, cookie),
                http=partial(BoundedProtocol, PendingConnections()),  # type: ignore[arg-type]  # called like the class
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",  # clients must not fill the daemon's log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                backlog=_BACKLOG,
            )
        )
        self._thread = threading.Thread(target=self._run, name="autotune-web", daemon=True)

    @property
    def streams(self) -> int:
        return self._broadcast.streams

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and close streams."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except Exception:  # noqa: BLE001 -- the daemon continues without the page
            _log.exception("the page's server failed; the daemon continues without it")


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((_ADDRESS, port), backlog=_BACKLOG)
    except OSError as error:
        raise AutotuneError(
            f"the page cannot be served at {_ADDRESS}, port {port}: {os.strerror(error.errno or 0)}",
            where="--web",
            remedy="Another process may be using the port; choose another one with --web-port.",
        ) from error


MAX_BODY_BYTES = 1 << 14
MAX_STREAMS = 40
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of an HTTP server: functions, called in worker threads.

    Attributes:
        document: Returns the page's state, if any.
        metrics: Returns the metrics and their content type.
        act: Performs an action, if enabled.
    """

    document: Callable[[], Mapping[str, Any] | None]
    metrics: Callable[[], tuple[bytes, str]]
    act: Callable[[object], None] | None = None


def application(content: Content, broadcast: Broadcast, keys: Keys, hosts: Iterable[str], cookie: str) -> ASGIApp:
    """Return the application behind its access control.

    Args:
        hosts: Permitted ``Host`` headers, with port.
    """
    static = {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            return PlainTextResponse("File not found.\n", 404)
        return Response(static[name], media_type=_TYPES[name[name.rindex(".") :]])

    def sign_in(request: Request) -> Response:
        value = keys.exchange(request.query_params.get("code", ""))
        if value is None:
            text = "This address was used or has expired. Get a new one with `autotune daemon url`.\n"
            return PlainTextResponse(text, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(cookie, value, max_age=int(COOKIE_S), httponly=True, samesite="strict", path="/")
        return answer

    def signed(text: str, request: Request) -> str:
        own = {"actions": content.act is not None, "csrf": keys.csrf(request.state.cookie) if content.act else None}
        return text.replace("{", f"{json.dumps(own)[:-1]}, ", 1)  # the state begins with it

    async def state(request: Request) -> Response:
        if not (text := await broadcast.text()):
            return PlainTextResponse("The daemon is starting; retry in a moment.\n", 503)
        return Response(signed(text, request), media_type="application/json")

    async def events(request: Request) -> Response:
        if broadcast.streams >= MAX_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", 503, {"retry-after": "10"})
        stream = (signed(event, request) async for event in broadcast.events())
        return StreamingResponse(stream, media_type="text/event-stream")

    async def action(request: Request) -> Response:
        try:
            if content.act is None:
                raise AutotuneError("actions are disabled", remedy="Start the daemon with --web-actions.")
            await run_in_threadpool(content.act, json.loads(await request.body()))
        except AutotuneError as error:
            status = 409 if content.act else 403
            return JSONResponse({"error": {"message": error.message, "remedy": error.remedy}}, status)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": {"message": f"invalid action: {error}", "remedy": None}}, 400)
        return JSONResponse({})

    async def metrics(_request: Request) -> Response:
        text, kind = await run_in_threadpool(content.metrics)
        return Response(text, headers={"content-type": kind})

    routes = [
        Route("/", lambda _request: HTMLResponse(static["index.html"])),
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
    """State for all streams of one event loop, regenerated at most once per second."""

    def __init__(self, content: Content) -> None:
        self._make = content.document
        self._shown: Mapping[str, Any] | None = None
        self._text = ""
        self._made_s = -math.inf
        self._making = asyncio.Lock()
        self.streams = 0

    async def text(self) -> str:
        """Return the state as JSON; empty if none yet."""
        async with self._making:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._made_s >= 0.9:
                document = await asyncio.to_thread(self._make)
                shown = document and {**document, "utc": None}  # a new time alone is not a change
                if document and shown != self._shown:
                    self._shown, self._text = shown, json.dumps(document)
                self._made_s = now_s
        return self._text

    async def events(self) -> AsyncIterator[str]:
        """Yield the state and each change as server-sent events."""
        self.streams += 1
        try:
            sent, quiet_s = "", 0
            while True:
                text = await self.text()
                if text != sent:
                    sent, quiet_s = text, 0
                    yield f"event: state\ndata: {text}\n\n"
                elif quiet_s >= 15:  # proxies and browsers may close idle connections
                    quiet_s = 0
                    yield ": keep-alive\n\n"
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
    """ASGI middleware for access control and security headers; sets ``request.state.cookie``."""

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a websocket that isn't accepted gets closed

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope)
        status, why = self._refusal(request)
        answer = PlainTextResponse(f"{why}\n", status) if status else self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> tuple[int, str]:
        """Return status and reason of a refusal; status 0 permits the request."""
        path, method, host = request.scope["path"], request.method, _only(request, "host")
        if host not in self._hosts:
            return 421, "This page has another host name or port."  # protects against DNS rebinding
        if method not in ("GET", "HEAD", "POST"):
            return 405, "Use GET, HEAD or POST."
        if path == "/login" and method == "GET":
            return 0, ""
        cookie = valid_cookie("; ".join(request.headers.getlist("cookie")), self._cookie, self._keys)
        request.state.cookie = cookie
        kind, _, token = _only(request, "authorization").partition(" ")
        has_token = kind.lower() == "bearer" and self._keys.is_token(token.strip())
        if not cookie and not (path == "/metrics" and has_token):
            return 401, "Log in with the address that `autotune daemon url` prints."
        is_write = method == "POST"
        sites = request.headers.getlist("sec-fetch-site")
        is_foreign = is_write and _only(request, "origin") != f"http://{host}"
        if is_foreign or sites not in ([], ["same-origin"], ["none"]):
            return 403, "Cross-site request."
        return self._refusal_of_write(request, cookie) if is_write else (0, "")

    def _refusal_of_write(self, request: Request, cookie: str) -> tuple[int, str]:
        if _only(request, "content-type").partition(";")[0].strip().lower() != "application/json":
            return 415, "The content type must be application/json."
        if not cookie or not self._keys.is_csrf(_only(request, CSRF_HEADER), cookie):
            return 403, "The CSRF token is missing or invalid; reload the page."
        length = _only(request, "content-length")
        if not (length.isascii() and length.isdigit()):
            return 411, "Content-Length is missing or invalid."
        if int(length) > MAX_BODY_BYTES:
            return 413, f"The body is larger than {MAX_BODY_BYTES} bytes."
        return 0, ""


def _only(request: Request, name: str) -> str:
    """Return a header's value, "" if missing or repeated."""
    values = request.headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def valid_cookie(header: str, name: str, keys: Keys) -> str:
    """Return the first valid cookie in a ``Cookie`` header, or ""."""
    pairs = (part.strip().partition("=") for part in header.split(";"))
    values = (value.strip('"') for key, _, value in pairs if key == name)
    return next((value for value in islice(values, 8) if keys.is_cookie(value)), "")  # each costs an HMAC


# Connection limits, which apply before a client has authenticated.


MAX_PENDING = 256  # connections without a complete request head
MAX_REQUEST_BYTES = 1 << 15  # with head and body, as transferred
HEAD_TIMEOUT_S = 5.0
STALL_TIMEOUT_S = 15.0  # pause of a client that sends a body or reads a response


class PendingConnections:
    """Connections without a request. Above `MAX_PENDING`, the oldest of the user with the most is closed."""

    def __init__(self) -> None:
        self._by_user: dict[int | None, dict[BoundedProtocol, None]] = {}

    def add(self, one: BoundedProtocol) -> None:
        self._by_user.setdefault(one.uid, {})[one] = None
        if sum(map(len, self._by_user.values())) > MAX_PENDING:
            most = max(self._by_user.values(), key=len)
            oldest = next(iter(most))
            self.discard(oldest)
            oldest.transport.abort()

    def discard(self, one: BoundedProtocol) -> None:
        of_user = self._by_user.get(one.uid, {})
        of_user.pop(one, None)
        if not of_user:
            self._by_user.pop(one.uid, None)


class BoundedProtocol(H11Protocol):
    """Connection with one request, closed if that is too large or the client too slow.

    uvicorn limits neither the time for head, body and reading, nor the size of a head that arrives at once.
    """

    uid: int | None = None  # of the user at the other end, if known

    def __init__(self, pending: PendingConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._pending = pending
        self._received_bytes = 0
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.uid = _user_of(transport)
        self._read_timer = self.loop.call_later(HEAD_TIMEOUT_S, transport.abort)
        self._pending.add(self)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > MAX_REQUEST_BYTES:  # before it is parsed
            self.transport.abort()
            return
        super().data_received(data)
        if self.cycle is not None:
            self._pending.discard(self)
            if self._read_timer is not None:
                self._read_timer.cancel()
            if self.cycle.more_body:
                self._read_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._pending.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()


_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
_HEADER_BYTES, _UID_AT = 16, 80  # size of nlmsghdr; offset of inet_diag_msg.idiag_uid after it
_ANY = 0xFFFFFFFF


def _user_of(transport: asyncio.Transport) -> int | None:
    """Return the user at the other end of a local connection, by sock_diag(7)."""
    ends = [transport.get_extra_info(name) for name in ("peername", "sockname")]
    family = socket.AF_INET
    try:
        ports = struct.pack("!HH", *(end[1] for end in ends))
        addresses = b"".join(socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in ends)
        wanted = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, _ANY) + ports + addresses
        wanted += struct.pack("=III", 0, _ANY, _ANY)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)  # it answers immediately
            kernel.send(struct.pack("=IHHII", _HEADER_BYTES + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
            answer = kernel.recv(4096)
        (kind,) = struct.unpack_from("=H", answer, 4)
        uid, inode = struct.unpack_from("=II", answer, _UID_AT)
        return int(uid) if kind == _BY_FAMILY and inode else None  # the kernel reports closed sockets as root's
    except (OSError, TypeError, struct.error):  # the socket is closed, or sock_diag isn't available
        return None
