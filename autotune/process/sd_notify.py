"""Messages to the service manager that started this process: sd_notify(3), without its library.

A unit of ``Type=notify`` counts as started when the process says so, and one with ``WatchdogSec=`` is restarted when it
has not been heard of for that long. Under no service manager all this does nothing.
"""

import logging
import os
import socket
from collections.abc import MutableMapping

from autotune.clock import Clock

_SOCKET, _WATCHDOG_PID, _WATCHDOG_USEC = "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"
_LONGEST_PATH_BYTES = 107  # unix(7)
_LONGEST_STATUS = 500
_SEND_S = 0.2  # a manager that reads no messages must not hold up the loop for longer

_log = logging.getLogger(__name__)


class ServiceManager:
    """Service manager of this process; None of its methods raises.

    Args:
        address: Address of its socket; None without a manager.
        watchdog_s: Time within which it wants to hear of this process; None without a watchdog.
        clock: Clock of the watchdog.

    Attributes:
        watchdog_s: See above.
    """

    def __init__(self, address: bytes | None, watchdog_s: float | None, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._alive_s: float | None = None
        self.watchdog_s = watchdog_s if address is not None else None

    @classmethod
    def take(cls, environ: MutableMapping[str, str], clock: Clock) -> "ServiceManager":
        """Take the manager's variables out of the environment, so that no child is taken for this process.

        Args:
            environ: The environment, which is changed.
            clock: Clock of the watchdog.
        """
        socket_name = environ.pop(_SOCKET, "")
        for_pid, microseconds = environ.pop(_WATCHDOG_PID, ""), environ.pop(_WATCHDOG_USEC, "")
        is_ours = not for_pid or for_pid == str(os.getpid())
        is_number = microseconds.isascii() and microseconds.isdigit() and len(microseconds) < 19
        watchdog_s = int(microseconds) / 1e6 if is_ours and is_number else 0.0
        return cls(_address(socket_name), watchdog_s or None, clock)

    @property
    def is_there(self) -> bool:
        """True if a service manager started this process."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """Say that the service is up.

        Args:
            status: A sentence on what it does, which ``systemctl status`` shows.
        """
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Say what the service does now."""
        self._send(f"STATUS={_one_line(status)}")

    def stopping(self) -> None:
        """Say that the service is about to end."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Say that the service is alive if half of the watchdog's time has gone by; to be called in its loop."""
        if self.watchdog_s is None:
            return
        now_s = self._clock.now_s()
        is_due = self._alive_s is None or now_s - self._alive_s >= self.watchdog_s / 2
        if is_due and self._send("WATCHDOG=1"):
            self._alive_s = now_s

    def _send(self, message: str) -> bool:
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(_SEND_S)
                sending.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("the service manager does not listen: %s", error)
            return False
        return True


def _address(name: str) -> bytes | None:
    """Return the address of a socket: a path, or a name in the abstract namespace, which begins with ``@``."""
    raw = os.fsencode(name)
    if raw[:1] not in (b"/", b"@") or not 1 < len(raw) <= _LONGEST_PATH_BYTES:
        if name:
            _log.warning("%s is %r, which is no Unix socket; the service manager is told nothing", _SOCKET, name)
        return None
    return b"\0" + raw[1:] if raw[:1] == b"@" else raw


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:_LONGEST_STATUS]
