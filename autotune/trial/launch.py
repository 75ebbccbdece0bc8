"""Runners: make a trial from its plan, and report its exit when the last of its processes is gone."""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from autotune.clock import Clock
from autotune.errors import AutotuneError, CommandError, TrialError
from autotune.process import inherited_environment
from autotune.records import Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial.folder import TEMPORARY_VARIABLE, TrialFolder, make_temporary_folder, temporary_folder
from autotune.trial.guard import ENDING_S, Ended, Fork, Guard, GuardLost, NotStarted, Program, Started, end_orphans
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


class LaunchRequest:
    """Request to launch one trial.

    Attributes:
        env: The whole environment of the trial.
        steps: Reader of the events that the trial reports.
    """

    def __init__(self, plan: TrialPlan, folder: TrialFolder, watch: Watch, deadline_s: float) -> None:
        self.plan = replace(plan, argv=tuple(_with_observer(plan.argv, str(folder.inject))))
        self.folder = folder
        self.watch = watch
        self.deadline_s = deadline_s
        self.env = {
            **inherited_environment(),
            **plan.env,
            "AUTOTUNE_TRIAL_ID": plan.trial_id,
            "AUTOTUNE_TRIAL_DIR": str(folder.path),
        }
        # In front of the user's own path; an empty entry would mean the working directory.
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder.inject), self.env.get("PYTHONPATH"))))
        self.steps = StepReader(folder.path)


def _with_observer(argv: Sequence[str], inject: str) -> Iterator[str]:
    """Yield a command; where it sets PYTHONPATH itself, as ``env PYTHONPATH=src python ...``, the observer is in it."""
    is_setting = bool(argv) and os.path.basename(argv[0]) == "env"
    for place, word in enumerate(argv):
        is_setting = is_setting and (place == 0 or word.startswith("-") or "=" in word)
        name, equals, value = word.partition("=")
        yield f"{name}={inject}{os.pathsep}{value}" if is_setting and equals and name == "PYTHONPATH" else word


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
        if plan.env.get(TEMPORARY_VARIABLE) == str(temporary_folder(folder.path)):
            make_temporary_folder(folder.path)
        request = LaunchRequest(plan, folder, watch, deadline_s)
        kills_before = oom_kills()
        try:
            ended = self._make(request)
        except GuardLost as error:
            _log.warning("%s; ending what it guarded", error)
            self._guard.kill()
            left = end_orphans(folder.path.parent, self._clock).left
            trial_exit = TrialExit(
                started_s=now_s,
                ended_s=self._clock.now_s(),
                exit_code=None,
                stop=Stop.GUARD_LOST,
                stderr_tail=folder.stderr_tail(),
                left_pids=left,
            )
        except BaseException:
            self._guard.close()  # which ends the trial and waits for that
            raise
        else:
            kills = oom_kills()
            trial_exit = TrialExit(
                started_s=ended.started_s,
                ended_s=ended.ended_s,
                exit_code=ended.status,
                stop=ended.why,
                stderr_tail=folder.stderr_tail(),
                cpu_s=ended.cpu_s,
                peak_memory_bytes=ended.peak_memory_bytes,
                oom_killed=None if kills is None or kills_before is None else kills > kills_before,
                left_pids=tuple(ended.left),
                waited_for=ended.waited_for,
            )
        if trial_exit.left_pids:
            _log.warning("processes that cannot be killed are left behind: %s", trial_exit.left_pids)
        read_rest(request)
        return trial_exit

    def _make(self, request: LaunchRequest) -> Ended:
        self._guard.start()
        ended = self._follow(request, None)
        if isinstance(ended, NotStarted):
            raise _not_started(request.plan, ended)
        return ended

    def _follow(self, request: LaunchRequest, fork: Fork | None) -> Ended | NotStarted:
        self._guard.launch(
            Program(argv=request.plan.argv, cwd=request.plan.cwd, env=request.env),
            stdout=request.folder.stdout,
            stderr=request.folder.stderr,
            deadline_s=request.deadline_s,
            fork=fork,
        )
        over_s = request.deadline_s + ENDING_S  # the guard stops the trial by itself, and says so before then
        has_started = stopping = False
        while True:
            message = self._guard.receive(LOOK_S)
            if isinstance(message, Ended):
                if message.why is Stop.GUARD_LOST:  # somebody told the guard to end, and it is about to
                    self._guard.close()
                return message
            if isinstance(message, NotStarted):
                return message
            events: list[TraineeEvent] = []
            if isinstance(message, Started):
                has_started = True
                events.append(TraineeEvent(kind="launched", t_s=self._clock.now_s(), stream=f"{message.pid}.0"))
            if not stopping:
                if has_started:  # else what it reports might come before the word that it was launched
                    events += request.steps.poll()
                stop = request.watch(events)
                if stop is not None:
                    stopping = True
                    self._guard.stop(stop)
                    over_s = min(over_s, self._clock.now_s() + ENDING_S)
            if self._clock.now_s() > over_s:
                raise GuardLost(f"no word from the guard (process {self._guard.pid}) for too long")


def read_rest(request: LaunchRequest) -> None:
    """Pass on what the trial reported in its last moments, now that none of its processes is left."""
    for _ in range(16):  # of about 1 MiB each, for events since the last look
        events = request.steps.poll()
        if not events:
            break
        request.watch(events)


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


_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Count the kills by the out-of-memory killer so far, in the smallest group around this process that is readable.

    That is the count of its control group (v2: ``memory.events``, v1: ``memory.oom_control``, both in the
    kernel's Documentation/admin-guide), which processes started by it share, else that of the whole machine.

    Args:
        proc: Mount point of procfs.
        cgroups: Mount point of the control groups.

    Returns:
        A number that only ever grows; None if none can be read.
    """
    for counter in (*_group_counters(proc, cgroups), proc / "vmstat"):
        try:
            found = _COUNT.search(counter.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return int(found[1])
    return None


def _group_counters(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    counters: list[Path] = []
    for line in lines:
        # "0::/path" is version 2, "4:memory:/path" version 1; see cgroups(7).
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            folder, name = cgroups, "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = cgroups / "memory", "memory.oom_control"
        else:
            continue
        # In a container the path may be the host's, while what is mounted is the container's own group.
        counters += [folder / group.lstrip("/") / name, folder / name]
    return counters
