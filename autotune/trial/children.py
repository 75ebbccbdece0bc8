"""Child processes other than trials: searches and workers, the user's notification command, short commands.

A search or worker is stopped with all its descendants, in any session. It inherits the read end of a *lifeline*, a pipe
from the daemon: end of file means that the daemon is gone, or that the search should end after the running trial.
"""

import contextlib
import json
import logging
import math
import os
import select
import signal
import stat
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autotune.clock import Clock
from autotune.errors import CommandError
from autotune.files import open_regular
from autotune.measure.host import ProcessTree
from autotune.records import Scalar
from autotune.trial.process_identity import identity_of

KILL_SEARCH_S = 0.9
"""Time from SIGTERM to SIGKILL of the search."""

KILL_REST_S = 0.7
"""Time from its end to SIGKILL for other processes: its guard kills the trial after 0.5 s."""

GIVE_UP_S = 2.0
"""Time from that SIGKILL to reporting the processes that survive it."""

NICENESS = 10
"""Default niceness of a search. With autogroups (sched(7)) the kernel shares the CPU among sessions first."""

_POLL_S = 0.02
_COST_SHARE = 0.002  # of one core, for scans of /proc: slow ones, with hundreds of threads, are less frequent


@dataclass(frozen=True, kw_only=True)
class SearchExit:
    """End of a search.

    Attributes:
        code: Exit status, negative for a signal; None if SIGKILL did not end it.
        left: Processes that survived SIGKILL.
    """

    code: int | None
    left: tuple[int, ...] = ()


class SearchChild:
    """Search started by this process. Only `end` blocks."""

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: int, clock: Clock) -> None:
        self._process = process
        self._lifeline = lifeline  # -1 once it is closed
        self._clock = clock
        self.pid = process.pid
        self.identity: dict[str, Scalar] = identity_of(process.pid)
        self._look_s = clock.now_s()
        self._tree = ProcessTree((process.pid,))
        self._stop_asked_s: float | None = None
        self._ended_s: float | None = None  # when the search itself ended
        self._exit: SearchExit | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        output: Path | None = None,
        clock: Clock,
        niceness: int = NICENESS,
    ) -> Self:
        """Start a search.

        Args:
            env: The whole environment, except `VARIABLE`.
            log: File to append its output to, without stdout if there is an `output`.

        Raises:
            CommandError: It cannot be started.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            with contextlib.ExitStack() as files:
                stderr = files.enter_context(open_regular(log, append=True, create=True))
                stdout = files.enter_context(open_regular(output, append=True, create=True)) if output else stderr
                process = subprocess.Popen(
                    list(argv),
                    cwd=cwd,
                    env={**env, VARIABLE: str(reader)},
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=(reader,),
                )
        except (OSError, ValueError) as error:
            os.close(writer)
            words = getattr(error, "strerror", None) or error
            raise CommandError(
                f"the search cannot be started: {words}",
                where=getattr(error, "filename", None) or argv[0],
                remedy="Check that the folder and the program still exist.",
            ) from error
        finally:
            os.close(reader)
        with contextlib.suppress(OSError):  # it has exited already
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        return cls(process, writer, clock)

    def pids(self) -> frozenset[int]:
        return frozenset(self._alive())

    def finish_trial(self) -> None:
        """Let it end after the running trial."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def leave(self) -> None:
        """Ask it to stop now; `poll` does the rest."""
        if self._stop_asked_s is not None or self._exit is not None:
            return
        self._stop_asked_s = self._clock.now_s()
        self._tree.look()  # while the search is still the parent of its guard
        self._process.send_signal(signal.SIGTERM)  # sends nothing if it has exited
        self.finish_trial()

    def poll(self) -> SearchExit | None:
        """Return its end; None while any of its processes is left.

        Call it every 0.1 s after `leave`, else every second: it sends SIGKILL when due.
        """
        if self._exit is not None:
            return self._exit
        now_s = self._clock.now_s()
        code = self._process.poll()
        if code is None and not self._is_hopeless(now_s):
            self._escalate(now_s)
            return None
        if self._ended_s is None:
            self._ended_s = now_s
            self.finish_trial()
        alive = self._alive()
        over_s = now_s - self._ended_s - KILL_REST_S
        if alive and over_s < GIVE_UP_S:
            if over_s >= 0:
                for pid in alive:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            return None
        self._exit = SearchExit(code=code, left=tuple(sorted(alive)))
        return self._exit

    def end(self) -> SearchExit:
        """Stop it and wait: at most 6 s, 2 s if its processes can be killed."""
        self.leave()
        while (ended := self.poll()) is None:
            self._clock.wait(_POLL_S)
        return ended

    def _escalate(self, now_s: float) -> None:
        if self._stop_asked_s is None:
            if now_s >= self._look_s:
                self._tree.look()  # its guard must be known if it dies
                looked_s = self._clock.now_s()
                self._look_s = looked_s + max(2.0, (looked_s - now_s) / _COST_SHARE)
        elif now_s >= self._stop_asked_s + KILL_SEARCH_S:
            self._tree.look()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # not its guard, which stops the trial and then exits

    def _is_hopeless(self, now_s: float) -> bool:
        """Return whether SIGKILL did not end the search."""
        return self._stop_asked_s is not None and now_s >= self._stop_asked_s + KILL_SEARCH_S + GIVE_UP_S

    def _alive(self) -> list[int]:
        return [pid for pid, stat in self._tree.look().items() if not stat.is_dead]


