"""Servers of the daemon's page and metrics, and of one search's page: what is served under which path, and to whom.

They run in threads that keep nobody waiting. The gate is pure ASGI, so that nothing is read of a request that is
refused; nothing of a request is used as a path. Sources: the Fetch standard (Sec-Fetch-Site, Origin), RFC 6265bis
(SameSite), and OWASP's cheat sheets on CSRF and on DNS rebinding.
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
from autotune.daemon.advice import Advices, AdviceState, why_not_permitted
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import ALL_SCOPES, CHANGES, Queue, accepted
from autotune.daemon.web.keys import COOKIE_S, Keys
from autotune.daemon.web.search_section import StudyFollower, event_file_in, section_of
from autotune.daemon.web.state import GpuReader, Metrics, PageState, TrialEndings, View
from autotune.errors import AutotuneError
from autotune.measure.host import descendants
from autotune.trial.folders import StateFolder

_ADDRESS = "127.0.0.1"  # nothing is encrypted: other machines come through ssh
_BACKLOG = 128  # waiting to be accepted, and accepted in one turn of the loop, before the oldest strangers are cut
_LAST_LOOK_S = 1.5  # in which pages of a search that are open get what came last

_log = logging.getLogger(__name__)


class WebServer:
    """Server of the page and the metrics.

    Args:
        port: Port on loopback; 0 takes a free one.
        has_actions: Whether the page may change the queue, and have advice applied.

    Attributes:
        run: Name of this run of it, see `Keys`.

    Raises:
        AutotuneError: The port is taken, or the token cannot be used.
    """

    def __init__(self, home: DaemonHome, port: int, clock: Clock, *, has_actions: bool) -> None:
        self.run = secrets.token_hex(8)
        self._status: Mapping[str, Any] | None = None
        self._on_action: Callable[[], None] = lambda: None
        self._queue, self._advices = Queue(home.queue, clock), Advices(home.advice)
        self._gpus = GpuReader(clock, lambda: descendants(os.getpid()))
        self._endings = TrialEndings()
        page = self._page = PageState(home, clock)
        content = Content(
            document=lambda csrf: page.document(actions=has_actions, csrf=csrf),
            metrics=Metrics(self._view, lambda: self._endings.counts).text,
            act=self._act if has_actions else None,
        )
        self._server = HttpServer(port, Keys(home.web_token, clock, self.run), content)
        self._ends = threading.Event()
        self._noting = threading.Thread(target=self._note_for_ever, name="autotune-web-hour", daemon=True)

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return self._server.origin

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """
        self._on_action = on_action
        self._noting.start()
        self._server.start()

    def close(self) -> None:
        """End; streams that are open end with it, and a driver that hangs is left to itself."""
        self._ends.set()
        self._server.close()
        self._noting.join(timeout=1.0)

    def note(self, status: Mapping[str, Any]) -> None:
        """Take over what the daemon says now, see `Service.status`; takes microseconds, and never waits."""
        self._status = status

    def _view(self) -> View | None:
        if self._status is None:
            return None
        return View(status=self._status, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def _note_for_ever(self) -> None:
        """Read the GPUs, keep the last hour, and count the trials, whether a page is open or not."""
        while not self._ends.wait(1.0):
            try:
                if view := self._view():
                    self._page.note(view)
                self._endings.look(self._queue.entries())
                self._gpus.look()
            except AutotuneError:  # of the queue, which the page says
                continue
            except Exception:  # noqa: BLE001 -- whatever it is, the page goes on with what it has
                _log.exception("a bug in the daemon's page; it goes on")

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()


class SearchPage:
    """Page of the search that this process makes; a context manager that serves it.

    Args:
        state: Its state folder, with the events of its searches.
        config: The config, as typed.
        started_s: When the search began, on the clock's monotonic time.

    Attributes:
        address: Address that signs one browser in, once, within two minutes.

    Raises:
        AutotuneError: It cannot be served.
    """

    def __init__(self, state: StateFolder, config: Path, clock: Clock, *, budget_s: float, started_s: float) -> None:
        self._state, self._config, self._clock = state, config, clock
        self._budget_s, self._started_s = budget_s, started_s
        self._study: StudyFollower | None = None
        self._lock = threading.Lock()
        state.create()
        keys = Keys(state.path / "web-token", clock, secrets.token_hex(8))
        content = Content(document=lambda _csrf: self._document(), metrics=lambda: (b"# EOF\n", "text/plain"))
        self._server = HttpServer(0, keys, content)
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
                path = event_file_in(self._state, socket.gethostname(), os.getpid())
                self._study = StudyFollower(path) if path is not None else None
            if self._study is None:
                return None
            self._study.has_news()
            progress = self._study.progress
            search = section_of(
                self._study,
                entry=None,
                config=str(self._config),
                is_running=not progress.has_ended,
                verdict=progress.verdict or None,
                budget_s=self._budget_s,
                used_s=min(self._budget_s, self._clock.now_s() - self._started_s),
            )
        utc = self._clock.utc().isoformat(timespec="seconds")
        return {"format": 1, "utc": utc, "host": socket.gethostname(), "search": search, "actions": False, "csrf": None}


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
    if advice.now().state is AdviceState.APPLIED:
        raise AutotuneError("it is applied already", remedy=f"To undo it: {advice.command}")
    remedy = f"In a terminal: {advice.command}"
    if why := why_not_permitted(advice, ALL_SCOPES):
        raise AutotuneError(why, remedy=remedy)
    of_it = [entry for entry in queue.entries() if entry.answer is not None and entry.answer.advice == id]
    if not of_it or queue.change(of_it[-1].id, accepted) is None:
        raise AutotuneError("the search that gave it is not in the queue any more", remedy=remedy)


# HTTP: an application behind a gate, and its server.


class HttpServer:
    """HTTP server on loopback that listens from the start, and answers once it is started.

    Raises:
        AutotuneError: The port is taken.
    """

    def __init__(self, port: int, keys: Keys, content: Content) -> None:
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self.origin = f"http://{_ADDRESS}:{self.port}"
        self._broadcast = Broadcast(content)
        hosts = [f"{name}:{self.port}" for name in (_ADDRESS, "localhost")]  # as browsers may call it
        cookie = f"autotune-{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(content, self._broadcast, keys, hosts, cookie),
                http=partial(BoundedProtocol, Strangers()),  # type: ignore[arg-type]  # called as the class is
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",  # what a client sends is no reason to fill the daemon's log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                backlog=_BACKLOG,
            )
        )
        self._thread = threading.Thread(target=self._run, name="autotune-web", daemon=True)

    @property
    def streams(self) -> int:
        """Number of streams that are open."""
        return self._broadcast.streams

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=3.0)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except Exception:  # noqa: BLE001 -- whatever it is, searches and trainings are looked after without the page
            _log.exception("the page is not served any more; the daemon goes on")


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((_ADDRESS, port), backlog=_BACKLOG)
    except OSError as error:
        raise AutotuneError(
            f"the page cannot be served at {_ADDRESS}, port {port}: {os.strerror(error.errno or 0)}",
            where="--web",
            remedy="Another daemon, or something else, listens there perhaps: name another port with --web-port.",
        ) from error


