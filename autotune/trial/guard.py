"""Client side of the guard: starts the process of guard_process.py, talks to it, and cleans up after a killed one."""

import json
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

from autotune.clock import Clock
from autotune.errors import TrialError
from autotune.process import inherited_environment
from autotune.records import Stop
from autotune.trial import guard_process
from autotune.trial.folder import TrialFolder

ENDING_S = guard_process.GRACE_S + guard_process.GIVE_UP_S + 2.0
"""Time limit from the command to end a trial until the guard reports its end; 2 s of it are for a busy machine."""

_log = logging.getLogger(__name__)


class GuardLost(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Loss of the guard process: it has ended, or does not answer; its orphans have to be killed."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="started"):
    """Start of the trainer's program: exec has succeeded."""

    pid: int


class NotStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="failed"):
    """Failure to start the trial.

    Attributes:
        step: The step that failed: ``log`` (opening the trial's log files), ``cwd`` (entering the directory),
            ``exec``, or ``fork`` (of a zygote that is gone, or may not be forked any more).
        errno: The system's error number; None if an argument itself is invalid (a NUL in it).
    """

    step: str
    errno: int | None
    error: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="exit"):
    """End of the trial: no process of it is left, except those in `left`.

    Attributes:
        status: Exit status of the main process, negative for a signal; None if it would not die.
        why: Reason for which the guard ended it; None if the main process ended first.
        started_s: Time at which the main process was forked.
        ended_s: Time at which the last process was gone.
        cpu_s: CPU time of all processes of the trial.
        peak_memory_bytes: Largest resident set of one of them.
        killed: Number of processes that needed SIGKILL.
        waited_for: What the trial still waited for when it was stopped before its main process was forked.
    """

    status: int | None
    why: Stop | None
    started_s: float
    ended_s: float
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    killed: int = 0
    left: tuple[int, ...] = ()
    waited_for: str = ""


class SidecarAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="answered"):
    """Answer of a sidecar to its request, None if it has ended."""

    sidecar: str
    answer: dict[str, Any] | None


Message = Started | NotStarted | Ended | SidecarAnswer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program to start, with its directory and environment.

    Attributes:
        argv: The command, at least one word; a program without a slash is looked up in the ``PATH`` of `env`.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Request to fork a trial from a zygote.

    Attributes:
        sidecar: The zygote.
        request: Fields of the request besides the program; see zygote.py.
    """

    sidecar: str
    request: Mapping[str, Any]


class Guard:
    """Handle of the guard process of a search; starts a new one when it was lost.

    To be used in a ``with`` statement; at its end no process of any trial is left.
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
        """Id of the guard's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the guard process without waiting for it to be up; do nothing while one is alive.

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
                    env=inherited_environment(),
                )
            except OSError as error:
                ours.close()
                raise TrialError(
                    f"the process that guards the trials could not be started: {error.strerror}",
                    remedy="Look at the limits on processes and memory (ulimit -a), then start the search again.",
                ) from error
        ours.settimeout(5.0)  # the guard reads at once; longer means that it is stuck
        self._channel = ours

    def launch(
        self, program: Program, *, stdout: Path, stderr: Path, deadline_s: float, fork: Fork | None = None
    ) -> None:
        """Start a trial; `receive` reports the outcome.

        Args:
            stdout: File for the first and the last mebibyte of its standard output.
            stderr: The same for its standard error.
            deadline_s: Time on CLOCK_MONOTONIC at which the guard ends it by itself.
            fork: The zygote to fork the trial from, in place of executing the command in a new process.

        Raises:
            GuardLost: The guard is gone.
        """
        fields = asdict(program)
        self._send(
            do="start",
            stdout=stdout,
            stderr=stderr,
            deadline_s=deadline_s,
            **(fields if fork is None else {"sidecar": fork.sidecar, "request": {**fields, **fork.request}}),
        )

    def start_sidecar(
        self, sidecar: str, program: Program, *, log: Path, request: Mapping[str, Any] | None = None
    ) -> None:
        """Start a sidecar: a process that runs beside the trials until `stop_sidecar` or the end of the guard.

        The guard reports nothing about one without a request, not even a failure to start it: its own output has to
        show that it is alive.

        Args:
            log: File for its output, which is there.
            request: Of a zygote: its first request; `receive` reports the answer.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="start_sidecar", sidecar=sidecar, **asdict(program), log=log, request=request)

    def stop_sidecar(self, sidecar: str) -> None:
        """Kill a sidecar if it is still there, without waiting for its end.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="stop_sidecar", sidecar=sidecar)

    def stop(self, why: Stop) -> None:
        """End the trial if it still goes on.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="stop", why=why.value)

    def receive(self, timeout_s: float) -> Message | None:
        """Wait for the guard's next message; return None if there was none in that time.

        Raises:
            GuardLost: The guard is gone.
        """
        if self._channel is None:
            raise GuardLost("the guard was not started")
        while b"\n" not in self._received:
            if not select.select([self._channel], [], [], max(timeout_s, 0.0))[0]:
                return None
            try:
                data = self._channel.recv(1 << 16)
            except OSError as error:
                raise GuardLost(f"no word from the guard: {error}") from error
            if not data:
                raise GuardLost("the guard has ended")
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return _decoder.decode(line)

    def close(self) -> None:
        """End the guard, and with it a trial that may be going on; wait until both are gone."""
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
        """Kill a guard that does not answer; its orphans have to be killed afterwards."""
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
            self._channel.sendall(json.dumps(_portable(message)).encode("ascii") + b"\n")
        except OSError as error:
            raise GuardLost(f"the guard does not listen: {error}") from error


