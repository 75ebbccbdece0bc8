"""Gate in front of all that is served: who may ask, from where, how much, and what browsers may do with the answer.

Pure ASGI, so that nothing is read of a request that is refused. Sources: the Fetch standard (Sec-Fetch-Site, Origin),
RFC 6265bis (SameSite), and OWASP's cheat sheets on CSRF and on DNS rebinding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.daemon.web.connections import MOST_BODY_BYTES
from autotune.daemon.web.keys import Keys

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
