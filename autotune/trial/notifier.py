"""Notifier: runs the user's own command for each event, which it gets as JSON on its standard input.

No method blocks. One command runs at a time; `tick` goes on with it, and is to be called in the daemon's loop.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.files import open_regular

LIMIT_S = 30.0
"""Time limit of the command; then it gets SIGTERM."""

GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL."""

MOST_QUEUED = 100

_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),  # for notify-send
)

_log = logging.getLogger(__name__)


class Notifier:
    """Notifier of one daemon.

    Args:
        argv: The command; none tells nobody. It is not run through a shell.
        log: File for the end of each command, and for what it printed.
        clock: Clock of the time limits and of the log.
        environ: The environment, of which the command gets what is on a list: no secrets.

    Attributes:
        dropped: Number of events that were dropped because too many waited.
    """

    def __init__(self, argv: Sequence[str], log: Path, clock: Clock, environ: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._log_file = log
        self._clock = clock
        self._env = {name: value for name, value in environ.items() if name in _KEPT or name.startswith("LC_")}
        self._waiting: deque[bytes] = deque()
        self._running: _Command | None = None
        self._said_s: float | None = None
        self._unsaid = 0
        self.dropped = 0
        self.failed = 0

    @property
    def is_idle(self) -> bool:
        """True if no command runs and none is to be run."""
        return self._running is None and not self._waiting

    def notify(self, event: Mapping[str, Any]) -> None:
        """Queue an event; the oldest is dropped where too many wait.

        Args:
            event: What happened, as JSON holds it.
        """
        if not self._argv:
            return
        if len(self._waiting) >= MOST_QUEUED:
            self._waiting.popleft()
            self.dropped += 1
            self._say(f"an event was dropped, for {MOST_QUEUED} wait for the command")
        self._waiting.append(json.dumps(event, default=str).encode("ascii") + b"\n")
        self.tick()

    def tick(self) -> None:
        """Look after the command that runs, and start the next one."""
        if self._running is not None:
            ended = self._running.look(self._clock.now_s())
            if ended is None:
                return
            self._running.close()
            self._note(ended, self._running.output)
            self._running = None
        if self._waiting:
            try:
                self._running = _Command(self._argv, self._env, self._waiting.popleft(), self._clock.now_s())
            except (OSError, ValueError) as error:
                self._note(f"cannot be started: {getattr(error, 'strerror', None) or error}", b"")

    def close(self) -> None:
        """End the command that runs, after `GRACE_S` with SIGKILL; events that wait are dropped."""
        self.dropped += len(self._waiting)
        self._waiting.clear()
        if self._running is None:
            return
        began_s = self._clock.now_s()
        self._running.stop(began_s)
        while self._running is not None and self._clock.now_s() < began_s + 2 * GRACE_S:
            self.tick()
            self._clock.wait(0.02)

    def _note(self, ended: str, output: bytes) -> None:
        """Write down how a command ended."""
        if ended != _WELL:
            self.failed += 1
            self._say(f"the command {ended}")
        text = output.decode("utf-8", "replace")
        line = json.dumps({"utc": self._clock.utc().isoformat(timespec="seconds"), "ended": ended, "output": text})
        try:
            with open_regular(self._log_file, append=True, create=True) as file:
                if os.fstat(file.fileno()).st_size > 1 << 20:
                    file.truncate(0)
                file.write(line.encode("ascii") + b"\n")
        except OSError as error:
            self._say(f"{self._log_file} cannot be written: {error.strerror}")

    def _say(self, message: str) -> None:
        """Log a failure, at most one a minute: a command that never works must not fill the log."""
        now_s = self._clock.now_s()
        if self._said_s is not None and now_s - self._said_s < 60.0:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} failures before, which were not logged)" if self._unsaid else ""
        _log.warning("notify: %s%s; see %s", message, more, self._log_file)
        self._said_s, self._unsaid = now_s, 0


_WELL = "well"


class _Command:
    """Command that runs for one event.

    Raises:
        OSError: It cannot be started.
        ValueError: An argument holds a zero byte.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], event: bytes, now_s: float) -> None:
        self.output = b""
        self._over_s = now_s + LIMIT_S
        self._is_told = False
        self._is_late = False
        # A file in memory: a pipe would block, or end before the command has read it.
        with os.fdopen(os.memfd_create("event"), "w+b") as stdin:
            stdin.write(event)
            stdin.seek(0)
            self._process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd="/",
                start_new_session=True,  # ^C in the daemon's terminal is not for it; and it is ended with its children
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def look(self, now_s: float) -> str | None:
        """Return how it ended; None while it runs. It is ended when its time is over."""
        self._read()
        ended = _has_ended(self._process.pid)
        if not ended and now_s >= self._over_s:
            if not self._is_told:
                self._is_late = True
            self.stop(now_s)
        if not ended:
            return None
        if self._is_told:  # while it is a zombie its number, and so its group's, is nobody else's
            self._signal(signal.SIGKILL)
        code = self._process.wait()
        self._read()
        if self._is_late:
            return f"took longer than {LIMIT_S:.0f} s, and was ended"
        if self._is_told:
            return "was ended with the daemon"
        return _WELL if code == 0 else f"failed with {'signal' if code < 0 else 'status'} {abs(code)}"

    def stop(self, now_s: float) -> None:
        """Tell it to end; the second time, by force."""
        self._signal(signal.SIGKILL if self._is_told else signal.SIGTERM)
        self._is_told = True
        self._over_s = now_s + GRACE_S

    def close(self) -> None:
        """Let go of its output; processes that it left in the background are on their own."""
        self._output.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        """Take what it printed, so that it never waits for us; the beginning is kept."""
        with contextlib.suppress(BlockingIOError, OSError):
            chunk = os.read(self._output.fileno(), 1 << 16)
            self.output = (self.output + chunk)[:8192]  # kept of what one command prints


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; it is not reaped, so that its number stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by somebody who waits for all children
        return True
