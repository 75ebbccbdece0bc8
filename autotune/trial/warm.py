"""Runner that forks trials from a zygote, a warm interpreter: imports that every trial needs are made once.

Importing a framework takes seconds, while a trial is to last only a few. Steps of one trial, see
`ZygoteRunner._make`: check that a fork can carry out the command; start a zygote for it if there is none; fork the
trial and watch it like any other; if anything is unusual about that, make the trial in a fresh process instead.

The first trial is forked from a bare interpreter, which is as good as a fresh process, and its imports are recorded.
Until one fork of a kind has worked, a trial that crashes in one is made again by a fresh process: if that works, there
are no more forks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import signal
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.clock import Clock
from autotune.files import read_beginning
from autotune.records import Stop, TraineeEvent
from autotune.trial.folder import TEMPORARY_VARIABLE, TrialFolder
from autotune.trial.guard import Ended, Fork, Guard, NotStarted, Program, Warmed, portable
from autotune.trial.launch import GPU_MEMORY, HOST_MEMORY, LOOK_S, LaunchRequest, ProcessRunner, Watch, read_rest
from autotune.trial.python_command import PythonCommand, python_command
from autotune.trial.step_files import StepReader
from autotune.trial.zygote_imports import LATE_VARIABLES

MOST_ZYGOTES = 2
"""Most zygotes at the same time: with TensorFlow each holds about 550 MiB."""

SILENCE_S = 8.0
"""Time without a sign of life (output, CPU time) after which a fork that has not reported a step is given up."""

_MOST_ATTEMPTS = 3  # to make a zygote, before that has failed: the second finds out what cannot be imported beforehand
_MOST_NAMED = 4  # modules in a sentence
_IMPORTS_BUSY_S = 20.0  # ... and this much more, on a busy machine
_ENDED = "it has ended"
_MODULE = re.compile(r"\w+(\.\w+)*")
_log = logging.getLogger(__name__)
_Key = tuple[str, tuple[str, ...], str, frozenset[tuple[str, str]]]


@dataclass(kw_only=True)
class _Interpreter:
    """State of one interpreter, directory and environment: the imports of its trials, and the zygote they fork from.

    Attributes:
        zygote: Its name; None if there is none.
        guard: Process id of the guard that it is below of: it does not survive its guard.
        imports: Imports of the first trial before its first step, in order; None before such a trial.
        imports_s: Time from the start of the first trial until these were done.
        silence_s: Longest time that a fork may go without a sign of life before its first step.
        left_out: Modules that must not be imported before a fork.
        has_worked: Whether a trial has made a step, or ended well, with imports made before its fork.
        crash: Last words of a trial that crashed in a fork, and is to be made by a fresh process; None else.
    """

    zygote: str | None = None
    guard: int | None = None
    imports: list[dict[str, Any]] | None = None
    imports_s: float = 0.0
    silence_s: float = math.inf  # of the first trial, which has nothing imported that could hold it up
    left_out: set[str] = field(default_factory=set)
    has_worked: bool = False
    crash: str | None = None


class ZygoteRunner(ProcessRunner):
    """Runner that forks trials of Python scripts and modules from a zygote; makes others like `ProcessRunner`.

    Args:
        guard: Owned by the caller, who closes it; the zygotes end with it.

    Attributes:
        remarks: Sentences for the user about trials that did not start warm, each once; the caller takes them off.
        warm_starts: Number of trials that were forked from a zygote with imports.
        fallbacks: Number of forks that were given up, their trials being made by fresh processes.
    """

    def __init__(self, guard: Guard, clock: Clock) -> None:
        super().__init__(guard, clock)
        self._interpreters: OrderedDict[_Key, _Interpreter] = OrderedDict()  # the latest used last
        self._zygotes_begun = 0
        self._failures = 0
        self._unfit_in_a_row = 0
        self._is_off = False
        self.remarks: deque[str] = deque()
        self._said: set[str] = set()
        self.warm_starts = 0
        self.fallbacks = 0

    def _make(self, request: LaunchRequest) -> Ended:
        plan = request.plan
        command = python_command(plan.argv, cwd=plan.cwd, search_path=request.env.get("PATH"))
        if command is not None and not self._is_off:
            interpreter = self._interpreter(command, request)
            ended = self._warm_up(interpreter, command, request) or self._make_fork(interpreter, command, request)
            if ended is not None:
                return ended
            if interpreter.crash is not None:
                return self._make_again(interpreter, request)
        return super()._make(request)

    def _make_again(self, interpreter: _Interpreter, request: LaunchRequest) -> Ended:
        """Make a trial that crashed in a fork by a fresh process: if it works there, the fork was to blame."""
        crash, interpreter.crash = interpreter.crash, None
        watch = request.watch
        request.watch = cold = Liveness(watch, request.folder, self._clock, limit_s=math.inf)
        ended = super()._make(request)
        read_rest(request)
        request.watch = watch
        cold.let_go()
        if cold.first_step_s is not None or ended.status == 0:
            self.fallbacks += 1
            self._turn_off(interpreter, f"a trial failed when forked ({crash}), and worked in a fresh process")
        return ended

    def _interpreter(self, command: PythonCommand, request: LaunchRequest) -> _Interpreter:
        # Whatever an import may read.
        own = str(request.folder.path)  # another one in each trial, and the same in it
        environ = frozenset(
            (name, value.replace(own, "")) for name, value in request.env.items() if name not in LATE_VARIABLES
        )
        key = (command.interpreter, command.options, str(request.plan.cwd), environ)
        interpreter = self._interpreters.setdefault(key, _Interpreter())
        self._interpreters.move_to_end(key)
        return interpreter

    # The zygote.

    def _warm_up(self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest) -> Ended | None:
        self._guard.start()
        if interpreter.zygote is not None and interpreter.guard == self._guard.pid:
            return None
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            self._make_room()
            # importing beforehand may take this many times as long as in the trial where it was noted ...
            limit_s = self._clock.now_s() + _IMPORTS_BUSY_S + 3.0 * interpreter.imports_s
            name = self._start_zygote(interpreter, command, request, is_tried=attempt > 1)
            answer = self._warmed(name, request, limit_s)
            if isinstance(answer, Stop):
                self._guard.cool(name)
                return _stopped_before_start(answer, self._clock.now_s())
            if "took_s" in answer:
                interpreter.zygote, interpreter.guard = name, self._guard.pid
                self._leave_out(interpreter, answer["left_out"])
                _log.info("zygote %s is warm after %.2f s", name, answer["took_s"])
                return None
            self._guard.cool(name)
            if attempt > 1 and "not_forkable" in answer:  # although it did no harm when it was tried
                interpreter.left_out.add(answer["not_forkable"])
            is_import = "not_forkable" in answer or answer["error"] == _ENDED
            if attempt == _MOST_ATTEMPTS or not is_import or not interpreter.imports:
                why = answer.get("error") or f"{answer['not_forkable']} cannot be imported beforehand"
                self._failed(interpreter, f"the warm interpreter could not be made ({why})")
                return None
        return None

    def _start_zygote(
        self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest, *, is_tried: bool
    ) -> str:
        self._zygotes_begun += 1
        name = str(self._zygotes_begun)
        # It is no trial, but a later search has to find it if search and guard are killed at once.
        env = {**request.env, "AUTOTUNE_TRIAL_ID": f"{request.plan.trial_id}/zygote"}
        temporary = None
        if TEMPORARY_VARIABLE in request.plan.env:
            # What an import makes of the place for temporary files has to hold for all trials.
            env[TEMPORARY_VARIABLE] = temporary = _shared_temporary_folder()
        self._guard.warm(
            name,
            Program(argv=(command.interpreter, *command.options), cwd=request.plan.cwd, env=env),
            log=request.folder.path / "zygote.log",
            request={
                "imports": interpreter.imports or [],
                "left_out": sorted(interpreter.left_out),
                "is_tried": is_tried,
                "trial_dir": portable(request.folder.path),
                "temporary": None if temporary is None else portable(temporary),
                "env": {portable(variable): portable(value) for variable, value in env.items()},
            },
        )
        return name

    def _make_room(self) -> None:
        warm = [other for other in self._interpreters.values() if other.zygote and other.guard == self._guard.pid]
        for other in warm[: len(warm) - MOST_ZYGOTES + 1]:
            self._cool(other)

    def _cool(self, interpreter: _Interpreter) -> None:
        if interpreter.zygote is not None:
            self._guard.cool(interpreter.zygote)
            interpreter.zygote = None

    def _warmed(self, name: str, request: LaunchRequest, limit_s: float) -> Mapping[str, Any] | Stop:
        """Wait until a zygote has imported everything, while watching the trial that waits for it."""
        while True:
            message = self._guard.receive(LOOK_S)
            if isinstance(message, Warmed) and message.zygote == name:
                return message.answer or {"error": _ENDED}
            stop = request.watch(())
            if stop is Stop.NEVER_STARTED:  # neither has the time that it may take to start
                stop = None
            now_s = self._clock.now_s()
            if stop is None and now_s >= request.deadline_s:
                stop = Stop.DEADLINE
            if stop is not None:
                return stop
            if now_s >= limit_s:
                return {"error": "its imports took too long"}

    def _leave_out(self, interpreter: _Interpreter, found: Sequence[Mapping[str, Any]]) -> None:
        """Note the modules that could not be imported beforehand, and say so in one sentence for each reason."""
        interpreter.left_out |= {each["module"] for each in found}
        for why in dict.fromkeys(each["why"] for each in found):
            alike = [each for each in found if each["why"] == why]
            what = _listed([each["module"] for each in alike])
            took_s = sum(each["took_s"] for each in alike)
            them = "it" if len(alike) == 1 else "them"
            self._remark(f"importing {what} {why}, so each trial imports {them} anew (about {took_s:.1f} s a trial)")

    # A trial that is forked from it.

    def _make_fork(self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest) -> Ended | None:
        if interpreter.zygote is None:
            return None
        folder, is_first = request.folder, interpreter.imports is None
        record, unfit = folder.path / "imports.jsonl", folder.path / "unfit.json"
        temporary = request.plan.env.get(TEMPORARY_VARIABLE)
        contents = folder.contents()
        watch = request.watch
        request.watch = liveness = Liveness(watch, folder, self._clock, limit_s=interpreter.silence_s)
        request.on_start = liveness.began
        ended = self._follow(
            request,
            Fork(
                zygote=interpreter.zygote,
                request={
                    "script": None if command.script is None else portable(command.script),
                    "module": None if command.module is None else portable(command.module),
                    "arguments": [portable(word) for word in command.arguments],
                    "record": portable(record) if is_first else None,
                    "unfit": portable(unfit),
                    "temporary": None if temporary is None else portable(temporary),
                },
            ),
        )
        read_rest(request)  # a trial that has trained is not to blame its fork for what comes then
        request.watch = watch
        if isinstance(ended, NotStarted) and ended.step in ("log", "cwd"):
            return None  # so will a fresh process find, which is asked to say it as always
        if isinstance(ended, NotStarted):
            self._failed(interpreter, f"a trial could not be forked ({ended.error})")
        elif liveness.is_lost:
            silence = f"a trial gave no sign of life for {interpreter.silence_s:.0f} s after its fork"
            self._failed(interpreter, f"{silence}, as where a library that it imports does not survive one")
        elif liveness.first_step_s is None and os.path.lexists(unfit):  # a trial that gives up has made no step
            self._was_unfit(interpreter, unfit)
        elif (
            liveness.first_step_s is None
            and (is_first or not interpreter.has_worked)
            and may_be_the_forks(ended, folder.stderr_tail())
        ):
            interpreter.crash = crash_in_words(ended, folder.stderr_tail())
        else:
            self._unfit_in_a_row = 0
            liveness.let_go()
            if not is_first:
                self.warm_starts += 1
                interpreter.has_worked |= liveness.first_step_s is not None or ended.status == 0
            elif liveness.first_step_s is not None or ended.why is None:
                self._learn(interpreter, record, liveness, ended.started_s)
            with contextlib.suppress(OSError):  # the trainer may have put a folder there
                record.unlink(missing_ok=True)
            return ended
        folder.restore(contents)
        request.steps = StepReader(folder.path)
        return None

    def _learn(self, interpreter: _Interpreter, record: Path, liveness: Liveness, started_s: float) -> None:
        interpreter.imports = []
        for t_s, imported in _read_record(record):
            if liveness.first_step_s is None or t_s < liveness.first_step_s:
                interpreter.imports.append(imported)
                interpreter.imports_s = t_s - started_s
        # ... or this many times as long as the first trial was silent, if that is more
        interpreter.silence_s = max(SILENCE_S, 2.0 * liveness.longest_silence_s)
        self._cool(interpreter)  # the bare one

    # What went wrong.

    def _failed(self, interpreter: _Interpreter, what: str) -> None:
        self.fallbacks += 1
        self._failures += 1
        self._cool(interpreter)
        if self._failures >= 2:  # of forks, before there are no more
            self._turn_off(interpreter, what)
        else:
            self._remark(f"{what}; a fresh process made it instead")

    def _was_unfit(self, interpreter: _Interpreter, unfit: Path) -> None:
        self.fallbacks += 1
        self._unfit_in_a_row += 1
        what = _unfit_because(unfit)
        if self._unfit_in_a_row >= 3:  # trials in a row that were not like the first, before there are no more forks
            self._turn_off(interpreter, what)
        else:
            self._remark(f"{what}; a fresh process made the trial instead")

    def _turn_off(self, interpreter: _Interpreter, why: str) -> None:
        self._is_off = True
        for other in self._interpreters.values():
            self._cool(other)
        cost = f" (about {interpreter.imports_s:.1f} s more a trial)" if interpreter.imports_s else ""
        self._remark(f"warm starts are off: {why}; from now on each trial starts a fresh interpreter{cost}")

    def _remark(self, sentence: str) -> None:
        _log.info("%s", sentence)
        if sentence not in self._said:
            self._said.add(sentence)
            self.remarks.append(sentence)


def _listed(names: Sequence[str]) -> str:
    """Write a few names with commas, and how many more there are."""
    more = len(names) - _MOST_NAMED
    *all_but_last, last = [*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names
    return f"{', '.join(all_but_last)} and {last}" if all_but_last else last


def _shared_temporary_folder() -> str:
    """Return the system's folder for temporary files with two slashes in front, POSIX's other name for it on Linux.

    By this spelling, which `os.path.abspath` keeps, a variable set to something below it by an import is told from one
    that has named that folder all along: the former follows the trial's own folder, the latter does not.
    """
    return "//" + os.path.abspath(tempfile.gettempdir()).lstrip("/")


def _stopped_before_start(why: Stop, now_s: float) -> Ended:
    return Ended(
        status=None,
        why=why,
        started_s=now_s,
        ended_s=now_s,
        cpu_s=0.0,
        peak_memory_bytes=0,
        killed=0,
        left=(),
        waited_for="the warm interpreter was still making its imports",
    )


def _read_record(path: Path) -> list[tuple[float, dict[str, Any]]]:
    """Parse a trial's record of imports; the trainer may have written anything into that file."""
    lines = read_beginning(path, 8 << 20).splitlines()
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    for line in lines:
        try:
            fields = json.loads(line)
            t_s, module, environ = float(fields["t_s"]), str(fields["module"]), dict(fields["environ"])
            place = None if fields["place"] is None else str(fields["place"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if _MODULE.fullmatch(module) and module.partition(".")[0] not in sys.stdlib_module_names:
            found.setdefault(module, (t_s, {"module": module, "environ": environ, "place": place}))
    return list(found.values())


def _unfit_because(path: Path) -> str:
    try:
        fields = json.loads(read_beginning(path, 1 << 16))
        package, kind, name = str(fields["package"]), str(fields["kind"]), str(fields["name"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "a trial was not like the first one"
    if kind == "copy":
        return f"the trainer loads {name} without importing it"
    if kind == "variable":
        return f"when the trainer imports {package}, {name} is not set as it was in the first trial"
    return f"the trainer has a module {name} of its own in front of the installed one"


# Crash of a trial that was forked from a zygote: whether the fork, and not the trainer, may be to blame.


_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the first also for want of memory


def may_be_the_forks(ended: Ended, stderr_tail: str) -> bool:
    """Return whether a trial that made no step failed in a way that a fresh interpreter may not.

    Returns:
        False for a trial that was stopped, ended well, was killed from outside, or ran out of memory.
    """
    if ended.why is not None or ended.status in (None, 0):
        return False
    # a shell passes the signal that ended its command on as an exit status, with this added
    if any(ended.status in (-number, 128 + number) for number in _SENT_BY_OTHERS):
        return False
    return not HOST_MEMORY.search(stderr_tail) and not GPU_MEMORY.search(stderr_tail)


def crash_in_words(ended: Ended, stderr_tail: str) -> str:
    """Return the last line of what a crashed trial said, printable and short; its exit status if it said nothing."""
    line = next((line.strip() for line in reversed(stderr_tail.splitlines()) if line.strip()), "")
    line = "".join(letter for letter in line if letter.isprintable())[:120]
    return line or f"exit status {ended.status}"


_AT_ONCE = frozenset({"launched", "start", "reporter", "unseen"})  # true also if another process makes the trial


class Liveness:
    """Wrapper around a trial's watch that checks for signs of life until the first step.

    A process that was forked while a library held a lock may wait for that lock for ever: it prints nothing and uses no
    CPU time at all, while compiling and tracing, however slow, use it all the time. Notes and pauses before the first
    step are held back, so that the watch does not see a trial that is restarted.

    Args:
        limit_s: Longest time without a sign of life.

    Attributes:
        first_step_s: Time at which the first step ended; None before it.
        is_lost: Whether the trial was stopped because it gave no sign of life.
        longest_silence_s: Longest time without a sign of life before its first step.
    """

    def __init__(self, watch: Watch, folder: TrialFolder, clock: Clock, *, limit_s: float) -> None:
        self._watch = watch
        self._folder = folder
        self._clock = clock
        self._limit_s = limit_s
        self._held: list[TraineeEvent] = []
        self._signs: tuple[float, int] | None = None
        self._alive_s = self._looked_s = clock.now_s()
        self._pid: int | None = None
        self.first_step_s: float | None = None
        self.is_lost = False
        self.longest_silence_s = 0.0

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        """See `Runner.run`; a trial without a sign of life is stopped as one that never started."""
        if self.first_step_s is not None:
            return self._watch(events)
        at_once = [event for event in events if event.kind in _AT_ONCE]
        self._held += [event for event in events if event.kind not in _AT_ONCE]
        self.first_step_s = next((event.t_s for event in events if event.kind == "step"), None)
        if self.first_step_s is not None:
            return self._watch(at_once) or self.let_go()
        stop = self._watch(at_once)
        if stop is None and self._is_silent():
            self.is_lost = True
            return Stop.NEVER_STARTED
        return stop

    def began(self, pid: int) -> None:
        """Set the trial's main process."""
        self._pid = pid

    def let_go(self) -> Stop | None:
        """Pass on the events that were held back."""
        held, self._held = self._held, []
        return self._watch(held) if held else None

    def _is_silent(self) -> bool:
        now_s = self._clock.now_s()
        if now_s - self._looked_s < 0.5:  # between looks at all processes of the trial
            return False
        self._looked_s = now_s
        signs = (_cpu_s(self._pid), _size(self._folder.stdout) + _size(self._folder.stderr))
        if signs != self._signs:
            self._signs = signs
            self._alive_s = now_s
        self.longest_silence_s = max(self.longest_silence_s, now_s - self._alive_s)
        return now_s - self._alive_s >= self._limit_s


def _cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process and its descendants; any change counts, even that one of them has ended."""
    if pid is None:
        return 0.0
    total_s = 0.0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            times = member.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    except psutil.Error:  # it ended while we looked; the guard reports its end
        return -1.0
    return total_s


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
