"""Messages to a service manager, against a socket in its place."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.daemon.systemd import ServiceManager


class FakeManager:
    """Socket of a service manager.

    Attributes:
        name: Its address, as the variable has it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._socket.setblocking(False)

    def messages(self) -> list[str]:
        """What was sent since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeManager]:
    """Service manager with a socket in the file system, or in the abstract namespace."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@autotune-test-{os.getpid()}"
    manager = FakeManager(name)
    yield manager
    manager.close()


def test_it_is_told_what_it_waits_for(manager: FakeManager) -> None:
    """As sd_notify(3) has it; without a manager nothing is sent."""
    service = ServiceManager({"NOTIFY_SOCKET": manager.name}, VirtualClock())
    assert service.is_there
    assert service.send("READY=1\nSTATUS=idle, 2 wait")
    assert manager.messages() == ["READY=1\nSTATUS=idle, 2 wait"]
    assert not ServiceManager({}, VirtualClock()).send("READY=1")


def test_the_watchdog_hears_at_half_of_its_time(manager: FakeManager) -> None:
    """At the first call, and then when half of the time has gone by; not more often."""
    clock = VirtualClock()
    service = ServiceManager({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "60000000"}, clock)
    assert service.watchdog_s == 60.0
    heard = []
    for _ in range(95):
        service.alive()
        heard += [clock.now_s() - 1000.0] * len(manager.messages())
        clock.wait(1.0)
    assert heard == [0.0, 30.0, 60.0, 90.0]


def test_children_do_not_inherit_the_variables(manager: FakeManager) -> None:
    """A trainer must not speak for the daemon, whatever library it uses."""
    environ = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    ServiceManager(environ, VirtualClock())
    assert environ == {"PATH": "/bin"}


def test_a_manager_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    """Its queue is full: what it is told then is lost, and the service goes on; the watchdog is tried again."""
    manager = FakeManager(str(tmp_path / "notify"))
    clock = VirtualClock()
    service = ServiceManager({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "60000000"}, clock)
    while service.send("STATUS=x"):
        pass
    service.send("lost")
    service.alive()
    assert set(manager.messages()) == {"STATUS=x"}
    service.alive()
    assert manager.messages() == ["WATCHDOG=1"]
    manager.close()
