"""Client of the page's server for tests, which may send what no browser would."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of the server.

    Attributes:
        status: Status.
        headers: Headers, by their names in small letters.
        body: Body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Client of one server.

    Args:
        port: Port of the server, on loopback.

    Attributes:
        cookie: What it sends as its cookie; empty for none.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def sign_in(self, address: str) -> "Client":
        """Sign in at an address that the daemon has printed."""
        parts = urlsplit(address)
        self.cookie = self.ask(f"{parts.path}?{parts.query}").headers["set-cookie"].partition(";")[0]
        return self

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str | None] = {},
        timeout_s: float = _LIMIT_S,
    ) -> Answer:
        """Send a request; a header of None is left out."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie or None}
        if body is not None:
            sent["Content-Length"] = str(len(body))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**sent, **headers}.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, body=response.read())
        finally:
            connection.close()

    def act(self, action: object, *, csrf: str | None = None, **headers: str | None) -> Answer:
        """Ask for an action as the page does; headers by their names with ``_`` change what it sends."""
        usual = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"}
        usual |= {"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": csrf or self.ask("/api/state").json["csrf"]}
        changed = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("/api/action", method="POST", body=json.dumps(action).encode(), headers={**usual, **changed})
