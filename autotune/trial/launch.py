"""Launch of trials: runners, and the handle of the guard that owns a trial's processes."""

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

import autotune
from autotune.clock import Clock, clock_identity
from autotune.errors import AutotuneError, CommandError, TrialError
from autotune.measure.host import cgroup_folders, text_of
from autotune.process import inherited_environment, with_python_path
from autotune.records import Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial import guard_process
from autotune.trial.folders import TEMPORARY_VARIABLE, TrialFolder, make_temporary_folder, temporary_folder
from autotune.trial.step_files import StepReader

Watch = Callable[[Sequence[TraineeEvent]], Stop | None]
POLL_S = 0.1  # between polls of the trial; well below the 0.25 s promised to the watch
_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Runner of trials, one at a time."""

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """Run the planned trial; return, or raise, when none of its processes is left.

        Args:
            watch: Called with new events, and at least every 0.25 s; stops the trial by returning a reason. Its result
                is ignored in a last call after the end.
            deadline_s: Time on the runner's clock at which the trial is stopped; the call returns within 5 s of it.

        Raises:
            CommandError: The command cannot be started.
            TrialError: The trial's folder cannot be used.
            BaseException: Raised by `watch`.
        """
        ...


class ProcessRunner:
    """Runner with a new process for each trial, below the caller's guard, which is restarted if it is lost."""

    def __init__(self, guard: Guard, clock: Clock) -> None:
        self._guard = guard
        self._clock = clock

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        now_s = self._clock.now_s()
        if now_s >= deadline_s:
            return TrialExit(started_s=now_s, ended_s=now_s, exit_code=None, stop=Stop.DEADLINE)
        folder = TrialFolder(Path(os.path.realpath(plan.folder)))
        folder.create(observed=True)
        folder.forget_processes_elsewhere()
        for name, text in {plan.config_name: plan.config_text, **plan.further_configs}.items():
            folder.write_config(text, name)
        temporary: Path | None = None
        if plan.env.get(TEMPORARY_VARIABLE) == str(temporary_folder(folder.path)):
            temporary = make_temporary_folder(folder.path)
        request = LaunchRequest(plan, folder, watch, deadline_s, temporary)
        kills_before = oom_kills()
        try:
            trial_exit = self._run_trial(request)
        except GuardLost as error:
            _log.warning("%s; killing its processes", error)
            self._guard.kill()
            left = end_orphans(folder.path.parent, self._clock).left
            ended_s = self._clock.now_s()
            trial_exit = TrialExit(
                started_s=now_s, ended_s=ended_s, exit_code=None, stop=Stop.GUARD_LOST, left_pids=left
            )
        except BaseException:
            self._guard.close()  # stops the trial and waits for its end
            raise
        if trial_exit.left_pids:
            _log.warning("processes that cannot be killed remain: %s", trial_exit.left_pids)
        kills = oom_kills()
        request.read_rest()
        return replace(
            trial_exit,
            stderr_tail=folder.stderr_tail(),
            oom_killed=None if kills is None or kills_before is None else kills > kills_before,
        )

    def _run_trial(self, request: LaunchRequest) -> TrialExit:
        self._guard.start()
        ended = self._follow(request)
        if isinstance(ended, NotStarted):
            raise _not_started(request.plan, ended)
        return ended

    def _follow(
        self, request: LaunchRequest, *, zygote: str = "", fork: Mapping[str, Any] | None = None
    ) -> TrialExit | NotStarted:
        """Start a trial, or fork it from a zygote; return its end, or why it has not started."""
        self._guard.launch(
            {"argv": request.plan.argv, "cwd": request.plan.cwd, "env": request.env, "added": request.added},
            stdout=request.folder.stdout,
            stderr=request.folder.stderr,
            deadline_s=request.deadline_s,
            temporary=request.temporary,
            zygote=zygote,
            fork=fork,
        )
        over_s = request.deadline_s + ENDING_S  # the guard stops the trial and reports its end before then
        has_started = stopping = False
        while True:
            message = self._guard.receive(POLL_S)
            if isinstance(message, Ended):
                if message.exit.stop is Stop.GUARD_LOST:  # the guard got SIGTERM, and is about to exit
                    self._guard.close()
                return message.exit
            if isinstance(message, NotStarted):
                return message
            events: list[TraineeEvent] = []
            if isinstance(message, Started):
                has_started = True
                events.append(TraineeEvent(kind="launched", t_s=self._clock.now_s(), stream=f"{message.pid}.0"))
            if not stopping:
                if has_started:  # else its events might precede "launched"
                    events += request.steps.poll(self._clock.now_s())
                stop = request.watch(events)
                if stop is not None:
                    stopping = True
                    self._guard.stop(stop)
                    over_s = min(over_s, self._clock.now_s() + ENDING_S)
            late_s = self._clock.now_s() - over_s
            # the guard waits for daemons that stop processes on other nodes
            if late_s > 2.0 * guard_process.STOP_ELSEWHERE_S or (
                late_s > 0 and not request.folder.has_processes_elsewhere()
            ):
                raise GuardLost(f"the guard (process {self._guard.pid}) did not respond in time")


