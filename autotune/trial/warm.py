"""Runner that forks trials from a zygote: an interpreter with the trainer's imports done, which take seconds.

States of an interpreter (command, directory and environment):

* `COLD`: imports unknown. The next trial runs in a fresh process, which records them.
* `LEARNT`: imports known. The next trial starts a zygote and waits for it. A module that must not be imported before a
  fork (it starts threads, opens the accelerator, or needs the trainer's modules) ends that zygote; the next one stops
  before it.
* `WARM`: trials are forks, with any arguments. One that differs from the first is rerun in a fresh process.
* `OFF`: nothing to import, or warm starts are off for the rest of the search: a zygote cannot start, a fork shows no
  activity or fails where a fresh process works, or three trials differ from the first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.events import OnRemark, no_remark
from autotune.files import create_private, read_beginning
from autotune.measure.host import descendants, process_stat
from autotune.records import Stop, TraineeEvent, TrialExit
from autotune.trial import zygote
from autotune.trial.error_text import complaint_of_memory, last_error, one_line
from autotune.trial.folders import TEMPORARY_VARIABLE
from autotune.trial.guard_process import place_of_ray
from autotune.trial.launch import POLL_S, Guard, LaunchRequest, NotStarted, ProcessRunner, SidecarAnswer
from autotune.trial.python_command import PythonCommand, python_command
from autotune.trial.step_files import StepReader

MOST_ZYGOTES = 2
"""Most zygotes at a time: pairs that confirm an answer alternate. Each holds about 550 MiB with TensorFlow."""

SILENCE_S = 8.0
"""Time without output or CPU time after which a fork without a step is given up."""

LEAST_IMPORT_S = 0.05
"""Least import time that is worth a zygote."""

_log = logging.getLogger(__name__)


class InterpreterState(Enum):
    """State of an interpreter, described above."""

    COLD = auto()
    LEARNT = auto()
    WARM = auto()
    OFF = auto()


@dataclass(kw_only=True)
class _Interpreter:
    """State of one interpreter.

    Attributes:
        zygote: Name of its latest zygote: the guard's process id, and a number.
        imports: Of the first trial before its first step, in order.
        imports_s: Time from the start of that trial until they were done.
        silence_s: Longest silence of a fork before its first step.
    """

    state: InterpreterState = InterpreterState.COLD
    zygote: str = ""
    imports: list[dict[str, Any]] = field(default_factory=list)
    imports_s: float = 0.0
    silence_s: float = SILENCE_S


class ZygoteRunner(ProcessRunner):
    """Runner that forks trials of Python scripts and modules from a zygote; runs others like `ProcessRunner`.

    Args:
        remark: Called with sentences for the user on cold starts, once with each.

    Attributes:
        warm_starts: Number of forked trials.
        fallbacks: Number of forks replaced by fresh processes.
    """

    def __init__(self, guard: Guard, clock: Clock, remark: OnRemark = no_remark) -> None:
        super().__init__(guard, clock)
        self._on_remark = remark
        self._interpreters: OrderedDict[object, _Interpreter] = OrderedDict()  # the latest used last
        self._zygotes_begun = 0
        self._unfit = 0
        self._state_of_new = InterpreterState.COLD
        self._has_worked = False  # a fork has made a step, or succeeded
        self._remarked: set[str] = set()
        self.warm_starts = 0
        self.fallbacks = 0

    def _run_trial(self, request: LaunchRequest) -> TrialExit:
        plan = request.plan
        command = python_command(plan.argv, cwd=plan.cwd, search_path=request.env.get("PATH"))
        is_job = place_of_ray([os.fsencode(word) for word in plan.argv]) is not None  # a second start submits it twice
        if command is None or command.isolating_options or is_job:
            return super()._run_trial(request)
        interpreter = self._interpreter(command, request)
        if interpreter.state is InterpreterState.OFF:
            return super()._run_trial(request)
        if interpreter.state is InterpreterState.COLD:
            return self._record(interpreter, request)
        self._guard.start()
        if interpreter.state is InterpreterState.WARM and not interpreter.zygote.startswith(f"{self._guard.pid}."):
            interpreter.state = InterpreterState.LEARNT  # it ended with its guard
        ended = None
        if interpreter.state is InterpreterState.LEARNT:
            ended = self._warm_up(interpreter, command, request)
        if interpreter.state is InterpreterState.WARM:
            ended = self._fork(interpreter, command, request)
        return ended or super()._run_trial(request)

    def _interpreter(self, command: PythonCommand, request: LaunchRequest) -> _Interpreter:
        # Everything that an import may read.
        own = str(request.folder.path)  # differs between trials, with the same contents
        environ = {name: value.replace(own, "") for name, value in request.env.items()}
        key = (
            _without_arguments(command, request),
            request.plan.cwd,
            frozenset(environ.items() - {(name, environ.get(name)) for name in zygote.LATE_VARIABLES}),
        )
        interpreter = self._interpreters.setdefault(key, _Interpreter(state=self._state_of_new))
        self._interpreters.move_to_end(key)
        return interpreter

    def _record(self, interpreter: _Interpreter, request: LaunchRequest) -> TrialExit:
        request.env["AUTOTUNE_WARM"] = f"{zygote.__file__}:"
        liveness = Liveness(request, self._clock, limit_s=math.inf)
        ended = super()._run_trial(request)
        request.read_rest()
        record = request.folder.path / "imports.jsonl"
        made = _read_record(record, request)
        record.unlink(missing_ok=True)
        if liveness.first_step_s is None and ended.stop is not None:
            return ended  # stopped before all its imports
        until_s = liveness.first_step_s or ended.ended_s
        made = [one for one in made if one[0] < until_s]
        ends_s = [*(t_s for t_s, _ in made[1:]), until_s]
        heavy = [place for place, (t_s, _) in enumerate(made) if ends_s[place] - t_s >= LEAST_IMPORT_S]
        # All up to the last slow one: each import needs those before it.
        interpreter.imports = [imported for _, imported in made[: heavy[-1] + 1]] if heavy else []
        interpreter.imports_s = ends_s[heavy[-1]] - ended.started_s if heavy else 0.0
        # twice the longest silence of the first trial, if that is more
        interpreter.silence_s = max(SILENCE_S, 2.0 * liveness.longest_silence_s)
        interpreter.state = InterpreterState.LEARNT if heavy else InterpreterState.OFF
        return ended

    # The zygote.

    def _warm_up(self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest) -> TrialExit | None:
        """Start the zygote; return the end of the waiting trial if that is stopped meanwhile."""
        while interpreter.state is InterpreterState.LEARNT:
            warm = [other for other in self._interpreters.values() if other.state is InterpreterState.WARM]
            for other in warm[: len(warm) - MOST_ZYGOTES + 1]:
                self._stop_zygote(other, InterpreterState.LEARNT)
            self._start_zygote(interpreter, command, request)
            answer = self._answer(interpreter, request)
            if isinstance(answer, Mapping) and "took_s" in answer:
                interpreter.state = InterpreterState.WARM
                _log.info("zygote %s is warm after %.2f s", interpreter.zygote, answer["took_s"])
                return None
            self._stop_zygote(interpreter, InterpreterState.LEARNT)
            if isinstance(answer, Stop):
                now_s = self._clock.now_s()
                why = "the warm interpreter was still importing"
                return TrialExit(exit_code=None, stop=answer, started_s=now_s, ended_s=now_s, waited_for=why)
            if "module" in answer:
                self._shorten(interpreter, answer["module"], answer["why"])
            else:
                self._turn_off(f"the warm interpreter could not be started ({answer['error']})")
        return None

    def _shorten(self, interpreter: _Interpreter, module: str, why: str) -> None:
        names = [imported["module"] for imported in interpreter.imports]
        del interpreter.imports[names.index(module) :]
        more = "" if module == names[-1] else f" and the modules after {module}"
        self._remark(f"importing {module} {why}, so each trial imports it{more} separately")
        if not interpreter.imports:
            interpreter.state = InterpreterState.OFF

    def _start_zygote(self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest) -> None:
        self._zygotes_begun += 1
        interpreter.zygote = f"{self._guard.pid}.{self._zygotes_begun}"
        # Not a trial, but a later search has to find it if search and guard are killed together.
        env = {**request.env, "AUTOTUNE_TRIAL_ID": f"{request.plan.trial_id}/zygote"}
        temporary = None
        if TEMPORARY_VARIABLE in request.plan.env:
            # Imports may derive values from the temporary folder that hold for all trials: it is the system's here.
            # The two leading slashes, equivalent on Linux and kept by `os.path.abspath`, distinguish variables that
            # an import sets to a path below it from those that held such a path before.
            temporary = "//" + os.path.abspath(tempfile.gettempdir()).lstrip("/")
            env[TEMPORARY_VARIABLE] = temporary
        log = request.folder.path / "zygote.log"
        create_private(log)
        self._guard.start_sidecar(
            interpreter.zygote,
            {
                "argv": _without_arguments(command, request),
                "cwd": request.plan.cwd,
                "env": {**env, "AUTOTUNE_WARM": f"{zygote.__file__}:3"},
            },
            log=log,
            request={
                "imports": interpreter.imports,
                "folder": request.plan.cwd
                if command.script is None
                else os.path.dirname(os.path.realpath(request.plan.cwd / command.script)),
                "trial_dir": request.folder.path,
                "temporary": temporary,
                "env": env,
            },
        )

    def _answer(self, interpreter: _Interpreter, request: LaunchRequest) -> Mapping[str, Any] | Stop:
        # imports may take three times as long as in the recorded trial, plus 20 s on a busy machine
        limit_s = self._clock.now_s() + 20.0 + 3.0 * interpreter.imports_s
        while True:
            message = self._guard.receive(POLL_S)
            if isinstance(message, SidecarAnswer) and message.sidecar == interpreter.zygote:
                return message.answer or {"error": "it exited"}
            stop = request.watch(())
            now_s = self._clock.now_s()
            if stop not in (None, Stop.NEVER_STARTED):  # the trial's start timeout does not count yet
                return stop
            if now_s >= request.deadline_s:
                return Stop.DEADLINE
            if now_s >= limit_s:
                return {"error": "its imports took too long"}

    def _stop_zygote(self, interpreter: _Interpreter, state: InterpreterState) -> None:
        self._guard.stop_sidecar(interpreter.zygote)  # it may be gone already
        interpreter.state = state

    # Forked trials.

    def _fork(self, interpreter: _Interpreter, command: PythonCommand, request: LaunchRequest) -> TrialExit | None:
        """Fork a trial; return None if a fresh process has to run it."""
        folder, watch = request.folder, request.watch
        contents, unfit = folder.contents(), folder.path / "unfit.txt"
        liveness = Liveness(request, self._clock, limit_s=interpreter.silence_s)
        temporary = request.plan.env.get(TEMPORARY_VARIABLE)
        fork = {"arguments": command.arguments, "unfit": unfit, "temporary": temporary}
        ended = self._follow(request, zygote=interpreter.zygote, fork=fork)
        request.read_rest()  # failures after a step are not the fork's
        request.watch = watch
        if isinstance(ended, NotStarted) and ended.step in ("log", "cwd"):
            return None  # a fresh process reports the same error, in the usual way
        if isinstance(ended, NotStarted):
            self._fall_back(f"a trial could not be forked ({ended.error})")
        elif liveness.is_lost:
            silence = f"a trial showed no activity for {interpreter.silence_s:.0f} s after its fork"
            self._fall_back(f"{silence}, as if a library that it imports does not survive a fork")
        elif liveness.first_step_s is None and unfit.exists():  # a trial that gives up has made no step
            why = one_line(read_beginning(unfit, 1 << 12).decode("utf-8", "replace")) or "a trial was unlike the first"
            self._unfit += 1
            if self._unfit >= 3:
                self._fall_back(why)
            else:
                self.fallbacks += 1
                self._remark(f"{why}; a fresh process ran the trial instead")
        elif not (self._has_worked or liveness.first_step_s) and _may_be_due_to_fork(ended, folder.stderr_tail()):
            said = last_error(folder.stderr_tail()) or f"exit status {ended.exit_code}"
            self._reset(request, contents)
            again = Liveness(request, self._clock, limit_s=math.inf)
            ended = super()._run_trial(request)
            request.read_rest()
            if again.first_step_s is not None or ended.exit_code == 0:
                self._fall_back(f"a trial failed when forked ({one_line(said)}) and worked in a fresh process")
            return ended
        else:
            self.warm_starts += 1
            self._has_worked |= liveness.first_step_s is not None or ended.exit_code == 0
            return ended
        self._reset(request, contents)
        return None

    def _reset(self, request: LaunchRequest, contents: frozenset[Path]) -> None:
        request.folder.restore(contents)
        request.steps = StepReader(request.folder.path)

    def _fall_back(self, why: str) -> None:
        self.fallbacks += 1
        self._turn_off(why)

    def _turn_off(self, why: str) -> None:
        self._state_of_new = InterpreterState.OFF
        longest_s = max(interpreter.imports_s for interpreter in self._interpreters.values())
        for interpreter in self._interpreters.values():
            self._stop_zygote(interpreter, InterpreterState.OFF)
        cost = f"about {longest_s:.1f} s more per trial"
        self._remark(f"warm starts are off: {why}; from now on each trial starts a fresh interpreter ({cost})")

    def _remark(self, sentence: str) -> None:
        _log.info("%s", sentence)
        if sentence not in self._remarked:
            self._remarked.add(sentence)
            self._on_remark(sentence)


def _without_arguments(command: PythonCommand, request: LaunchRequest) -> tuple[str, ...]:
    return tuple(request.plan.argv[: len(request.plan.argv) - len(command.arguments)])


def _read_record(path: Path, request: LaunchRequest) -> list[tuple[float, dict[str, Any]]]:
    """Return the time of each import, and the module with its environment."""
    own = ((request.plan.env.get(TEMPORARY_VARIABLE), zygote.TEMPORARY), (str(request.folder.path), zygote.TRIAL_DIR))
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    for line in read_beginning(path, 8 << 20).splitlines():
        try:
            fields = json.loads(line)
            t_s, module, environ = float(fields["t_s"]), str(fields["module"]), dict(fields["environ"])
            for folder, word in own:
                environ = {
                    name: value.replace(folder, word) if folder and value else value
                    for name, value in environ.items()
                    if name not in zygote.LATE_VARIABLES
                }
        except (ValueError, KeyError):  # a torn line
            continue
        found.setdefault(module, (t_s, {"module": module, "environ": environ}))
    return list(found.values())


def _may_be_due_to_fork(ended: TrialExit, stderr_tail: str) -> bool:
    if ended.stop is not None or ended.exit_code in (None, 0) or complaint_of_memory(stderr_tail):
        return False
    # killed from outside, SIGKILL perhaps when out of memory; a shell reports a signal as 128 + its number
    sent = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return not any(ended.exit_code in (-number, 128 + number) for number in sent)


class Liveness:
    """Wrapper of a trial's watch that checks for activity until the first step.

    A process forked while a library held a lock may wait for it forever, without output or CPU time.

    Attributes:
        is_lost: Whether it stopped the trial.
        longest_silence_s: Longest time without activity before the first step.
    """

    def __init__(self, request: LaunchRequest, clock: Clock, *, limit_s: float) -> None:
        self._watch, request.watch = request.watch, self
        self._outputs = (request.folder.stdout, request.folder.stderr)
        self._clock = clock
        self._limit_s = limit_s
        self._signs: tuple[float, ...] = ()
        self._alive_s = self._checked_s = clock.now_s()
        self._pid: int | None = None
        self.first_step_s: float | None = None
        self.is_lost = False
        self.longest_silence_s = 0.0

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        stop = self._watch(events)
        for event in events:
            if event.kind == "launched":
                self._pid = event.pid
            elif event.kind == "step" and self.first_step_s is None:
                self.first_step_s = event.t_s
        if self.first_step_s is None and stop is None and self._is_silent():
            self.is_lost = True
            return Stop.NEVER_STARTED
        return stop

    def _is_silent(self) -> bool:
        now_s = self._clock.now_s()
        if now_s - self._checked_s < 0.5:  # looking at all processes of the trial takes time
            return False
        self._checked_s = now_s
        # Any change counts, even the end of a process. A trial that is stuck in its fork has no process yet.
        members = map(process_stat, (self._pid, *descendants(self._pid))) if self._pid else ()
        times_s = [stat.cpu_s + stat.waited_cpu_s for stat in members if stat]
        sizes = []
        for path in self._outputs:
            with contextlib.suppress(OSError):
                sizes.append(path.stat().st_size)
        signs = (len(times_s), sum(times_s), *sizes)
        if signs != self._signs:
            self._signs, self._alive_s = signs, now_s
        self.longest_silence_s = max(self.longest_silence_s, now_s - self._alive_s)
        return now_s - self._alive_s >= self._limit_s
