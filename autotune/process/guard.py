"""The search's side of the guard: starts the process of guard_process.py and talks to it."""

import json
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autotune.errors import TrialError
from autotune.process import guard_process, zygote_process
from autotune.records import Stop

ENDING_S = guard_process.GRACE_S + guard_process.GIVE_UP_S + 2.0
"""From the word to end a trial until the guard must have said that it is over; 2 s are for a busy machine."""

_SEND_S = 5.0  # the guard reads at once; longer means that it is stuck
_CHUNK_BYTES = 1 << 16

_log = logging.getLogger(__name__)


class GuardLost(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """The guard process has ended, or does not answer; what it guarded has to be swept."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """The trainer's program runs: exec has worked."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """The trial could not be started.

    Attributes:
        step: What failed: ``log`` (opening the trial's log files), ``cwd`` (entering the directory), ``exec``, or
            ``fork`` (of a zygote that is gone, or may not be forked any more).
        errno: The system's error number; None if it refused the words themselves (a NUL in one).
        error: The system's text for it.
    """

    step: str
    errno: int | None
    error: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The trial is over and nothing of it is left, but for what `left` names.

    Attributes:
        status: Exit status of the main process, negative for a signal; None if it would not die.
        why: Why the guard ended it; None if the main process ended first.
        started_s: When the main process was forked.
        ended_s: When the last process was gone.
        cpu_s: CPU time of all processes of the run.
        peak_memory_bytes: Largest resident set of one of them.
        killed: How many processes needed SIGKILL.
        left: Processes that SIGKILL did not end.
    """

    status: int | None
    why: Stop | None
    started_s: float
    ended_s: float
    cpu_s: float
    peak_memory_bytes: int
    killed: int
    left: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """What came of warming a zygote; see zygote_process.py for its answer, which is None if it has ended."""

    zygote: str
    answer: Mapping[str, Any] | None


Message = Started | NotStarted | Ended | Warmed


@dataclass(frozen=True, kw_only=True)
class Fork:
    """How a trial is forked.

    Attributes:
        zygote: Name of the zygote.
        request: What it has to know besides the words, directory and environment of the trial; see zygote_process.py.
    """

    zygote: str
    request: Mapping[str, Any]


class Guard:
    """Keeps one guard process for as long as a search lasts, and replaces it when it was lost.

    Used in a ``with`` statement; at its end no process of any trial is left.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The guard's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the guard process; does nothing while one is alive. Does not wait for it to be up.

        Raises:
            TrialError: No process could be made.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # Isolated and without site: nothing of the user's environment can slow it down or break it.
                    [sys.executable, "-I", "-S", guard_process.__file__],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # before exec: ^C in the terminal never reaches it
                    cwd="/",
                )
            except OSError as error:
                ours.close()
                raise TrialError(
                    f"the process that guards the trials could not be started: {error.strerror}",
                    remedy="Look at the limits on processes and memory (ulimit -a), then start the search again.",
                ) from error
        ours.settimeout(_SEND_S)
        self._channel = ours

    def launch(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        deadline_s: float,
        fork: Fork | None = None,
    ) -> None:
        """Has a trial started; what comes of it is told by `receive`.

        Args:
            argv: The command, at least one word; a program without a slash is looked up in the ``PATH`` of `env`.
            cwd: Where it runs.
            env: Its whole environment.
            stdout: File for the first and the last mebibyte of what it prints.
            stderr: The same for its errors.
            deadline_s: When the guard ends it by itself, on CLOCK_MONOTONIC.
            fork: The zygote that becomes the trial, in place of a process that executes `argv`.

        Raises:
            GuardLost: The guard is gone.
        """
        program = _program(argv, cwd, env)
        self._send(
            do="start",
            stdout=portable(stdout),
            stderr=portable(stderr),
            deadline_s=deadline_s,
            **(program if fork is None else {"zygote": fork.zygote, "request": {**program, **fork.request}}),
        )

    def warm(
        self,
        zygote: str,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        request: Mapping[str, Any],
    ) -> None:
        """Has a zygote started; `receive` tells when it is warm.

        Args:
            zygote: Its name from now on.
            argv: The interpreter and its options.
            cwd: Where it runs.
            env: Its whole environment.
            log: File for what the imports print.
            request: What to import; see zygote_process.py.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(
            do="warm",
            zygote=zygote,
            **_program([*argv, "-c", zygote_process.BOOTSTRAP], cwd, env),
            guest=portable(zygote_process.__file__),
            log=portable(log),
            request=request,
        )

    def cool(self, zygote: str) -> None:
        """Has a zygote ended, if it is still there.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="cool", zygote=zygote)

    def start_sidecar(self, companion: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        """Has a process started that stays beside the trials, until `dismiss` or the end of the guard.

        Nothing is told of it, not even that it could not be started: what it does has to show that it lives.

        Args:
            companion: Its name from now on.
            argv: Its command.
            env: Its whole environment.
            log: File for what it prints.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="accompany", companion=companion, **_program(argv, Path("/"), env), log=portable(log))

    def stop_sidecar(self, companion: str) -> None:
        """Has a companion killed, if it is still there; does not wait for that.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="dismiss", companion=companion)

    def stop(self, why: Stop) -> None:
        """Has the trial ended, if it still goes on.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="stop", why=why.value)

    def receive(self, timeout_s: float) -> Message | None:
        """Waits for the guard's next word; None if there was none in that time.

        Raises:
            GuardLost: The guard is gone.
        """
        if self._channel is None:
            raise GuardLost("the guard was not started")
        while b"\n" not in self._received:
            if not select.select([self._channel], [], [], max(timeout_s, 0.0))[0]:
                return None
            try:
                data = self._channel.recv(_CHUNK_BYTES)
            except OSError as error:
                raise GuardLost(f"no word from the guard: {error}") from error
            if not data:
                raise GuardLost("the guard has ended")
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return _message(json.loads(line))

    def close(self) -> None:
        """Ends the guard, and with it the trial that may be going on; waits until both are gone."""
        process, channel = self._process, self._channel
        self._channel = None
        self._received.clear()
        if channel is not None:
            channel.close()  # the lifeline: the guard ends all that it guards, then itself
        if process is None:
            return
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            _log.warning("the guard (process %d) did not end within %.1f s and is killed", process.pid, ENDING_S)
            self.kill()
        self._process = None

    def kill(self) -> None:
        """Ends a guard that does not answer; what it guarded has to be swept."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(guard_process.GIVE_UP_S)
            except subprocess.TimeoutExpired:
                _log.warning("the guard (process %d) cannot be killed and is left behind", self._process.pid)
            self._process = None
        self._received.clear()

    def _send(self, **message: Any) -> None:
        if self._channel is None:
            raise GuardLost("the guard was not started")
        try:
            self._channel.sendall(json.dumps(message).encode("ascii") + b"\n")
        except OSError as error:
            raise GuardLost(f"the guard does not listen: {error}") from error


def portable(text: str | Path) -> str:
    """Spells a text for a process with another locale."""
    # Paths and variables are bytes. The guard's locale may differ from ours (-I drops PYTHONUTF8), so both sides
    # spell the bytes in the same way, whatever the locale is.
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _program(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "argv": [portable(word) for word in argv],
        "cwd": portable(cwd),
        "env": {portable(name): portable(value) for name, value in env.items()},
    }


def _message(fields: Mapping[str, Any]) -> Message:
    event = fields["event"]
    if event == "warm":
        return Warmed(zygote=fields["zygote"], answer=fields["answer"])
    if event == "started":
        return Started(pid=fields["pid"])
    if event == "failed":
        return NotStarted(step=fields["step"], errno=fields["errno"], error=fields["error"])
    return Ended(
        status=fields["status"],
        why=None if fields["why"] is None else Stop(fields["why"]),
        started_s=fields["started_s"],
        ended_s=fields["ended_s"],
        cpu_s=fields["cpu_s"],
        peak_memory_bytes=fields["peak_memory_bytes"],
        killed=fields["killed"],
        left=tuple(fields["left"]),
    )