VARIABLE = "AUTOTUNE_LIFELINE_FD"
"""Variable with the descriptor of the read end."""


class Lifeline:
    """Read end of a lifeline; not inherited by programs that this process starts."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._is_cut = False

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return the lifeline that this process was started with, if any, and hide it from other programs."""
        try:
            descriptor = int(os.environ.pop(VARIABLE, ""))
            return cls(descriptor) if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def is_cut(self) -> bool:
        """Whether the daemon is gone, or asked the search to end."""
        try:
            self._is_cut = self._is_cut or not os.read(self._descriptor, 1)
        except BlockingIOError:
            pass
        except OSError:
            self._is_cut = True
        return self._is_cut


# The user's notification command.


LIMIT_S = 30.0
"""Time limit of the command, until SIGTERM."""

GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL."""

MOST_QUEUED = 100

_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),  # for notify-send
)

_log = logging.getLogger(__name__)


class Notifier:
    """Thread that runs the user's command for each event, which is JSON on standard input.

    Args:
        argv: Run without a shell; empty for none.
        log: File for exits and output.
        environ: Only listed variables are passed on, no secrets.
    """

    def __init__(self, argv: Sequence[str], log: Path, clock: Clock, environ: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._log_file = log
        self._clock = clock
        self._env = {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_")}
        self._waiting: deque[bytes] = deque(maxlen=MOST_QUEUED)  # the oldest is dropped
        self._wake = threading.Event()
        self._is_closed = threading.Event()
        self._next_warning_s = -math.inf
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        if argv:
            self._thread.start()

    def notify(self, event: Mapping[str, Any]) -> None:
        if self._argv:
            self._waiting.append(json.dumps(event, default=str).encode("ascii") + b"\n")
            self._wake.set()

    def close(self) -> None:
        self._is_closed.set()
        self._wake.set()
        if self._argv:
            self._thread.join(timeout=2 * GRACE_S)

    def _work(self) -> None:
        while not self._is_closed.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._is_closed.is_set():
                try:
                    self._log_end(*self._run(self._waiting.popleft()))
                except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
                    self._log_end(f"cannot be started: {getattr(error, 'strerror', None) or error}", b"")

    def _run(self, event: bytes) -> tuple[str, bytes]:
        """Return how the command ended for one event, and the beginning of its output."""
        # A memory file: a pipe could block, or close before the command has read it.
        with os.fdopen(os.memfd_create("event"), "w+b") as stdin:
            stdin.write(event)
            stdin.seek(0)
            process = subprocess.Popen(
                self._argv,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd="/",
                start_new_session=True,  # without ^C of the daemon's terminal; stopped with its children
            )
        assert process.stdout is not None
        output, why_ended, number, over_s = b"", "", signal.SIGTERM, self._clock.now_s() + LIMIT_S
        with process.stdout as pipe:
            has_ended = False
            while not has_ended:
                has_ended = _has_ended(process.pid)
                is_late = self._clock.now_s() >= over_s
                if not has_ended and (is_late or (self._is_closed.is_set() and not why_ended)):
                    late = f"took longer than {LIMIT_S:.0f} s and was stopped"
                    why_ended = why_ended or (late if is_late else "was stopped with the daemon")
                    _signal_group(process.pid, number)
                    number, over_s = signal.SIGKILL, self._clock.now_s() + GRACE_S
                if select.select([pipe], [], [], 0.0 if has_ended else 0.05)[0]:  # so its output never blocks it
                    more = os.read(pipe.fileno(), 1 << 16)
                    output = (output + more)[:8192]
                    if not more and not has_ended:
                        self._clock.wait(0.05)  # it has closed its output
        if why_ended:  # the id of a zombie, and of its group, is not reused
            _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        if why_ended or code == 0:
            return why_ended or "well", output
        return f"failed with {'signal' if code < 0 else 'status'} {abs(code)}", output

    def _log_end(self, ended: str, output: bytes) -> None:
        if ended != "well" and self._clock.now_s() >= self._next_warning_s:  # must not fill the log
            _log.warning("notify: the command %s; see %s", ended, self._log_file)
            self._next_warning_s = self._clock.now_s() + 60.0
        text = output.decode("utf-8", "replace")
        line = json.dumps({"utc": self._clock.utc().isoformat(timespec="seconds"), "ended": ended, "output": text})
        try:
            with open_regular(self._log_file, append=True, create=True) as file:
                if os.fstat(file.fileno()).st_size > 1 << 20:
                    file.truncate(0)
                file.write(line.encode("ascii") + b"\n")
        except OSError as error:
            _log.warning("notify: %s cannot be written: %s", self._log_file, error.strerror)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _has_ended(pid: int) -> bool:
    """Return whether a child has exited, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the system reaps it if SIGCHLD is ignored
        return True


# Short commands, and autotune's own.


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command.

    Attributes:
        status: None if it could not be started, or timed out.
        text: Its output, or why it has no status.
    """

    status: int | None
    text: str


def run_short(argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command to its end or time limit, without input and without a shell."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd="/",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(status=None, text=f"{argv[0]} did not exit within {limit_s:.0f} s")
    except OSError as error:
        return CommandResult(status=None, text=f"{argv[0]} cannot be started: {error.strerror}")
    return CommandResult(status=done.returncode, text=done.stdout.decode("utf-8", "replace").strip()[-2000:])


OWN_COMMAND = (sys.executable, "-P", "-m", "autotune")
"""Interpreter and module; ``-P`` ignores a folder ``autotune`` in the working directory."""
