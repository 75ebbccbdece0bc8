"""Attacks on the page's server over real connections: who gets in, and what those who do not are answered."""

import contextlib
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.daemon.web.keys import CODE_S, COOKIE_S, TOKEN_BYTES, Keys
from autotune.daemon.web.server import MAX_BODY_BYTES, MAX_PENDING, MAX_STREAMS
from autotune.errors import AutotuneError
from tests.daemon.web.client import Client
from tests.daemon.web.page_server import PageServer
from tests.until import until

PATHS = ("/", "/static/page.js", "/api/state", "/api/events", "/metrics", "/health", "/nothing")
PAUSE = {"action": "pause", "id": "0123456789abcdef"}


STATE = {"headline": {"text": "Nothing runs."}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A server."""
    server = PageServer(tmp_path_factory.mktemp("served"), STATE)
    yield server
    server.stop()


@pytest.fixture
def served(server: PageServer) -> PageServer:
    """That server with a small state, of which no action was asked yet."""
    server.state = dict(STATE)
    server.acted.clear()
    return server


@pytest.fixture
def client(served: PageServer) -> Client:
    """A client that has signed in."""
    return Client(served.port).sign_in(served.address)


def test_who_has_signed_in_is_served(served: PageServer, client: Client) -> None:
    """The page, its files, the state and its own health; the state holds no key."""
    for path in ("/", "/static/page.js", "/static/style.css", "/api/state", "/health", "/metrics"):
        assert client.ask(path).status == 200, path
    assert b"<noscript>" in client.ask("/").body
    state = client.ask("/api/state")
    assert state.json["headline"]["text"] == "Nothing runs."
    assert served.token.read_text().strip() not in state.body.decode()
    assert client.cookie.partition("=")[2] not in state.body.decode()


@pytest.mark.parametrize("path", PATHS)
def test_without_a_cookie_there_is_nothing(served: PageServer, path: str) -> None:
    """Static files, metrics and health included; nor does an answer tell which paths there are."""
    answer = Client(served.port).ask(path)
    assert answer.status == 401
    assert answer.body == b"Log in with the address that `autotune daemon url` prints.\n"


@pytest.mark.parametrize(
    "cookie",
    ["{name}=", "{name}=1.2", "{name}={stamp}.{zeros}", "{name}=9{value}", "{name}=; {name}={value}x", "other={value}"],
)
def test_a_forged_cookie_is_none(served: PageServer, client: Client, cookie: str) -> None:
    """Whatever was changed of it."""
    name, _, value = client.cookie.partition("=")
    client.cookie = cookie.format(name=name, value=value, stamp=value.partition(".")[0], zeros="0" * 64)
    assert client.ask("/api/state").status == 401


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost", "127.0.0.1.evil.example:{port}", None]
)
def test_a_foreign_host_is_refused(client: Client, host: str | None) -> None:
    """Also with the cookie: a name that was bound to this address anew is another host, and so is another port."""
    answer = client.ask("/api/state", headers={"Host": host and host.format(port=client.port)})
    assert answer.status in (400, 421)
    assert b"headline" not in answer.body
    assert client.ask("/api/state", headers={"Host": f"localhost:{client.port}"}).status == 200


def test_a_printed_address_works_once(served: PageServer) -> None:
    """Its code becomes a cookie that scripts cannot read and other sites do not send; nobody can use it again."""
    client = Client(served.port)
    path = served.address.removeprefix(served.origin)
    first = client.ask(path)
    assert (first.status, first.headers["location"]) == (303, "/")
    attributes = {part.strip().lower() for part in first.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    again = client.ask(path)
    assert again.status == 401
    assert "set-cookie" not in again.headers
    assert b"autotune daemon url" in again.body


@pytest.mark.parametrize("code", ["", "x", "0" * 43, "x" * 10_000, "%00", "../../web-token"])
def test_a_guessed_code_is_none(served: PageServer, code: str) -> None:
    """Nor does a wrong one use up the right one."""
    address = served.address
    assert Client(served.port).ask(f"/login?code={code}").status == 401
    assert Client(served.port).sign_in(address).ask("/health").status == 200


def test_codes_and_cookies_grow_old(tmp_path: Path) -> None:
    """A code after two minutes, and with the daemon's run; a cookie after thirty days."""
    clock = VirtualClock()

    def code_of(keys: Keys) -> str:
        return keys.new_address("http://h:1").removeprefix("http://h:1/login?code=")

    keys, later = Keys(tmp_path / "token", clock, "run"), Keys(tmp_path / "token", clock, "later")
    code = code_of(keys)
    clock.wait(CODE_S + 1)
    assert keys.exchange(code) is None
    cookie = keys.exchange(code := code_of(keys))
    assert cookie is not None
    assert later.is_cookie(cookie)
    assert later.exchange(code) is None
    assert later.exchange(code_of(keys)) is None
    clock.wait(COOKIE_S + 1)
    assert not keys.is_cookie(cookie)


def test_the_token_is_for_the_metrics_alone(served: PageServer) -> None:
    """As Bearer, in the header, and nowhere else."""
    token, client = served.token.read_text().strip(), Client(served.port)
    right, *wrong = (
        {"Authorization": f"{words}{token}{end}"} for words, end in (("Bearer ", ""), ("Bearer ", "x"), ("Basic ", ""))
    )
    assert client.ask("/metrics", headers=right).status == 200
    assert [client.ask("/metrics", headers=headers).status for headers in wrong] == [401, 401]
    others = ("/", "/api/state", "/api/events", "/health", f"/metrics?token={token}")
    assert [client.ask(path, headers={} if "token" in path else right).status for path in others] == [401] * 5


def test_the_token_is_its_users_own(tmp_path: Path) -> None:
    """256 bits in a file that nobody else can read; one that others can read, or that leads elsewhere, is refused."""
    path = tmp_path / "token"
    keys = Keys(path, VirtualClock(), "run")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN_BYTES * 8 == 256
    assert len(keys.token) >= TOKEN_BYTES * 4 / 3
    assert keys.token == Keys(path, VirtualClock(), "run").token
    path.chmod(0o640)
    with pytest.raises(AutotuneError, match="others can read it"):
        Keys(path, VirtualClock(), "run")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        Keys(tmp_path / "link", VirtualClock(), "run")
    (tmp_path / "short").touch(mode=0o600)
    with pytest.raises(AutotuneError, match="no token"):
        Keys(tmp_path / "short", VirtualClock(), "run")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": None}, 415),
        ({"X_CSRF_Token": None}, 403),
        ({"X_CSRF_Token": "0" * 64}, 403),
        ({"Content_Length": None, "Transfer_Encoding": "chunked"}, 411),
        ({"Content_Length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"Cookie": None}, 401),
    ],
)
def test_an_action_of_another_site_is_refused(
    served: PageServer, client: Client, headers: dict[str, str | None], status: int
) -> None:
    """Each of the things that a foreign page cannot send is asked for by itself; with all of them the page may act."""
    assert client.act(PAUSE, **headers).status == status
    assert served.acted == [PAUSE] * (status == 200)


@pytest.mark.parametrize("has_actions", [False, True])
def test_a_page_that_only_shows_holds_no_token(has_actions: bool, tmp_path: Path) -> None:
    """With actions it does."""
    server = PageServer(tmp_path, STATE, has_actions=has_actions)
    state = Client(server.port).sign_in(server.address).ask("/api/state").json
    server.stop()
    assert (state["actions"], state["csrf"] is not None) == (has_actions, has_actions)


def test_the_token_of_another_browser_is_none(served: PageServer, client: Client) -> None:
    """It belongs to a cookie."""
    keys = Keys(served.token, VirtualClock(), "run")
    assert client.act(PAUSE, csrf=keys.csrf("1.another")).status == 403
    assert served.acted == []


@pytest.mark.parametrize("path", ["/", "/api/state", "/api/events", "/metrics"])
def test_other_sites_cannot_read(client: Client, path: str) -> None:
    """Also where a browser sends the cookie along; nor is there another method than GET."""
    for site in ("cross-site", "same-site"):
        assert client.ask(path, headers={"Sec-Fetch-Site": site}).status == 403
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "GETS"):
        assert client.ask(path, method=method).status in (400, 405), method