class LaunchRequest:
    """Request to launch one trial, with the whole environment."""

    def __init__(
        self, plan: TrialPlan, folder: TrialFolder, watch: Watch, deadline_s: float, temporary: Path | None = None
    ) -> None:
        self.temporary = temporary
        self.plan = replace(plan, argv=tuple(_with_observer(plan.argv, str(folder.inject))))
        self.folder = folder
        self.watch = watch
        self.deadline_s = deadline_s
        added = {
            **plan.env,
            "AUTOTUNE_TRIAL_ID": plan.trial_id,
            "AUTOTUNE_TRIAL_DIR": str(folder.path),
            "AUTOTUNE_CLOCK": clock_identity(),
            # For ranks on other nodes (autotune/trainee/node_gpus.py).
            "AUTOTUNE_COLLECTOR": f"{sys.executable}{os.pathsep}{Path(autotune.__file__).parents[1]}",
        }
        self.env = with_python_path({**inherited_environment(), **added}, folder.inject)
        self.added = ("PYTHONPATH", *added)  # names, for launchers that pass no others on
        self.steps = StepReader(folder.path)

    def read_rest(self) -> None:
        """Pass on the trial's last events, now that no process of it is left."""
        for _ in range(16):  # of about 1 MiB each, for events since the last poll
            events = self.steps.poll()
            if not events:
                break
            self.watch(events)


def _with_observer(argv: Sequence[str], inject: str) -> Iterator[str]:
    """Yield a command's words, with the observer in a PYTHONPATH that ``env`` sets in it."""
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


# By the step that failed: error, message, field of the plan for `where`, and remedy.
_BEFORE_EXEC: Mapping[str, tuple[type[AutotuneError], str, str, str]] = {
    "log": (
        *(TrialError, "the trial's log files cannot be opened", "folder"),
        "Check disk space and permissions, or choose another place with --state-dir.",
    ),
    "cwd": (
        *(CommandError, "the working directory cannot be entered", "cwd"),
        "Start the search in a directory that exists and that you can enter.",
    ),
    "fork": (
        *(TrialError, "no process can be started for the trial", ""),
        "Check the limits on processes and memory (ulimit -a), then start the search again.",
    ),
}

# By errno, and whether the program is an existing file; None for any.
_REMEDIES: Mapping[tuple[int | None, bool | None], str] = {
    (errno.ENOENT, True): "The file exists; the interpreter in its first line (#!) may be missing.",
    (errno.ENOENT, None): "Check the command's first word, and that the trainer's environment is active.",
    (errno.EACCES, True): "Make it executable (chmod +x PROGRAM), or run it with its interpreter: python PROGRAM.",
    (errno.ENOEXEC, None): "Start its first line with #!, or run it with its interpreter: python PROGRAM.",
    (errno.E2BIG, None): "The command and its environment together are too long; shorten them.",
    (None, None): "Run the same command by hand to see what is wrong with it.",
}


ENDING_S = guard_process.GRACE_S + guard_process.GIVE_UP_S + 2.0
"""Time limit from stopping a trial to the guard's report of its end, with 2 s for a busy machine."""


class GuardLost(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Loss of the guard, whose orphans must be killed."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="started"):
    """Start of the trainer's program: exec has succeeded."""

    pid: int


class NotStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="failed"):
    """Failure to start the trial.

    Attributes:
        step: ``log`` (opening the log files), ``cwd``, ``exec``, or ``fork`` (of a zygote that is gone or must not
            fork).
        errno: None for an invalid argument, such as one with a NUL.
    """

    step: str
    errno: int | None
    error: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="exit"):
    """End of the trial: only the processes in `TrialExit.left_pids` are left."""

    exit: TrialExit


class SidecarAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="answered"):
    """Answer of a sidecar to its request; None if it has exited."""

    sidecar: str
    answer: dict[str, Any] | None


