"""Launch of trials: runners, which make one from its plan, and the handle of the guard that owns its processes."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import msgspec
import psutil

from autotune.clock import Clock, clock_identity
from autotune.errors import AutotuneError, CommandError, TrialError
from autotune.measure.host import cgroup_folders, text_of
from autotune.process import inherited_environment
from autotune.records import Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial import guard_process
from autotune.trial.folders import TEMPORARY_VARIABLE, TrialFolder, make_temporary_folder, temporary_folder
from autotune.trial.step_files import StepReader

Watch = Callable[[Sequence[TraineeEvent]], Stop | None]
LOOK_S = 0.1  # between looks at the trial; well below the 0.25 s that are promised to the watch
_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Runner of trials, one at a time."""

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """Make the planned trial, and return when no process of it is left.

        The runner owns all processes of the trial, the caller owns the folder. Whatever ends this call, also an
        exception, ends the trial first.

        Args:
            watch: Called when the trial reports something and at least every 0.25 s, with the events since the
                last call; a result other than None is the reason to stop the trial. After the end of the trial it is
                called once more if there are events it has not seen; that result is ignored.
            deadline_s: Time at which the trial is stopped in any case, on the runner's clock. The call returns
                within 5 s of it.

        Returns:
            Its exit. A deadline that has passed already gives a trial that was never started.

        Raises:
            CommandError: The command cannot be started.
            TrialError: The trial's folder cannot be used.
            BaseException: Whatever `watch` raises.
        """
        ...


class ProcessRunner:
    """Runner that makes each trial in a process of its own, below the guard.

    Args:
        guard: Owned by the caller, who closes it; replaced from within if it gets lost.
        clock: The machine's monotonic clock, on which the guard and the training processes live too.
    """

    def __init__(self, guard: Guard, clock: Clock) -> None:
        self._guard = guard
        self._clock = clock

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """See `Runner.run`. If the guard dies, orphans are killed and the trial ends with `Stop.GUARD_LOST`."""
        now_s = self._clock.now_s()
        if now_s >= deadline_s:
            return TrialExit(started_s=now_s, ended_s=now_s, exit_code=None, stop=Stop.DEADLINE)
        folder = TrialFolder(Path(os.path.realpath(plan.folder)))
        folder.create(observed=True)
        for name, text in {plan.config_name: plan.config_text, **plan.further_configs}.items():
            folder.write_config(text, name)
        temporary: Path | None = None
        if plan.env.get(TEMPORARY_VARIABLE) == str(temporary_folder(folder.path)):
            temporary = make_temporary_folder(folder.path)
        request = LaunchRequest(plan, folder, watch, deadline_s, temporary)
        kills_before = oom_kills()
        try:
            trial_exit = self._make(request)
        except GuardLost as error:
            _log.warning("%s; ending what it guarded", error)
            self._guard.kill()
            left = end_orphans(folder.path.parent, self._clock).left
            ended_s = self._clock.now_s()
            trial_exit = TrialExit(
                started_s=now_s, ended_s=ended_s, exit_code=None, stop=Stop.GUARD_LOST, left_pids=left
            )
        except BaseException:
            self._guard.close()  # which ends the trial and waits for that
            raise
        if trial_exit.left_pids:
            _log.warning("processes that cannot be killed are left behind: %s", trial_exit.left_pids)
        kills = oom_kills()
        request.read_rest()
        return replace(
            trial_exit,
            stderr_tail=folder.stderr_tail(),
            oom_killed=None if kills is None or kills_before is None else kills > kills_before,
        )

    def _make(self, request: LaunchRequest) -> TrialExit:
        self._guard.start()
        ended = self._follow(request)
        if isinstance(ended, NotStarted):
            raise _not_started(request.plan, ended)
        return ended

    def _follow(
        self, request: LaunchRequest, *, zygote: str = "", fork: Mapping[str, Any] | None = None
    ) -> TrialExit | NotStarted:
        """Start a trial, or fork it from a zygote, see `Guard.launch`; return its end, or why it has not begun."""
        self._guard.launch(
            {"argv": request.plan.argv, "cwd": request.plan.cwd, "env": request.env},
            stdout=request.folder.stdout,
            stderr=request.folder.stderr,
            deadline_s=request.deadline_s,
            temporary=request.temporary,
            zygote=zygote,
            fork=fork,
        )
        over_s = request.deadline_s + ENDING_S  # the guard stops the trial by itself, and says so before then
        has_started = stopping = False
        while True:
            message = self._guard.receive(LOOK_S)
            if isinstance(message, Ended):
                if message.exit.stop is Stop.GUARD_LOST:  # somebody told the guard to end, and it is about to
                    self._guard.close()
                return message.exit
            if isinstance(message, NotStarted):
                return message
            events: list[TraineeEvent] = []
            if isinstance(message, Started):
                has_started = True
                events.append(TraineeEvent(kind="launched", t_s=self._clock.now_s(), stream=f"{message.pid}.0"))
            if not stopping:
                if has_started:  # else what it reports might come before the word that it was launched
                    events += request.steps.poll(self._clock.now_s())
                stop = request.watch(events)
                if stop is not None:
                    stopping = True
                    self._guard.stop(stop)
                    over_s = min(over_s, self._clock.now_s() + ENDING_S)
            late_s = self._clock.now_s() - over_s
            # processes on other nodes are ended by a daemon there, which the guard waits for
            if late_s > 2.0 * guard_process.ELSEWHERE_S or (
                late_s > 0 and not request.folder.has_processes_elsewhere()
            ):
                raise GuardLost(f"no word from the guard (process {self._guard.pid}) for too long")


