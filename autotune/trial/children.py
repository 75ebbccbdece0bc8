"""Children that are not trials: searches and workers, the user's command for events, and short commands.

A search or worker is started, watched, and stopped with all that it left; it is in a session of its own. All trials
are below its guard, which is in another one, see guard_process.py. It inherits the reading end of a *lifeline*, a pipe
whose other end only the daemon holds: its end of file says that the daemon is gone, or that the search is to end after
the running trial.
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
"""Time from SIGTERM, which the search answers with the end of its trial, to SIGKILL."""

KILL_REST_S = 0.7
"""Time from the end of the search to SIGKILL for what is left: its guard ends the trial with SIGKILL after 0.5 s."""

GIVE_UP_S = 2.0
"""Time from that SIGKILL to naming the processes that do not end."""

NICENESS = 10
"""Default niceness of a search: nothing on an idle machine, and who comes gets the CPU at once. Where the kernel shares
the CPU among sessions first (autogroup in sched(7)), who comes gets a fair part of it."""

_POLL_S = 0.02
_COST_SHARE = 0.002  # of one core: where a look is dear, with hundreds of threads, the next comes later


@dataclass(frozen=True, kw_only=True)
class SearchExit:
    """End of a search: no process of it is left, except those in `left`.

    Attributes:
        code: Exit status, negative for a signal; None if not even SIGKILL ended the search itself.
        left: Processes that SIGKILL did not end.
    """

    code: int | None
    left: tuple[int, ...] = ()


class SearchChild:
    """Search that was started by this process; made by `start`. Nothing here blocks but `end`.

    Attributes:
        identity: Identity of its process, for `owner.is_gone`; it may be kept in a file.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: int, clock: Clock) -> None:
        self._process = process
        self._lifeline = lifeline  # -1 once it is closed
        self._clock = clock
        self.pid = process.pid
        self.identity: dict[str, Scalar] = identity_of(process.pid)
        self._look_s = clock.now_s()
        self._tree = ProcessTree((process.pid,))
        self._told_s: float | None = None
        self._ended_s: float | None = None  # when the search itself was gone
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
            argv: The command, at least one word.
            env: Its whole environment, to which `VARIABLE` is added.
            log: File to which its output is appended; made if it is not there.
            output: File to which what it prints on stdout is appended; None for the log.
            niceness: Its niceness, and that of all processes it starts: 0 to 19.

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
                remedy="Check that the folder and the program are still there.",
            ) from error
        finally:
            os.close(reader)
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        return cls(process, writer, clock)

    def pids(self) -> frozenset[int]:
        """Return the ids of all its processes that are there, also in other sessions."""
        return frozenset(self._alive())

    def finish_trial(self) -> None:
        """Let it end after the running trial, by closing the lifeline."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def leave(self, why: str = "") -> None:
        """Tell it to leave at once; `poll` does the rest and is to be called often from now on. May be called again.

        Args:
            why: Who came, in words: the running trial is marked with it. Empty if nobody did.
        """
        if self._told_s is not None or self._exit is not None:
            return
        self._told_s = self._clock.now_s()
        self._tree.look()  # while the search still is the parent of its guard
        if self._lifeline >= 0:
            with contextlib.suppress(OSError):  # it may have ended, and pipes hold more than this
                os.write(self._lifeline, why.encode("utf-8", "replace")[:500])
        self._process.send_signal(signal.SIGTERM)  # sends nothing if it has ended
        self.finish_trial()

    def poll(self) -> SearchExit | None:
        """Return its end; None while a process of it is left.

        To be called every 0.1 s or so once it was told to leave, else every second or so: it goes on to SIGKILL when
        that is due, and reaps the search.
        """
        if self._exit is not None:
            return self._exit
        now_s = self._clock.now_s()
        code = self._process.poll()
        if code is None and not self._is_hopeless(now_s):
            self._go_on(now_s)
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
        """Tell it to leave, and wait until it is gone: 6 s at most, 2 s with processes that can be killed."""
        self.leave()
        while (ended := self.poll()) is None:
            self._clock.wait(_POLL_S)
        return ended

    def _go_on(self, now_s: float) -> None:
        if self._told_s is None:
            if now_s >= self._look_s:
                self._tree.look()  # its guard has to be known if it dies
                looked_s = self._clock.now_s()
                # between looks for its guard, while it runs
                self._look_s = looked_s + max(2.0, (looked_s - now_s) / _COST_SHARE)
        elif now_s >= self._told_s + KILL_SEARCH_S:
            self._tree.look()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # not its guard, which ends the trial and then itself

    def _is_hopeless(self, now_s: float) -> bool:
        """Return True for a search that SIGKILL did not end: it is stuck in the kernel."""
        return self._told_s is not None and now_s >= self._told_s + KILL_SEARCH_S + GIVE_UP_S

    def _alive(self) -> list[int]:
        return [pid for pid, stat in self._tree.look().items() if not stat.is_dead]


VARIABLE = "AUTOTUNE_LIFELINE_FD"
"""Variable that holds the number of the reading end."""

_MOST_BYTES = 1000


class Lifeline:
    """Reading end of a lifeline.

    Args:
        descriptor: The pipe; it is not passed on to programs that this process starts.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._said = b""
        self._is_cut = False

    @classmethod
    def of_environment(cls) -> Self | None:
        """Take the lifeline that this process was started with, so that no other process sees it; None without one."""
        try:
            descriptor = int(os.environ.pop(VARIABLE, ""))
            return cls(descriptor) if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def is_cut(self) -> bool:
        """True once the daemon is gone, or has said why the search is to end."""
        try:
            while not self._is_cut and len(self._said) < _MOST_BYTES:
                more = os.read(self._descriptor, _MOST_BYTES)
                self._said += more
                self._is_cut = not more
        except BlockingIOError:
            pass
        except OSError:
            self._is_cut = True
        return self._is_cut or bool(self._said)

    @property
    def why(self) -> str:
        """Reason for the end, as the daemon gave it; empty if it gave none."""
        return self._said.decode("utf-8", "replace") if self.is_cut else ""


