"""Control socket under attack: other users, garbage, large messages, slow clients, other versions."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune import __version__
from autotune.daemon.control import protocol
from autotune.daemon.control.client import ask
from autotune.daemon.control.server import MOST_CONNECTIONS, MOST_UNSENT_BYTES, MOST_WAITING
from autotune.daemon.home import DaemonHome, open_home, sole_daemon
from autotune.errors import AutotuneError, DaemonAway
from tests.daemon.conftest import Serving, until
from tests.daemon.test_control import SERVE
from tests.users import ALICE, MALLORY, acting_as, made, only_root


@contextmanager
def connected(home: DaemonHome) -> Iterator[socket.socket]:
    """Client that sends what it likes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(home.socket))
        yield client


def answer_to(home: DaemonHome, sent: bytes) -> dict[str, object]:
    """The error with which something is answered."""
    with connected(home) as client:
        with suppress(OSError):  # it was refused before it was read
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionResetError):  # behind the answer: not all was read that was sent
            while chunk := client.recv(1 << 16):
                received += chunk
    response = json.loads(received)
    assert response["ok"] is False
    assert response["v"] == 1
    error: dict[str, object] = response["error"]
    return error


GARBAGE = {
    "binary": b"\x00\xff\xfe\x80" * 100 + b"\n",
    "an empty line": b"\n",
    "no JSON": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half of a JSON": b'{"v": 1, "op": "echo"\n',
    "another type": b"[1, 2]\n",
    "deep lists": b"[" * 500_000 + b"\n",
    "deep objects": b'{"v": 1, "op": "echo", "args": ' + b'{"a":' * 500 + b"1" + b"}" * 501 + b"\n",
    "NaN": b'{"v": 1, "op": "echo", "args": {"x": NaN}}\n',
    "an infinite number": b'{"v": 1, "op": "echo", "args": {"x": 1e999}}\n',
    "a huge number": b'{"v": 1, "op": "echo", "args": {"x": ' + b"9" * 4000 + b"}}\n",
    "a number beyond all limits": b'{"v": 1, "op": "echo", "args": {"x": ' + b"9" * 500_000 + b"}}\n",
    "no operation": b'{"v": 1, "args": {}}\n',
    "an operation that is no name": b'{"v": 1, "op": "a\\u001b[31m", "args": {}}\n',
    "arguments that are no object": b'{"v": 1, "op": "echo", "args": [1]}\n',
    "no version": b'{"op": "echo"}\n',
    "a version that is true": b'{"v": true, "op": "echo"}\n',
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_answered_with_an_error(serving: Serving, sent: bytes) -> None:
    """Nothing of it reaches an operation, and the daemon goes on."""
    assert answer_to(serving.home, sent)["kind"] == "protocol"
    assert serving.asked == []
    assert ask(serving.home, "echo")["args"] == {}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300).map(lambda sent: sent.replace(b"\n", b"") + b"\n"))
def test_any_bytes_are_a_request_or_refused(sent: bytes) -> None:
    """The parser raises nothing else."""
    with suppress(protocol.BadRequest):
        protocol.decode_request(sent, None)


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
            max_leaves=20,
        ),
    )
)
def test_requests_and_answers_survive_the_way(args: dict[str, object]) -> None:
    """What JSON holds comes out as it went in."""
    assert protocol.decode_request(protocol.encode_request("x", args), None).args == args
    assert protocol.decode_response(protocol.result_response(args)) == args


def test_a_large_message_is_refused_without_being_kept(serving: Serving) -> None:
    """10 MB are cut off after the first; the client is told why."""
    error = answer_to(serving.home, b"x" * 10_000_000)
    assert error["kind"] == "too_large"
    assert answer_to(serving.home, b"x" * 10_000_000 + b"\n")["kind"] == "too_large"
    assert ask(serving.home, "echo")["args"] == {}


def test_the_largest_message_is_taken(serving: Serving) -> None:
    """The limit is the one that commands are told."""
    room = protocol.MOST_REQUEST_BYTES - len(protocol.encode_request("echo", {"x": ""}))
    assert len(ask(serving.home, "echo", {"x": "y" * room})["args"]["x"]) == room
    with pytest.raises(AutotuneError, match="bytes, and the daemon takes"):
        ask(serving.home, "echo", {"x": "y" * (room + 1)})


def test_a_client_that_goes_in_the_middle_is_nobodys_loss(serving: Serving) -> None:
    """In the middle of its request, or of its response."""
    for _ in range(50):
        with connected(serving.home) as client:
            client.sendall(b'{"v": 1, "op": "ec')
        with connected(serving.home) as client:
            client.sendall(protocol.encode_request("large", {"bytes": 5_000_000}))
            client.recv(100)
    assert ask(serving.home, "echo")["args"] == {}
    until(lambda: not serving.server._connections)