@pytest.mark.parametrize("path", [*PATHS, "/login?code=x"])
def test_every_answer_tells_browsers_what_it_may_do(client: Client, path: str) -> None:
    """No inline script, no eval, no frame, no guess at types, no copy kept; also on refusals."""
    for one in (client, Client(client.port)):
        if path == "/api/events" and one is client:
            continue  # goes on for ever
        headers = one.ask(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        names = ("x-content-type-options", "referrer-policy", "cache-control")
        assert [headers[name] for name in names] == ["nosniff", "no-referrer", "no-store"]
        assert not {"server", "access-control-allow-origin"} & headers.keys()
        assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../keys.py", "/static/%2e%2e/keys.py", "/static/..%2fkeys.py", "/static//etc/passwd", "/static/"),
        *("/static/%00", "/static/index.html%00.js", "//evil.example/", "/etc/passwd", "/api/state/../../web-token"),
    ],
)
def test_a_path_is_only_a_name(client: Client, path: str) -> None:
    """Files are looked up among those of the page, by their name."""
    assert client.ask(path).status == 404


def test_what_is_no_action_is_said(served: PageServer, client: Client) -> None:
    """Nonsense never becomes an error of the server."""
    csrf = client.ask("/api/state").json["csrf"]
    deep = b"[" * (MAX_BODY_BYTES // 2) + b"]" * (MAX_BODY_BYTES // 2)
    headers = {"Origin": served.origin, "Content-Type": "application/json", "X-CSRF-Token": csrf}
    for body in (b"", b"{", deep, b"\xff\xfe", b"NaN" * 3):
        answer = client.ask("/api/action", method="POST", body=body, headers=headers)
        assert answer.status == 400, body[:10]
        assert "invalid action" in answer.json["error"]["message"]
    assert served.acted == []


def test_five_hundred_silent_connections(served: PageServer, client: Client) -> None:
    """So many are kept as the server takes, the latest ones, and the owner is served all the while."""
    connections = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(500)]
    assert client.ask("/health").status == 200
    until(lambda: sum(map(is_open, connections)) <= MAX_PENDING)
    assert is_open(connections[-1])
    for connection in connections:
        connection.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_takes_no_connection_of_the_owners(served: PageServer) -> None:
    """Of the one who has the most the oldest goes first, although the owner's is older."""
    program = (  # the other user may not read the interpreter's files
        "import encodings.idna, os, socket, sys; os.setuid(65534); "
        f"held = [socket.create_connection(('127.0.0.1', {served.port})) for _ in range({2 * MAX_PENDING})]; "
        "print(flush=True); sys.stdin.read()"
    )
    with (
        socket.create_connection(("127.0.0.1", served.port)) as own,
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        assert other.stdout.readline() == b"\n"
        own.sendall(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert b" 401 " in own.makefile("rb").readline()
        other.communicate()


@pytest.mark.parametrize("further", [b"X: " + b"x" * 40_000, b"X: x\r\n" * 9_000], ids=["long", "many lines"])
def test_a_head_is_measured_before_it_is_read(served: PageServer, client: Client, further: bytes) -> None:
    """With a session as well."""
    begin = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {client.cookie}\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port)) as connection, contextlib.suppress(OSError):
        connection.sendall(begin + further + b"\r\n\r\n")
        assert connection.recv(100) == b""
    assert client.ask("/health").status == 200