Message = Started | NotStarted | Ended | SidecarAnswer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Guard:
    """Handle of the guard process; no process of any trial is left after its ``with`` statement."""

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
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the guard, without waiting for it, unless it is running.

        Raises:
            TrialError: No process could be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # Isolated and without site: the user's environment cannot slow it down or break it.
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
                    f"the guard process could not be started: {error.strerror}",
                    remedy="Check the limits on processes and memory (ulimit -a), then start the search again.",
                ) from error
        ours.settimeout(5.0)  # the guard reads immediately unless it is stuck
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
            program: ``argv``, ``cwd`` and ``env``, whose ``PATH`` is searched.
            stdout: For the first and the last mebibyte, like `stderr`.
            deadline_s: Time on CLOCK_MONOTONIC at which the guard stops it.
            temporary: Deleted if the search is gone.
            zygote: Sidecar to fork the trial from, with the additional fields `fork` (zygote.py).

        Raises:
            GuardLost: As in all methods below.
        """
        how = {"sidecar": zygote, "request": {**program, **(fork or {})}} if zygote else program
        self._send(do="start", stdout=stdout, stderr=stderr, deadline_s=deadline_s, temporary=temporary, **how)

    def start_sidecar(
        self, sidecar: str, program: Mapping[str, Any], *, log: Path, request: Mapping[str, Any] | None = None
    ) -> None:
        """Start a process that runs next to the trials until `stop_sidecar` or the end of the guard.

        Args:
            program: As in `launch`.
            log: Existing file for its output.
            request: To a zygote; `receive` reports the answer. Without one, nothing is reported.
        """
        self._send(do="start_sidecar", sidecar=sidecar, **program, log=log, request=request)

    def stop_sidecar(self, sidecar: str) -> None:
        """Kill a sidecar without waiting for its end."""
        self._send(do="stop_sidecar", sidecar=sidecar)

    def stop(self, why: Stop) -> None:
        self._send(do="stop", why=why.value)

    def receive(self, timeout_s: float) -> Message | None:
        if self._channel is None:
            raise GuardLost("the guard was not started")
        while b"\n" not in self._received:
            if not select.select([self._channel], [], [], max(timeout_s, 0.0))[0]:
                return None
            try:
                data = self._channel.recv(1 << 16)
            except OSError as error:
                raise GuardLost(f"the guard cannot be reached: {error}") from error
            if not data:
                raise GuardLost("the guard exited")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return _decoder.decode(line)

    def close(self) -> None:
        self._hang_up()  # the lifeline: the guard stops all its processes, then exits
        process = self._process
        if process is not None:
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                _log.warning("the guard (process %d) did not exit within %.1f s; killing it", process.pid, ENDING_S)
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Kill a guard that does not respond; its orphans remain."""
        self._hang_up()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                process.wait(guard_process.GIVE_UP_S)
            except subprocess.TimeoutExpired:
                _log.warning("the guard (process %d) cannot be killed and remains", process.pid)

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
            raise GuardLost(f"the guard cannot be reached: {error}") from error


def _portable(value: Any) -> Any:
    """Encode the texts in a value for a process with another locale (``-I`` drops PYTHONUTF8)."""
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
        left: Not killed within 2 s, or not permitted.
    """

    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


def end_orphans(trials: Path, clock: Clock) -> OrphanCleanup:
    """Kill the processes of earlier trials of a study; needs the study's lock, and no running trial.

    They are this user's, have ``AUTOTUNE_TRIAL_ID`` and an ``AUTOTUNE_TRIAL_DIR`` with our marker in `trials`, and are
    not older than that folder. Processes that cleared their environment are not found.
    """
    inside = os.path.realpath(trials)
    for folder in os.scandir(inside) if os.path.isdir(inside) else ():
        if TrialFolder(Path(folder.path)).is_ours() and not os.path.lexists(os.path.join(folder, "over")):
            guard_process.stop_elsewhere(os.fsencode(folder.path))
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
        # Until none is found: a killed process may have forked meanwhile.
        if not left or clock.now_s() >= give_up_s:
            break
        clock.wait(0.02)
    cleanup = OrphanCleanup(killed=tuple(sorted(signalled - left)), left=tuple(sorted(left)))
    if signalled or left:
        _log.warning(
            "killed %d processes left by an earlier trial; could not kill: %s", len(cleanup.killed), cleanup.left
        )
    return cleanup


def _belongs(process: psutil.Process, inside: str, uid: int) -> bool:
    try:
        if process.uids().real != uid:
            return False
        environ = process.environ()  # a zombie has none
        folder = environ.get("AUTOTUNE_TRIAL_DIR")
        if not folder or not environ.get("AUTOTUNE_TRIAL_ID"):
            return False
        real = os.path.realpath(folder)
        if os.path.dirname(real) != inside:
            return False
        created_s = TrialFolder(Path(real)).created_s()
        # The start is relative to the boot time, which the kernel reports in whole seconds.
        return created_s is not None and process.create_time() >= created_s - 2.0
    except (psutil.Error, OSError, ValueError):  # ended meanwhile, or not readable; a NUL in a path
        return False


_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return the kernel's count of out-of-memory kills in this process's control group, else on the machine.

    In ``memory.events`` (v2) or ``memory.oom_control`` (v1; kernel Documentation/admin-guide); None if unknown.
    """
    names = ("memory.events", "memory.oom_control")
    counters = [folder / name for folder in cgroup_folders(root) for name in names]
    found = (_COUNT.search(text_of(counter) or "") for counter in (*counters, root / "proc/vmstat"))
    return next((int(count[1]) for count in found if count), None)