def test_what_follows_a_request_ends_the_connection(serving: Serving) -> None:
    """One request a connection: nobody can keep the loop busy while it waits."""
    with connected(serving.home) as client:
        client.sendall(protocol.encode_request("hold", {}))
        until(lambda: serving.held)
        client.sendall(b"more")
        assert json.loads(client.recv(1 << 16))["error"]["kind"] == "protocol"
    until(lambda: serving.held[0].is_abandoned)


def test_a_client_has_a_time_to_ask(serving: Serving) -> None:
    """One byte now and then does not prolong it."""
    with connected(serving.home) as client:
        client.sendall(b"{")
        until(lambda: serving.server._connections)
        serving.clock.ahead_s += 9.0
        client.sendall(b'"')
        assert ask(serving.home, "echo")["args"] == {}
        assert serving.server._connections
        serving.clock.ahead_s += 1.5
        assert json.loads(client.recv(1 << 16))["error"]["kind"] == "too_slow"


def test_a_client_that_does_not_read_is_dropped(serving: Serving) -> None:
    """Its answer is larger than the kernel keeps for it."""
    with connected(serving.home) as client:
        client.sendall(protocol.encode_request("large", {"bytes": 5_000_000}))
        until(lambda: serving.asked)
        assert ask(serving.home, "echo")["args"] == {}
        serving.clock.ahead_s += 31.0
        until(lambda: not serving.server._connections)


def test_little_is_kept_for_clients_that_do_not_read(serving: Serving) -> None:
    """Of many large answers the oldest are dropped; the latest arrives whole."""
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(connected(serving.home))
            client.sendall(protocol.encode_request("large", {"bytes": 4_000_000}))
        until(lambda: len(serving.asked) == 10)
        assert len(ask(serving.home, "large", {"bytes": 12_000_000})["text"]) == 12_000_000
        assert sum(one.unsent_bytes for one in list(serving.server._connections)) <= MOST_UNSENT_BYTES


def test_slow_clients_do_not_lock_others_out(serving: Serving) -> None:
    """500 of them connect and say nothing, or half of something; each good one is answered."""
    with ExitStack() as stack:
        for number in range(500):
            client = stack.enter_context(connected(serving.home))
            client.sendall(b'{"v": 1, ' if number % 2 else b"")
            if number % 50 == 0:
                assert ask(serving.home, "echo", {"n": number})["args"] == {"n": number}
        assert ask(serving.home, "echo")["args"] == {}
        assert len(serving.server._connections) <= MOST_CONNECTIONS


def test_clients_that_wait_do_not_lock_others_out(serving: Serving) -> None:
    """Some connections are left for those that can be answered at once."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(serving.home)) for _ in range(MOST_WAITING + 10)]
        for client in clients:
            client.sendall(protocol.encode_request("hold", {}))
        until(lambda: len(serving.held) == MOST_WAITING + 10)
        assert ask(serving.home, "echo")["args"] == {}
        until(lambda: sum(held.is_abandoned for held in serving.held) == 10)
        serving.call(lambda: [held.complete({"n": 1}) for held in serving.held] and None)
        responses = [json.loads(client.recv(1 << 16)) for client in clients]
        assert sum(response["ok"] for response in responses) == MOST_WAITING
        assert {response["error"]["kind"] for response in responses if not response["ok"]} == {"busy"}


def test_a_daemon_that_runs_out_of_files_still_answers(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Those that ask nothing make room; what cannot be accepted waits, and the loop does not spin."""
    home = open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path)})
    process = start(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))" + SERVE,
        AUTOTUNE_DAEMON_DIR=str(tmp_path),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serves\n"
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connected(home))
        assert ask(home, "status", timeout_s=60) == {"pid": process.pid}
        used = psutil.Process(process.pid).cpu_times()
        assert used.user + used.system < 5
    process.kill()


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_events_is_survived(serving: Serving, seed: int) -> None:
    """Clients connect, send parts, close one side or both, read a little or nothing; the daemon answers or waits."""
    rng = random.Random(seed)
    ops = ("echo", "hold", "large", "refuse", "nonsense", "what")
    whole = [protocol.encode_request(op, {"bytes": rng.choice((10, 600_000))}) for op in ops]
    clients: list[socket.socket] = []
    with ExitStack() as stack:
        for _ in range(400):
            act = rng.choice(("connect", "connect", "send", "send", "part", "shut", "read", "close", "give", "later"))
            if act == "connect" or not clients:
                clients.append(stack.enter_context(connected(serving.home)))
                clients[-1].setblocking(False)
                continue
            client = rng.choice(clients)
            with suppress(OSError):
                if act == "send":
                    client.send(rng.choice(whole))
                elif act == "part":
                    line = rng.choice(whole)
                    client.send(line[: rng.randrange(len(line))])
                elif act == "shut":
                    client.shutdown(rng.choice((socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR)))
                elif act == "read":
                    client.recv(rng.choice((1, 100_000)))
                elif act == "close":
                    clients.remove(client)
                    client.close()
                elif act == "give" and serving.held:
                    serving.call(partial(rng.choice(serving.held).complete, {"text": "x" * 500_000}))
                elif act == "later":
                    serving.clock.ahead_s += rng.choice((0.1, 3.0, 11.0))
        assert ask(serving.home, "echo")["args"] == {}
    until(lambda: not serving.server._connections)
    until(lambda: all(held.is_given or held.is_abandoned for held in serving.held))


