"""Gate in front of all that is served: who may ask, from where, how much, and what browsers may do with the answer.

Pure ASGI, so that nothing is read of a request that is refused. Sources: the Fetch standard (Sec-Fetch-Site, Origin),
RFC 6265bis (SameSite), and OWASP's cheat sheets on CSRF and on DNS rebinding.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from pathlib import Path

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.clock import Clock
from autotune.daemon.web.connections import MOST_BODY_BYTES
from autotune.errors import AutotuneError
from autotune.files import create_private, open_regular

CSRF_HEADER = "x-csrf-token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "connection": "close",
}
_SIGN_IN, _METRICS = "/login", "/metrics"
_WAYS = {"GET", "HEAD", "POST"}


class Gate:
    """Gate in front of an application.

    Args:
        app: The application. It finds the cookie of a request, if that has one, as ``scope["state"]["cookie"]``.
        keys: Judge of cookies and tokens.
        hosts: What a request may name as its host, with the port.
    """

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(hosts)
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket that nobody accepts is closed

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                theirs = [pair for pair in message.get("headers", []) if pair[0].decode().lower() not in _HEADERS]
                message = {**message, "headers": [*theirs, *ours]}
            await send(message)

        headers = _Headers(scope)
        status, why = self._refusal(scope, headers)
        if status:
            await PlainTextResponse(f"{why}\n", status)(scope, receive, send_guarded)
            return
        scope.setdefault("state", {})["cookie"] = self._cookie_of(headers)
        await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: _Headers) -> tuple[int, str]:
        path, way = scope["path"], scope["method"]
        if headers.only("host") not in self._hosts:
            return 421, "This page is served under another name and port."  # also for a name that was rebound
        if way not in _WAYS:
            return 405, "GET, HEAD or POST."
        if path == _SIGN_IN and way == "GET":
            return 0, ""
        cookie = self._cookie_of(headers)
        if not cookie and not (path == _METRICS and self._has_token(headers)):
            return 401, "Sign in with the address that `autotune daemon url` prints."
        if headers.get("sec-fetch-site") not in ("", "same-origin", "none"):
            return 403, "Asked for by another site."
        if way == "POST":
            return self._refusal_of_write(headers, cookie)
        return 0, ""

    def _refusal_of_write(self, headers: _Headers, cookie: str) -> tuple[int, str]:
        if headers.only("origin") != f"http://{headers.only('host')}":
            return 403, "Asked for by another site."
        if headers.only("content-type").partition(";")[0].strip().lower() != "application/json":
            return 415, "JSON is expected."
        if not cookie or not self._keys.is_csrf(headers.only(CSRF_HEADER), cookie):
            return 403, "The token of the page is missing; load it again."
        length = headers.only("content-length")
        if not (length.isascii() and length.isdigit()):
            return 411, "The length is missing."
        if int(length) > MOST_BODY_BYTES:
            return 413, f"More than {MOST_BODY_BYTES} bytes."
        return 0, ""

    def _cookie_of(self, headers: _Headers) -> str:
        return valid_cookie(headers.get("cookie"), self._cookie, self._keys)

    def _has_token(self, headers: _Headers) -> bool:
        kind, _, token = headers.only("authorization").partition(" ")
        return kind.lower() == "bearer" and self._keys.is_token(token.strip())


def valid_cookie(header: str, name: str, keys: Keys) -> str:
    """Return the first valid cookie of a name in a ``Cookie`` header, in linear time; empty if there is none."""
    # of the name; each costs an HMAC
    return next((value for value in islice(_cookies(header, name), 8) if keys.is_cookie(value)), "")


def has_session(head: Iterable[bytes], name: str, keys: Keys) -> bool:
    """Return whether the lines of a request's head hold a valid cookie of a name."""
    fields = (line.decode("latin-1").partition(":") for line in head)
    return any(valid_cookie(value, name, keys) for field, _, value in fields if field.lower() == "cookie")


def _cookies(header: str, name: str) -> Iterator[str]:
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            yield value.strip('"')


class _Headers:
    """Headers of a request; of those that may stand once only, two are as good as none."""

    def __init__(self, scope: Scope) -> None:
        self._values: MutableMapping[str, list[str]] = {}
        for name, value in scope["headers"]:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def get(self, name: str) -> str:
        return "; ".join(self._values.get(name, []))

    def only(self, name: str) -> str:
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else ""


TOKEN_BYTES = 32
CODE_S = 120.0
"""Time for which a printed address can be used."""

MOST_CODES = 8
COOKIE_S = 30 * 24 * 3600.0
_LONGEST = 200  # bytes of whatever claims to be a key


class Keys:
    """Maker and judge of keys; may be asked by several threads.

    Args:
        path: File of the token; made, for this user alone, if it is not there.
        clock: Clock of codes (monotonic) and cookies (UTC).

    Attributes:
        token: The token, for a program that reads the metrics.

    Raises:
        AutotuneError: The file cannot be used, or others can read it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, float] = {}  # by its hash, the end of its time
        self.token = _token(path)
        self._key = self.token.encode()

    def new_code(self) -> str:
        """Return a code that can be exchanged once; of too many the oldest is forgotten."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            self._drop_old()
            while len(self._codes) >= MOST_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_hash(code)] = self._clock.now_s() + CODE_S
        return code

    def exchange(self, code: str) -> str | None:
        """Return a cookie for a code, which is then used up; None if it is none, or too old."""
        if len(code) > _LONGEST:
            return None
        with self._lock:
            self._drop_old()
            # The hash is looked up, so the time that it takes says nothing about the codes.
            if self._codes.pop(_hash(code), None) is None:
                return None
        stamp = str(int(self._clock.utc().timestamp()))
        return f"{stamp}.{self._mac('cookie', stamp)}"

    def is_cookie(self, cookie: str) -> bool:
        """Return whether a cookie is one of ours, and not too old."""
        stamp, _, mac = cookie.partition(".")
        if len(cookie) > _LONGEST or not (stamp.isascii() and stamp.isdigit()):
            return False
        if not hmac.compare_digest(mac.encode(), self._mac("cookie", stamp).encode()):
            return False
        return self._clock.utc().timestamp() - int(stamp) <= COOKIE_S

    def is_token(self, token: str) -> bool:
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self._key)

    def csrf(self, cookie: str) -> str:
        """Return the token that an action has to bring beside a cookie."""
        return self._mac("csrf", cookie)

    def is_csrf(self, token: str, cookie: str) -> bool:
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self.csrf(cookie).encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def _drop_old(self) -> None:
        now_s = self._clock.now_s()
        self._codes = {code: ends_s for code, ends_s in self._codes.items() if ends_s > now_s}


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _token(path: Path) -> str:
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            create_private(path, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
            return _read(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _read(path: Path) -> str:
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        text = file.read(_LONGEST).decode("ascii", "replace").strip()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise _unusable(path, "others can read it, or it is somebody else's")
    if len(text) < TOKEN_BYTES:
        raise _unusable(path, "it holds no token")
    return text


def _unusable(path: Path, why: str) -> AutotuneError:
    return AutotuneError(
        f"the token of the page cannot be used: {why}",
        where=str(path),
        remedy="Take the file away: the daemon makes a new one, and pages have to sign in again.",
    )