MOST_BODY_BYTES = 1 << 14
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


# Connections: bounds on what a client may hold before it has shown a session.


MOST_STRANGERS = 256
"""Number of open connections of which no request has come yet."""

MOST_REQUEST_BYTES = 1 << 15
"""Size of a request, its head and whatever its body is sent as; a connection has one."""

STRANGER_S = 5.0
"""Time in which the head of a request has to have come."""

SLOWEST_S = 15.0
"""Time for which a client may send nothing of a body, or take nothing of an answer."""


class Strangers:
    """Connections without a request so far: of too many the oldest of the user who has the most is cut."""

    def __init__(self) -> None:
        self._by_user: dict[int | None, dict[BoundedProtocol, None]] = {}

    def add(self, one: BoundedProtocol) -> None:
        self._by_user.setdefault(one.uid, {})[one] = None
        if sum(map(len, self._by_user.values())) > MOST_STRANGERS:
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
    """Protocol of one connection: cut where its request is too long or does not come, or its answer is not taken.

    uvicorn waits for ever for the end of a head or a body, and for a client that takes nothing, and a head that comes
    at once may be of any size. Each connection has one request here.

    Attributes:
        uid: User at the other end; None where the system does not tell it.
    """

    uid: int | None = None

    def __init__(self, strangers: Strangers, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._strangers = strangers
        self._received_bytes = 0
        self._late: asyncio.TimerHandle | None = None  # the request
        self._full: asyncio.TimerHandle | None = None  # what the client does not take

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.uid = _user_of(transport)
        self._late = self.loop.call_later(STRANGER_S, transport.abort)
        self._strangers.add(self)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > MOST_REQUEST_BYTES:  # before it is parsed
            self.transport.abort()
            return
        super().data_received(data)
        if self.cycle is not None:
            self._strangers.discard(self)
            if self._late is not None:
                self._late.cancel()
            if self.cycle.more_body:
                self._late = self.loop.call_later(SLOWEST_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._full):
            if timer is not None:
                timer.cancel()
        self._strangers.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the client does not take what was sent."""
        super().pause_writing()
        self._full = self.loop.call_later(SLOWEST_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._full is not None:
            self._full.cancel()


_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
_HEADER_BYTES, _UID_AT = 16, 80  # nlmsghdr; nlmsghdr and what stands before idiag_uid in inet_diag_msg
_ANY = 0xFFFFFFFF


def _user_of(transport: asyncio.Transport) -> int | None:
    """Return the user whose socket is at the other end of a TCP connection within this machine; see sock_diag(7)."""
    ends = [transport.get_extra_info(name) for name in ("peername", "sockname")]
    family = socket.AF_INET
    try:
        ports = struct.pack("!HH", *(end[1] for end in ends))
        addresses = b"".join(socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in ends)
        wanted = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, _ANY) + ports + addresses
        wanted += struct.pack("=III", 0, _ANY, _ANY)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)  # it answers at once
            kernel.send(struct.pack("=IHHII", _HEADER_BYTES + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted)
            answer = kernel.recv(4096)
        (kind,) = struct.unpack_from("=H", answer, 4)
        uid, inode = struct.unpack_from("=II", answer, _UID_AT)
        return int(uid) if kind == _BY_FAMILY and inode else None  # one that is closed already is root's to the kernel
    except (OSError, TypeError, struct.error):  # it is gone already, or no system to ask
        return None
