"""Trials of a profile: made for it alone, of today's config or of a point, and kept in no study."""

import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import TrialError
from autotune.measure.probe import GpuProbe
from autotune.measure.window import Window, measure_trial, stages_between
from autotune.records import Ending, Measurement, Stop, TraineeEvent, Values
from autotune.search.gpus import busy_remarks, trial_gpus, watched_gpus
from autotune.search.problem import Problem
from autotune.study.storage.lock import sole_search
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder
from autotune.trial.instruments import Instruments, gpu_collector
from autotune.trial.launch import Guard, ProcessRunner, Runner, end_orphans
from autotune.trial.outcome import EXPLANATIONS, TrialEvidence, ending_of
from autotune.trial.protection import CheckpointBackups
from autotune.trial.stop_rule import UnseenSteps

IsOver = Callable[[Path, Sequence[TraineeEvent], float], bool]
"""Function of a trial's folder, its events so far and the time: whether it has shown what it was made for."""

WindowOf = Callable[[Path, Sequence[TraineeEvent]], Window | None]
"""Function of a trial's folder and all its events: the part that is measured; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """Request for one trial.

    Attributes:
        label: Part of the name of its folder.
        is_over: Says when it has shown what it was made for.
        window_of: Says which part of it is measured.
        longest_s: Longest time from its first step on.
    """

    label: str
    values: Values
    environment: Mapping[str, str] = field(default_factory=dict)
    is_over: IsOver
    window_of: WindowOf
    longest_s: float


@dataclass(frozen=True, kw_only=True)
class MadeTrial:
    """Result of one trial.

    Attributes:
        window: The part that was measured; None if there is none.
        measurement: The numbers of that part; None likewise.
        trouble: Error of a trial that ended other than it should; None if nothing is wrong with it.
    """

    events: Sequence[TraineeEvent]
    window: Window | None
    measurement: Measurement | None
    folder: TrialFolder
    trouble: TrialError | None


@dataclass(kw_only=True)
class ProfileTrials:
    """Maker of trials for a profile; made by `open_trials`.

    Attributes:
        gpus: Watches the GPUs; None if there are none.
        name: Begin of the trials' names.
        ends_s: Time at which a trial is ended at the latest, on the clock's monotonic time.
        remarks: What the user should know of them.
    """

    problem: Problem
    clock: Clock
    runner: Runner
    gpus: GpuProbe | None
    checkpoints: CheckpointBackups
    name: str
    ends_s: float
    remarks: list[str]

    def make(self, request: TrialRequest) -> MadeTrial:
        """Make one trial.

        Raises:
            AutotuneError: It cannot be planned or started, or it wrote over the user's checkpoints.
        """
        problem, clock = self.problem, self.clock
        name = f"{self.name}-{request.label}"
        plan = plan_trial(problem.trainer, problem.space.keys(request.values), trial=name)
        plan = replace(plan, env={**plan.env, **request.environment})
        folder = problem.trainer.make_folder(name)
        with Instruments.of_machine(clock, self.gpus) as instruments:
            instruments.expect(plan.trial_id, trial_gpus(problem, request.values), folder.samples)
            watch = _Watch(clock, request, folder.path, problem.limits.start_timeout_s, instruments)
            limit_s = clock.now_s() + problem.limits.start_timeout_s + request.longest_s
            trial_exit = problem.trainer.run(self.runner, plan, watch, min(limit_s, self.ends_s))
            window, measurement = request.window_of(folder.path, watch.events), None
            if window is not None:
                host, gpu = instruments.usage(window, started_s=trial_exit.started_s)
                stages = stages_between(watch.events, window)
                measurement = measure_trial(window, started_s=trial_exit.started_s, host=host, gpu=gpu, stages=stages)
        if loss := self.checkpoints.loss("the trial"):
            raise loss
        folder.discard_temporary()
        evidence = TrialEvidence(stdout_tail=folder.stdout_tail(), why_not_started=watch.why_not_started)
        ending, detail = ending_of(trial_exit, watch.events, evidence)
        trouble = None
        has_steps = any(event.kind == "step" for event in watch.events)
        if ending not in (Ending.STOPPED, Ending.COMPLETED) or not has_steps:
            seen, explained = "training failed" if has_steps else "no step was seen", EXPLANATIONS[ending]
            said = f"{seen}: {explained.sentence}{f' ({detail})' if detail else ''}"
            trouble = TrialError(said, where=str(folder.path), remedy=explained.remedy)
        return MadeTrial(events=watch.events, window=window, measurement=measurement, folder=folder, trouble=trouble)


@contextmanager
def open_trials(problem: Problem, clock: Clock, *, ends_s: float = math.inf) -> Iterator[ProfileTrials]:
    """Prepare for trials, for as long as a ``with`` block lasts; searches of the same config wait meanwhile.

    Args:
        problem: The config and the command; runnable.
        ends_s: Time at which a trial is ended at the latest, on the clock's monotonic time.

    Raises:
        StudyError: A search of it is at work.
        AutotuneError: The state folder cannot be made.
    """
    problem.state.create()
    remarks = list(problem.settings.remarks)
    name = f"profile-{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    with (
        sole_search(problem.state.search_lock(problem.study, problem.machine.name), problem.study),
        Guard() as guard,
        gpu_collector(watched_gpus(problem), guard, problem.state.searches, clock, remarks.append) as collector,
        CheckpointBackups(problem.trainer, clock, name=name, remark=remarks.append) as checkpoints,
    ):
        end_orphans(problem.state.trials(problem.study), clock)
        remarks += [f"{remark}; its work is in these times too." for remark in busy_remarks(problem, clock)]
        yield ProfileTrials(
            problem=problem,
            clock=clock,
            runner=ProcessRunner(guard, clock),
            gpus=collector,
            checkpoints=checkpoints,
            name=name,
            ends_s=ends_s,
            remarks=remarks,
        )


class _Watch:
    """Watch of a trial: ends it when it has shown what it was made for, or when no step will be seen."""

    def __init__(
        self, clock: Clock, request: TrialRequest, folder: Path, start_timeout_s: float, instruments: Instruments
    ) -> None:
        self._clock = clock
        self._request = request
        self._folder = folder
        self._started_s = clock.now_s()
        self._start_timeout_s = start_timeout_s
        self._instruments = instruments
        self._unseen = UnseenSteps(instruments.cpu_cores, start_timeout_s)
        self._first_step_s: float | None = None
        self.events: list[TraineeEvent] = []
        self.why_not_started = ""

    def __call__(self, news: Sequence[TraineeEvent]) -> Stop | None:
        self._instruments.watch(news)
        self._unseen.note(news)
        self.events.extend(event for event in news if event.kind != "launched")
        now_s = self._clock.now_s()
        if self._first_step_s is None:
            self._first_step_s = next((event.t_s for event in news if event.kind == "step"), None)
        if self._first_step_s is not None:
            is_over = self._request.is_over(self._folder, self.events, now_s)
            return Stop.ENOUGH if is_over or now_s > self._first_step_s + self._request.longest_s else None
        self.why_not_started = self._unseen.why(now_s)
        if self.why_not_started or now_s > self._started_s + self._start_timeout_s:
            return Stop.NEVER_STARTED
        return None