@pytest.mark.parametrize(("version", "words"), [(2, "Restart the daemon"), (0, f"Use autotune {__version__}")])
def test_a_client_of_another_version_is_told(serving: Serving, version: int, words: str) -> None:
    """Both versions, and what to do, which depends on which of them is newer."""
    error = answer_to(serving.home, json.dumps({"v": version, "op": "echo", "new": {}}).encode() + b"\n")
    assert error["kind"] == "version"
    assert f"version {version}" in str(error["message"])
    assert __version__ in str(error["message"])
    assert words in str(error["remedy"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"v": 7, "autotune": "9.9", "ok": true, "state": {}}', "autotune 9.9"),
        (b'{"v": 1, "ok": true, "result": [1]}', "version 1"),
        (b"hello", "cannot be understood"),
        (b"[]", "cannot be understood"),
        (b"[" * 100_000, "cannot be understood"),
    ],
)
def test_a_daemon_of_another_version_is_named(line: bytes, words: str) -> None:
    """What it answers is not taken for something else."""
    with pytest.raises(AutotuneError, match=words) as caught:
        protocol.decode_response(line)
    assert "Restart the daemon" in (caught.value.remedy or "")


def test_an_error_of_a_newer_daemon_is_understood() -> None:
    """Errors have the same form in all versions."""
    with pytest.raises(AutotuneError, match="too old") as caught:
        protocol.decode_response(b'{"v": 7, "ok": false, "error": {"kind": "version", "message": "too old"}}')
    assert caught.value.kind == "version"


CONNECT = """
import socket, sys, os
os.setgid(4343)
os.setuid(4343)
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    try:
        client.sendall(b'{"v": 1, "op": "echo", "args": {}}\\n')
    except OSError:
        pass
    sys.stdout.write(client.recv(65536).decode())
"""


@only_root
def test_another_user_is_refused(shared: Path) -> None:
    """By the folder; and, were that open by mistake, by the kernel's word on who connects."""
    home = open_home({"AUTOTUNE_DAEMON_DIR": str(shared / "daemon")})
    with sole_daemon(home):
        serving = Serving(home)
        command = [sys.executable, "-c", CONNECT, str(home.socket)]
        closed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "PermissionError" in closed.stderr
        for folder in (home.state.parent, home.state, home.runtime):
            folder.chmod(0o755)
        home.socket.chmod(0o666)
        opened = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert json.loads(opened.stdout)["error"]["kind"] == "forbidden", opened.stderr
        assert serving.asked == []
        assert ask(home, "echo")["args"] == {}
        serving.close()


@only_root
def test_a_process_that_listens_in_the_daemons_place_is_not_asked(shared: Path) -> None:
    """A socket of another user is not spoken to, even in a folder of one's own."""
    made(shared / "alice", owner=ALICE, mode=0o700)
    with acting_as(ALICE):
        home = open_home({"AUTOTUNE_DAEMON_DIR": str(shared / "alice" / "daemon")})
    home.runtime.chmod(0o777)
    (shared / "alice").chmod(0o755)
    home.state.chmod(0o755)
    home.state.parent.chmod(0o755)
    with acting_as(MALLORY), socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(home.socket))
        planted.listen()
        os.chmod(home.socket, 0o777)
        os.seteuid(0)
        with acting_as(ALICE), pytest.raises(AutotuneError, match="not this user's alone"):
            ask(home, "echo")
        home.runtime.chmod(0o755)
        with acting_as(ALICE), pytest.raises(AutotuneError, match=r"another user \(number 4343\) listens"):
            ask(home, "echo")


def test_a_runtime_folder_that_was_replaced_by_a_link_is_not_followed(home: DaemonHome, tmp_path: Path) -> None:
    """Neither by a command nor by the daemon."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.runtime.rmdir()
    home.runtime.symlink_to(elsewhere)
    with pytest.raises((AutotuneError, DaemonAway)):
        ask(home, "echo")
    with sole_daemon(home), pytest.raises(AutotuneError, match="cannot be made"):
        protocol.listen(home)
    assert not list(elsewhere.iterdir())


def test_the_kernel_says_who_is_there(home: DaemonHome) -> None:
    """The credentials are those of this process."""
    one, other = socket.socketpair()
    with one, other:
        assert protocol.peer_of(one) == protocol.Peer(pid=os.getpid(), uid=os.geteuid())
        assert struct.calcsize("iII") == 12