def test_a_body_of_no_stated_length_is_measured_too(served: PageServer, client: Client) -> None:
    """In pieces it could go on for ever, whatever length is said beside them."""
    head = (
        f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: {client.cookie}\r\nContent-Length: 10\r\n"
        f"Origin: http://127.0.0.1:{served.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port)) as connection, contextlib.suppress(OSError):
        connection.sendall(head.encode() + b"8000\r\n" + b"x" * 0x8000)
        assert connection.recv(100) == b""
    assert client.ask("/health").status == 200


def test_a_session_is_found_among_other_cookies(client: Client) -> None:
    """Other pages of this name and other ports have set theirs."""
    others = "; ".join(f"c{number}=x" for number in range(200))
    assert client.ask("/health", headers={"Cookie": f'{others}; {client.cookie}; last="a b'}).status == 200


def test_a_silent_connection_is_cut(served: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for nothing, and one that never ends its request's head."""
    monkeypatch.setattr("autotune.daemon.web.server.HEAD_TIMEOUT_S", 0.1)
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: "):
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(begun)
            until(lambda one=connection: not is_open(one))  # type: ignore[misc]  # mypy cannot infer the default


def test_a_stream_that_nobody_reads_is_cut(served: PageServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for a client that takes nothing."""
    monkeypatch.setattr("autotune.daemon.web.server.STALL_TIMEOUT_S", 0.1)
    served.state["filling"] = "x" * (8 << 20)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected(client, "/api/events", connection=connection)
        until(lambda: served.streams == 1)
        until(lambda: served.streams == 0)


def test_streams_are_counted(served: PageServer, client: Client) -> None:
    """More than so many are refused; who leaves makes room."""
    opened = list[socket.socket]()
    try:
        opened += [connected(client, "/api/events") for _ in range(MAX_STREAMS)]
        until(lambda: served.streams == MAX_STREAMS)
        refused = client.ask("/api/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
    finally:
        for connection in opened:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    until(lambda: served.streams == 0)


def connected(client: Client, path: str, *lines: str, connection: socket.socket | None = None) -> socket.socket:
    """Ask for a path over a connection, which stays open."""
    connection = connection or socket.socket()
    connection.connect(("127.0.0.1", client.port))
    head = (f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{client.port}", f"Cookie: {client.cookie}", *lines, "", "")
    connection.sendall("\r\n".join(head).encode())
    return connection


def is_open(connection: socket.socket) -> bool:
    """Return whether the server still holds a connection that it has sent nothing over."""
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