class LaunchRequest:
    """Request to launch one trial, and what follows it.

    Attributes:
        env: The whole environment of the trial.
        temporary: Its own folder for temporary files; None if it has none.
        steps: Reader of the events that the trial reports.
    """

    def __init__(
        self, plan: TrialPlan, folder: TrialFolder, watch: Watch, deadline_s: float, temporary: Path | None = None
    ) -> None:
        self.temporary = temporary
        self.plan = replace(plan, argv=tuple(_with_observer(plan.argv, str(folder.inject))))
        self.folder = folder
        self.watch = watch
        self.deadline_s = deadline_s
        self.env = {
            **inherited_environment(),
            **plan.env,
            "AUTOTUNE_TRIAL_ID": plan.trial_id,
            "AUTOTUNE_TRIAL_DIR": str(folder.path),
            "AUTOTUNE_CLOCK": clock_identity(),
        }
        # In front of the user's own path; an empty entry would mean the working directory.
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder.inject), self.env.get("PYTHONPATH"))))
        self.steps = StepReader(folder.path)

    def read_rest(self) -> None:
        """Pass on what the trial reported in its last moments, now that none of its processes is left."""
        for _ in range(16):  # of about 1 MiB each, for events since the last look
            events = self.steps.poll()
            if not events:
                break
            self.watch(events)


def _with_observer(argv: Sequence[str], inject: str) -> Iterator[str]:
    """Yield a command; where it sets PYTHONPATH itself, as ``env PYTHONPATH=src python ...``, the observer is in it."""
    is_setting = bool(argv) and os.path.basename(argv[0]) == "env"
    for place, word in enumerate(argv):
        is_setting = is_setting and (place == 0 or word.startswith("-") or "=" in word)
        name, equals, value = word.partition("=")
        yield f"{name}={inject}{os.pathsep}{value}" if is_setting and equals and name == "PYTHONPATH" else word


def _not_started(plan: TrialPlan, what: NotStarted) -> AutotuneError:
    if what.step != "exec":
        kind, said, where, remedy = _BEFORE_EXEC[what.step]
        return kind(f"{said}: {what.error}", where=str(getattr(plan, where)) if where else None, remedy=remedy)
    program = plan.argv[0]
    is_file = "/" in program and os.path.exists(plan.cwd / program)
    remedy = _REMEDIES.get((what.errno, is_file)) or _REMEDIES.get((what.errno, None)) or _REMEDIES[None, None]
    return CommandError(
        f"the command {program!r} cannot be started: {what.error}", remedy=remedy.replace("PROGRAM", program)
    )


# By the step that failed: the error, its words, the part of the plan that says where, and the remedy.
_BEFORE_EXEC: Mapping[str, tuple[type[AutotuneError], str, str, str]] = {
    "log": (
        *(TrialError, "the trial's log files cannot be opened", "folder"),
        "See to that (room, permissions), or choose another place with --state-dir.",
    ),
    "cwd": (
        *(CommandError, "the directory to run in cannot be entered", "cwd"),
        "Start the search in a directory that exists and that you may enter.",
    ),
    "fork": (
        *(TrialError, "no process can be made for the trial", ""),
        "Look at the limits on processes and memory (ulimit -a), then start the search again.",
    ),
}

