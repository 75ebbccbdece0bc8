"""Server of the page for tests: its files, a state that a test sets, and the headers that the daemon's server sends."""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_WAIT_S = 0.1


class PageServer:
    """Server on loopback, in threads.

    Attributes:
        port: Its port; stays the same when it is started again.
        state: The state of the page.
        acted: Requests for actions, each with the token that came with it.
        asked: Paths that were asked for.
        is_signed_in: Whether requests have the cookie.
        refusal: Answer to the next actions; None does them.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.port = 0
        self.state = dict(state)
        self.acted: list[tuple[Mapping[str, Any], str | None]] = []
        self.asked: list[str] = []
        self.is_signed_in = True
        self.refusal: Mapping[str, Any] | None = None
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def address(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start, at the same port as before."""
        served = self

        class Handler(_Handler):
            page = served

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        self.goes_on = threading.Event()
        self.goes_on.set()
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """End; streams end with it."""
        if self._server is not None:
            self.goes_on.clear()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Handler(BaseHTTPRequestHandler):
    page: PageServer
    timeout = 30

    def do_GET(self) -> None:
        """Answer a request for a file, the state or the stream."""
        self.page.asked.append(self.path)
        if not self.page.is_signed_in and self.path.startswith("/api/"):
            self._send(401, "application/json", b"{}")
        elif self.path == "/":
            self._send_file("index.html")
        elif self.path.startswith("/static/"):
            self._send_file(self.path.removeprefix("/static/"))
        elif self.path == "/api/state":
            self._send(200, "application/json", json.dumps(self.page.state).encode())
        elif self.path == "/api/events":
            self._stream()
        else:
            self._send(404, "text/plain", b"")

    def do_POST(self) -> None:
        """Take an action."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.page.acted.append((body, self.headers["X-CSRF-Token"]))
        refusal = self.page.refusal
        self._send(409 if refusal else 200, "application/json", json.dumps(refusal or {}).encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def _send_file(self, name: str) -> None:
        file = files("autotune.daemon.web").joinpath("static", name)
        if "/" in name or not file.is_file():
            return self._send(404, "text/plain", b"")
        return self._send(200, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8", file.read_bytes())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self._head(status, kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _stream(self) -> None:
        self._head(200, "text/event-stream")
        self.end_headers()
        sent = None
        goes_on = self.page.goes_on
        waits = threading.Event()
        try:
            while goes_on.is_set():
                document = json.dumps(self.page.state)
                if document != sent:
                    self.wfile.write(f"event: state\ndata: {document}\n\n".encode())
                    sent = document
                waits.wait(_WAIT_S)
        except OSError:  # the browser has gone
            return