# The user's command for events.


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
    """Runs the user's own command for each event, which it gets as JSON on its standard input, one at a time.

    A thread does it, so that `notify` never blocks.

    Args:
        argv: The command; none tells nobody. It is not run through a shell.
        log: File for the end of each command, and for what it printed.
        environ: The environment, of which the command gets what is on a list: no secrets.
    """

    def __init__(self, argv: Sequence[str], log: Path, clock: Clock, environ: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._log_file = log
        self._clock = clock
        self._env = {name: value for name, value in environ.items() if name in _KEPT or name.startswith("LC_")}
        self._waiting: deque[bytes] = deque(maxlen=MOST_QUEUED)  # where more wait the oldest is dropped
        self._news = threading.Event()
        self._is_closed = threading.Event()
        self._next_said_s = -math.inf
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        if argv:
            self._thread.start()

    def notify(self, event: Mapping[str, Any]) -> None:
        """Queue an event; what happened, as JSON holds it."""
        if self._argv:
            self._waiting.append(json.dumps(event, default=str).encode("ascii") + b"\n")
            self._news.set()

    def close(self) -> None:
        """End the command that runs, after `GRACE_S` with SIGKILL; events that wait are dropped."""
        self._is_closed.set()
        self._news.set()
        if self._argv:
            self._thread.join(timeout=2 * GRACE_S)

    def _work(self) -> None:
        while not self._is_closed.is_set():
            self._news.wait()
            self._news.clear()
            while self._waiting and not self._is_closed.is_set():
                try:
                    self._note(*self._run(self._waiting.popleft()))
                except (OSError, ValueError) as error:  # the latter for a zero byte in an argument
                    self._note(f"cannot be started: {getattr(error, 'strerror', None) or error}", b"")

    def _run(self, event: bytes) -> tuple[str, bytes]:
        """Run the command for one event; return how it ended, and the beginning of what it printed."""
        # A file in memory: a pipe would block, or end before the command has read it.
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
                start_new_session=True,  # ^C in the daemon's terminal is not for it; and it is ended with its children
            )
        assert process.stdout is not None
        output, why_ended, number, over_s = b"", "", signal.SIGTERM, self._clock.now_s() + LIMIT_S
        with process.stdout as pipe:
            has_ended = False
            while not has_ended:
                has_ended = _has_ended(process.pid)
                is_late = self._clock.now_s() >= over_s
                if not has_ended and (is_late or (self._is_closed.is_set() and not why_ended)):
                    late = f"took longer than {LIMIT_S:.0f} s, and was ended"
                    why_ended = why_ended or (late if is_late else "was ended with the daemon")
                    _signal_group(process.pid, number)
                    number, over_s = signal.SIGKILL, self._clock.now_s() + GRACE_S
                if select.select([pipe], [], [], 0.0 if has_ended else 0.05)[0]:  # it never waits for us to read
                    more = os.read(pipe.fileno(), 1 << 16)
                    output = (output + more)[:8192]
                    if not more and not has_ended:
                        self._clock.wait(0.05)  # it has closed its output
        if why_ended:  # while it is a zombie its number, and so its group's, is nobody else's
            _signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
        if why_ended or code == 0:
            return why_ended or "well", output
        return f"failed with {'signal' if code < 0 else 'status'} {abs(code)}", output

    def _note(self, ended: str, output: bytes) -> None:
        """Write down how a command ended."""
        if ended != "well" and self._clock.now_s() >= self._next_said_s:  # it must not fill the log
            _log.warning("notify: the command %s; see %s", ended, self._log_file)
            self._next_said_s = self._clock.now_s() + 60.0
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
    """Return whether a child has ended; it is not reaped, so that its number stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the system reaps it where SIGCHLD is ignored
        return True


# Short commands, and that of autotune itself.


@dataclass(frozen=True, kw_only=True)
class Answered:
    """End of a command.

    Attributes:
        status: Its exit status; None if it could not be started, or did not end in time.
        text: What it printed, or why it has no status.
    """

    status: int | None
    text: str


def run_short(
    argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None, cwd: Path | str = "/"
) -> Answered:
    """Run a command to its end, without input and without a shell.

    Args:
        limit_s: Time limit; then it is killed.
        env: Its whole environment; None for that of this process.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        return Answered(status=None, text=f"there is no {argv[0]}")
    except subprocess.TimeoutExpired:
        return Answered(status=None, text=f"{argv[0]} did not end within {limit_s:.0f} s")
    except OSError as error:
        return Answered(status=None, text=f"{argv[0]} cannot be started: {error.strerror}")
    return Answered(status=done.returncode, text=done.stdout.decode("utf-8", "replace").strip()[-2000:])


OWN_COMMAND = (sys.executable, "-P", "-m", "autotune")
"""Interpreter and module; a folder called ``autotune`` in the working directory is not taken for the package."""
