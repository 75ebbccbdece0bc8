"""Daemon's folders, and a control server whose loop runs in a thread."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SystemClock
from autotune.daemon.control.protocol import Request, unknown_operation
from autotune.daemon.control.server import ControlServer, Deferred
from autotune.daemon.home import DaemonHome, open_home, sole_daemon
from autotune.errors import ConfigError


class AheadClock(SystemClock):
    """System clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return super().now_s() + self.ahead_s


class Serving:
    """Control server in a thread, with a few operations.

    Attributes:
        home: Its folders.
        clock: Its clock.
        held: Answers that wait until a test gives them.
        asked: Names of the operations that were asked for.
    """

    def __init__(self, home: DaemonHome) -> None:
        self.home = home
        self.clock = AheadClock()
        self.held: list[Deferred] = []
        self.asked: list[str] = []
        self._calls: list[Callable[[], None]] = []
        self._ends = threading.Event()
        self.server = ControlServer(home, self._answer, self.clock)
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the thread of the server."""
        self._calls.append(function)

    def close(self) -> None:
        """End the server."""
        self._ends.set()
        self._thread.join(timeout=60)

    def _loop(self) -> None:
        while not self._ends.is_set():
            self.server.serve(0.02)
            while self._calls:
                self._calls.pop()()
        self.server.close()

    def _answer(self, request: Request) -> Mapping[str, Any] | Deferred:
        self.asked.append(request.op)
        if request.op == "echo":
            return {"args": dict(request.args), "pid": request.pid}
        if request.op == "large":
            return {"text": "x" * int(request.args["bytes"])}
        if request.op == "hold":
            self.held.append(Deferred())
            return self.held[-1]
        if request.op == "refuse":
            raise ConfigError("no such config: c.yaml", where="c.yaml", remedy="Name another.")
        if request.op == "break":
            raise ZeroDivisionError("by nought")
        if request.op == "nonsense":
            return {"number": float("nan"), "object": object()}
        if request.op == "disk":
            raise OSError(28, "No space left on device", "/data/x")
        raise unknown_operation(request, ("echo", "hold"))


@pytest.fixture
def home(tmp_path: Path) -> DaemonHome:
    """Folders of a daemon."""
    return open_home({"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon")})


@pytest.fixture
def serving(home: DaemonHome) -> Iterator[Serving]:
    """Control server that answers."""
    with sole_daemon(home):
        serving = Serving(home)
        yield serving
        serving.close()


def until(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    """Wait until something is so."""
    over_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < over_s, "it did not come"
        time.sleep(0.005)