# By the system's error, and whether the program is a file that is there; None for any.
_REMEDIES: Mapping[tuple[int | None, bool | None], str] = {
    (errno.ENOENT, True): "The file is there. It may be that the interpreter its first line (#!) names is missing.",
    (errno.ENOENT, None): "Check the command's first word, and that the trainer's environment is active.",
    (errno.EACCES, True): "Make it executable (chmod +x PROGRAM), or put its interpreter in front: python PROGRAM.",
    (errno.ENOEXEC, None): "Begin its first line with #!, or put its interpreter in front: python PROGRAM.",
    (errno.E2BIG, None): "The command and its environment together are too long; shorten them.",
    (None, None): "Start the same command by hand to see what is wrong with it.",
}


ENDING_S = guard_process.GRACE_S + guard_process.GIVE_UP_S + 2.0
"""Time limit from the command to end a trial until the guard reports its end; 2 s of it are for a busy machine."""


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
    """End of the trial: no process of it is left but `TrialExit.left_pids`."""

    exit: TrialExit


class SidecarAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="answered"):
    """Answer of a sidecar to its request, None if it has ended."""

    sidecar: str
    answer: dict[str, Any] | None


Message = Started | NotStarted | Ended | SidecarAnswer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Guard:
    """Handle of the guard process of a search; starts a new one when it was lost.

    To be used in a ``with`` statement; at its end no process of any trial is left.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
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
        self,
        program: Mapping[str, Any],
        *,
        stdout: Path,
        stderr: Path,
        deadline_s: float,
        temporary: Path | None = None,
        zygote: str = "",
        fork: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a trial; `receive` reports the outcome.

        Args:
            program: ``argv``, ``cwd`` and ``env``: the command, at least one word; a program without a slash is looked
                up in the ``PATH`` of its environment.
            stdout: File for the first and the last mebibyte of its standard output.
            stderr: The same for its standard error.
            deadline_s: Time on CLOCK_MONOTONIC at which the guard ends it by itself.
            temporary: Its own folder for temporary files, which goes if the search is gone; None if it has none.
            zygote: The sidecar to fork the trial from, in place of executing the command in a new process.
            fork: Fields of the request to it besides the program; see zygote.py.

        Raises:
            GuardLost: The guard is gone.
        """
        how = {"sidecar": zygote, "request": {**program, **(fork or {})}} if zygote else program
        self._send(do="start", stdout=stdout, stderr=stderr, deadline_s=deadline_s, temporary=temporary, **how)

    def start_sidecar(
        self, sidecar: str, program: Mapping[str, Any], *, log: Path, request: Mapping[str, Any] | None = None
    ) -> None:
        """Start a sidecar: a process that runs beside the trials until `stop_sidecar` or the end of the guard.

        The guard reports nothing about one without a request, not even a failure to start it: its own output has to
        show that it is alive.

        Args:
            program: As of `launch`.
            log: File for its output, which is there.
            request: Of a zygote: its first request; `receive` reports the answer.

        Raises:
            GuardLost: The guard is gone.
        """
        self._send(do="start_sidecar", sidecar=sidecar, **program, log=log, request=request)

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
        line, _, self._received = self._received.partition(b"\n")
        return _decoder.decode(line)

    def close(self) -> None:
        """End the guard, and with it a trial that may be going on; wait until both are gone."""
        self._hang_up()  # the lifeline: the guard ends all that it guards, then itself
        process = self._process
        if process is not None:
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                _log.warning("the guard (process %d) did not end within %.1f s and is killed", process.pid, ENDING_S)
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Kill a guard that does not answer; its orphans have to be killed afterwards."""
        self._hang_up()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                process.wait(guard_process.GIVE_UP_S)
            except subprocess.TimeoutExpired:
                _log.warning("the guard (process %d) cannot be killed and is left behind", process.pid)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel, self._received = None, b""

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


class OrphanCleanup(NamedTuple):
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
    for folder in os.scandir(inside) if os.path.isdir(inside) else ():
        if folder.is_dir(follow_symlinks=False) and not os.path.lexists(os.path.join(folder, "over")):
            guard_process.end_elsewhere(os.fsencode(folder.path))
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


_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Count the kills by the out-of-memory killer so far, in the smallest group around this process that is readable.

    That is the count of its control group (v2: ``memory.events``, v1: ``memory.oom_control``, both in the
    kernel's Documentation/admin-guide), which processes started by it share, else that of the whole machine.

    Args:
        root: Folder in which ``proc`` and ``sys`` are mounted.

    Returns:
        A number that only ever grows; None if none can be read.
    """
    names = ("memory.events", "memory.oom_control")
    counters = [folder / name for folder in cgroup_folders(root) for name in names]
    found = (_COUNT.search(text_of(counter) or "") for counter in (*counters, root / "proc/vmstat"))
    return next((int(count[1]) for count in found if count), None)
