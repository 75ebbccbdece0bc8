"""Requests to the daemon and its answers, over a real socket."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import __version__
from autotune.daemon.control import protocol
from autotune.daemon.control.client import ask
from autotune.daemon.control.server import ControlServer
from autotune.daemon.home import DaemonHome, open_home, sole_daemon
from autotune.errors import AutotuneError, DaemonAway
from tests.daemon.conftest import Serving, until

SERVE = """
import os
from autotune.daemon.control.server import ControlServer
from autotune.daemon.home import open_home, sole_daemon
home = open_home(os.environ)
with sole_daemon(home), ControlServer(home, lambda request: {"pid": os.getpid()}) as server:
    print("serves", flush=True)
    while True:
        server.serve(60)
"""


def test_a_request_is_answered(serving: Serving) -> None:
    """Arguments arrive as they were; the daemon knows which process asks."""
    args = {"config": "sp ace/ü\udcff.yaml", "n": [1, 2.5, None, True], "deep": {"er": "\n"}}
    assert ask(serving.home, "echo", args) == {"args": args, "pid": os.getpid()}


def test_an_error_keeps_its_kind_place_and_remedy(serving: Serving) -> None:
    """The command that asked says what it would say itself."""
    with pytest.raises(AutotuneError) as caught:
        ask(serving.home, "refuse")
    error = caught.value
    assert (error.kind, error.message, error.where, error.remedy) == (
        "config",
        "no such config: c.yaml",
        "c.yaml",
        "Name another.",
    )


@pytest.mark.parametrize(("op", "kind"), [("break", "bug"), ("nonsense", "bug"), ("disk", "error"), ("what", "error")])
def test_a_failing_answer_does_not_end_the_daemon(
    serving: Serving, caplog: pytest.LogCaptureFixture, op: str, kind: str
) -> None:
    """A bug is logged with its traceback, and the next request is answered."""
    with pytest.raises(AutotuneError) as caught:
        ask(serving.home, op)
    assert caught.value.kind == kind
    assert ask(serving.home, "echo")["args"] == {}
    assert ("Traceback" in caplog.text) == (kind == "bug")


def test_an_operation_that_a_daemon_does_not_have_is_named(serving: Serving) -> None:
    """A newer command may ask for it: its version and what to do are said."""
    with pytest.raises(AutotuneError, match="'what'") as caught:
        ask(serving.home, "what")
    assert __version__ in caught.value.message
    assert "Restart the daemon" in (caught.value.remedy or "")


@pytest.mark.parametrize("size", [0, 100_000, 5_000_000])
def test_a_long_answer_arrives_whole(serving: Serving, size: int) -> None:
    """Whatever the socket takes at once."""
    assert len(ask(serving.home, "large", {"bytes": size})["text"]) == size


def test_an_answer_may_come_later(serving: Serving) -> None:
    """Others are answered meanwhile."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(ask(serving.home, "hold", timeout_s=60)))
    thread.start()
    until(lambda: serving.held)
    assert ask(serving.home, "echo")["args"] == {}
    serving.call(lambda: serving.held[0].complete({"done": True}))
    thread.join(timeout=60)
    assert answers == [{"done": True}]


def test_an_error_may_come_later(serving: Serving) -> None:
    """With its kind."""
    errors: list[AutotuneError] = []

    def wait() -> None:
        try:
            ask(serving.home, "hold", timeout_s=60)
        except AutotuneError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: serving.held)
    serving.call(lambda: serving.held[0].fail(DaemonAway("gone", remedy="x")))
    thread.join(timeout=60)
    assert [error.kind for error in errors] == ["daemon_away"]


def test_a_client_that_stops_waiting_is_noticed(serving: Serving) -> None:
    """Nothing is kept for it."""
    with pytest.raises(AutotuneError, match=r"within 0\.1s"):
        ask(serving.home, "hold", timeout_s=0.1)
    until(lambda: serving.held and serving.held[0].is_abandoned)
    serving.call(lambda: serving.held[0].complete({}))
    assert ask(serving.home, "echo")["args"] == {}


def test_a_client_that_has_said_all_still_gets_its_answer(serving: Serving) -> None:
    """`echo ... | nc -U` closes its side after the request."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serving.home.socket))
        client.sendall(protocol.encode_request("hold", {}))
        client.shutdown(socket.SHUT_WR)
        until(lambda: serving.held)
        until(lambda: all(c.is_half_closed for c in list(serving.server._connections)))
        serving.call(lambda: serving.held[0].complete({"text": "x" * 3_000_000}))
        client.settimeout(60)
        received = b""
        while chunk := client.recv(1 << 16):
            received += chunk
    assert len(protocol.decode_response(received)["text"]) == 3_000_000


def test_a_client_that_has_said_all_and_goes_is_noticed(serving: Serving) -> None:
    """Also where it had closed its side before."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serving.home.socket))
        client.sendall(protocol.encode_request("hold", {}))
        client.shutdown(socket.SHUT_WR)
        until(lambda: serving.held and all(c.is_half_closed for c in list(serving.server._connections)))
    until(lambda: serving.held[0].is_abandoned)