def _portable(value: Any) -> Any:
    """Encode all texts in a value for a process with another locale."""
    # Paths and variables are bytes. The guard's locale may differ from ours (-I drops PYTHONUTF8), so both sides
    # spell the bytes in the same way, whatever the locale is.
    if isinstance(value, str | Path):
        return os.fsencode(value).decode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return {_portable(name): _portable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(item) for item in value]
    return value


# Orphan cleanup: processes of trials whose guard was killed.


@dataclass(frozen=True, kw_only=True)
class OrphanCleanup:
    """Result of an orphan cleanup: process ids.

    Attributes:
        left: Processes that did not end within 2 s, or may not be signalled.
    """

    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


def end_orphans(trials: Path, clock: Clock) -> OrphanCleanup:
    """Kill the processes of earlier trials of a study.

    A process belongs to a trial if its environment says so (``AUTOTUNE_TRIAL_ID``, and ``AUTOTUNE_TRIAL_DIR`` with a
    folder of ours directly inside `trials`, links resolved), if it is this user's, and if it is not older than that
    folder. Names and command lines mean nothing. A process that wiped its environment is not found.

    To be called by the holder of the study's lock, while none of its own trials is going on.

    Args:
        trials: The folder that holds the trials of the study.

    Returns:
        The killed processes, and those that could not be killed.
    """
    inside = os.path.realpath(trials)
    me = psutil.Process()
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    uid = os.getuid()
    give_up_s = clock.now_s() + 2.0
    signalled: set[int] = set()
    while True:
        found = [
            process for process in psutil.process_iter() if process.pid not in spared and _belongs(process, inside, uid)
        ]
        for process in found:
            try:
                process.kill()  # refuses if the id has come to mean another process
            except psutil.Error:
                continue
            signalled.add(process.pid)
        left = {process.pid for process in found}
        # Until a look finds none, since a killed process may have forked in between.
        if not left or clock.now_s() >= give_up_s:
            break
        clock.wait(0.02)
    cleanup = OrphanCleanup(killed=tuple(sorted(signalled - left)), left=tuple(sorted(left)))
    if signalled or left:
        _log.warning(
            "ended %d processes that an earlier trial had left; could not end: %s", len(cleanup.killed), cleanup.left
        )
    return cleanup


def _belongs(process: psutil.Process, inside: str, uid: int) -> bool:
    try:
        if process.uids().real != uid:
            return False
        environ = process.environ()  # a zombie has none, it is beyond killing
        folder = environ.get("AUTOTUNE_TRIAL_DIR")
        if not folder or not environ.get("AUTOTUNE_TRIAL_ID"):
            return False
        real = os.path.realpath(folder)
        if os.path.dirname(real) != inside:
            return False
        created_s = TrialFolder(Path(real)).created_s()
        # A process's start counts from the boot time, which the kernel tells in whole seconds.
        return created_s is not None and process.create_time() >= created_s - 2.0
    except (psutil.Error, OSError, ValueError):  # ended while we looked, or not ours to read; a NUL in a path
        return False