def test_a_daemon_that_ends_tells_those_who_wait(home: DaemonHome) -> None:
    """The kind says why; no socket is left."""
    errors: list[AutotuneError] = []

    def wait() -> None:
        try:
            ask(home, "hold", timeout_s=60)
        except AutotuneError as error:
            errors.append(error)

    with sole_daemon(home):
        serving = Serving(home)
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: serving.held)
        serving.close()
        thread.join(timeout=60)
    assert [error.kind for error in errors] == ["stopping"]
    until(lambda: serving.held[0].is_abandoned)
    assert not list(home.runtime.iterdir())


def test_no_daemon_is_an_error_of_its_own(home: DaemonHome, tmp_path: Path) -> None:
    """Whether there are folders or not; it says how to start one."""
    never = open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "never")})
    shutil.rmtree(never.state)
    for one in (home, never):
        with pytest.raises(DaemonAway) as caught:
            ask(one, "status")
        assert "autotune daemon run" in (caught.value.remedy or "")


def test_the_socket_of_a_killed_daemon_is_replaced(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """SIGKILL leaves it behind: commands say that no daemon runs, and the next one takes its place."""
    place = str(tmp_path / "daemon")
    home = open_home({"AUTOTUNE_DAEMON_DIR": place})
    for _ in range(3):
        process = start(SERVE, AUTOTUNE_DAEMON_DIR=place)
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        assert ask(home, "status") == {"pid": process.pid}
        process.kill()
        process.wait(timeout=60)
        assert home.socket.is_socket()
        with pytest.raises(DaemonAway):
            ask(home, "status")


def test_a_daemon_that_is_killed_ends_the_wait(tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """The command does not take it for an answer, nor for "no daemon": something may have begun."""
    place = str(tmp_path / "daemon")
    code = SERVE.replace('{"pid": os.getpid()}', "(print(request.op, flush=True), Deferred())[1]")
    process = start("from autotune.daemon.control.server import Deferred" + code, AUTOTUNE_DAEMON_DIR=place)
    assert process.stdout is not None
    assert process.stdout.readline() == "serves\n"
    errors: list[AutotuneError] = []

    def wait() -> None:
        try:
            ask(open_home({"AUTOTUNE_DAEMON_DIR": place}), "stop", timeout_s=60)
        except AutotuneError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert process.stdout.readline() == "stop\n"
    process.kill()
    thread.join(timeout=60)
    assert ["ended before it had answered" in error.message for error in errors] == [True]
    assert not isinstance(errors[0], DaemonAway)


def test_a_path_of_any_length_will_do(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most; nobody has to know."""
    deep = tmp_path.joinpath(*["a folder with a rather long name, ünïcode too"] * 8)
    home = open_home({"AUTOTUNE_DAEMON_DIR": str(deep)})
    assert len(os.fsencode(home.socket)) > 300
    with sole_daemon(home):
        serving = Serving(home)
        assert ask(home, "echo")["args"] == {}
        serving.close()


def test_a_command_of_another_session_finds_the_daemon(tmp_path: Path) -> None:
    """In cron and su, the environment has no runtime folder, or another one."""
    runtime, other = tmp_path / "runtime", tmp_path / "other"
    for folder in (runtime, other):
        folder.mkdir(mode=0o700)
    environ = {"HOME": str(tmp_path)}
    home = open_home({**environ, "XDG_RUNTIME_DIR": str(runtime)})
    with sole_daemon(home):
        serving = Serving(home)
        assert home.socket.is_relative_to(runtime)
        assert ask(open_home(environ), "echo")["args"] == {}
        assert ask(open_home({**environ, "XDG_RUNTIME_DIR": str(other)}), "echo")["args"] == {}
        serving.close()


def test_the_socket_comes_back_where_the_system_took_it_away(tmp_path: Path) -> None:
    """Logging out removes the runtime folder; a daemon in tmux goes on, and is found by the next login."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)}
    home = open_home(environ)
    with sole_daemon(home):
        serving = Serving(home)
        shutil.rmtree(runtime)
        with pytest.raises(DaemonAway):
            ask(home, "echo")
        serving.clock.ahead_s += 6.0
        until((home.own_runtime / "socket").is_socket)
        assert ask(home, "echo")["args"] == {}
        runtime.mkdir(mode=0o700)
        assert ask(open_home(environ), "echo")["args"] == {}
        serving.close()


def test_the_server_is_one_descriptor_for_a_larger_loop(home: DaemonHome) -> None:
    """It is readable while there is something to do, and only then."""
    import select

    with sole_daemon(home), ControlServer(home, lambda request: {}) as server:
        assert select.select([server], [], [], 0)[0] == []
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(home.socket))
            client.sendall(protocol.encode_request("status", {}))
            assert select.select([server], [], [], 60)[0] == [server]
            assert server.serve(60) == 1
            assert select.select([server], [], [], 0)[0] == []
            assert client.recv(1 << 16).endswith(b"\n")


def test_the_socket_and_its_folder_are_private(serving: Serving) -> None:
    """Whatever the umask."""
    assert serving.home.socket.stat().st_mode & 0o777 == 0o600
    assert serving.home.runtime.stat().st_mode & 0o777 == 0o700


def test_something_else_in_the_place_of_the_socket_is_an_error(home: DaemonHome) -> None:
    """It is not deleted."""
    for folder in {home.runtime, home.own_runtime}:
        (folder / "socket").write_text("notes")
    with sole_daemon(home), pytest.raises(AutotuneError, match="no socket is in its place"):
        ControlServer(home, lambda request: {})
    assert home.socket.read_text() == "notes"
