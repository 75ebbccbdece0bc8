"""Execution of one trial, from its plan to its numbers: start, watch, stop, measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.clock import Clock
from autotune.measure.probe import GpuUsage, MemorySeries, TrialGpus
from autotune.measure.window import Window, stages_between
from autotune.records import (
    Ending,
    GpuConditions,
    Measurement,
    Stop,
    TraineeEvent,
    TrialExit,
    TrialRecord,
    Validity,
    Values,
)
from autotune.trial.error_text import one_line, quoted_output
from autotune.trial.folder import TrialFolder
from autotune.trial.instruments import Instruments
from autotune.trial.launch import Runner, Watch
from autotune.trial.outcome import Evidence, Losses, Milestones, ending_of, uncounted
from autotune.trial.plan import Trainer, plan_trial
from autotune.trial.stop_rule import StopRule, TrialPolicy

_MEASURED = (Ending.COMPLETED, Ending.STOPPED, Ending.CRASHED, Ending.KILLED_BY_BUDGET, Ending.HUNG)
_NO_MEMORY: tuple[MemorySeries, MemorySeries] = (), ()
_UNHURT = (Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET)
_FOR_WANT_OF_A_GPU = (
    Ending.CRASHED,
    Ending.HUNG,
    Ending.NEVER_STARTED,
    Ending.NO_STEPS,
    Ending.OBSERVER_MISSING,
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Result of one executed trial.

    Attributes:
        validity: Fitness of its numbers to be compared.
        window: Its steady window; None if there is none.
        measurement: Its numbers; None if there are none.
        gpu: State of the GPUs during the trial; None if they were not watched.
        duration_s: Time from the decision to make it until the last of its processes was gone, without the time that
            the runner took to get ready.
        saw_a_pass: Whether it reached the end of a pass over the data.
        stderr_tail: The last lines of its stderr that say something; of its stdout, if that holds the error.
        memory: Of a validation trial, the memory that it used over its window: of the host, and of its fullest GPU.
        events: All that it reported, in the order of time.
        cpu_cores: Returns the cores that its processes kept busy between two of its times, on average; None where that
            is not known.
    """

    ending: Ending
    detail: str
    validity: Validity
    window: Window | None
    measurement: Measurement | None
    duration_s: float
    saw_a_pass: bool
    stderr_tail: str
    folder: TrialFolder
    gpu: GpuConditions | None = None
    losses: Losses = field(default_factory=Losses)
    milestones: Milestones = field(default_factory=Milestones)
    memory: tuple[MemorySeries, MemorySeries] = _NO_MEMORY
    events: Sequence[TraineeEvent] = ()
    cpu_cores: Callable[[float, float], float | None] = lambda _t0_s, _t1_s: None

    def close(self, record: TrialRecord, *, keep_outputs: bool, is_over: Callable[[], bool] = lambda: False) -> None:
        """Write the record into the trial's folder, and delete the trainer's outputs.

        Args:
            is_over: Returns whether no time is left for deleting; thousands of folders take seconds.
        """
        self.folder.write_result(record.as_stored())
        self.folder.discard_temporary(is_over)
        if not keep_outputs:
            self.folder.discard_outputs(is_over)


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """Request for a trial of one point.

    Attributes:
        keys: Every key of the config that the point sets.
        gpus: The GPUs that it may use, as far as is known beforehand.
        samples_per_step: Samples per step according to the config, for trainers that do not report them; None if no
            key says it.
        phase_s: Length of each phase of a trial that is taken through phases; None for the others.
        fill_outputs: Puts what training starts from into the folder of the trial's outputs.
    """

    name: str
    keys: Values
    gpus: TrialGpus
    samples_per_step: float | None
    phase_s: float | None = None
    reads_each_loss: bool = False
    fill_outputs: Callable[[Path], None] = lambda _outputs: None


@dataclass(frozen=True, kw_only=True)
class TrialTools:
    """Runner, instruments and clock that make and watch one trial.

    Attributes:
        runner: Starts the trial and watches its processes.
        instruments: Watch the machine; closed with the trial.
    """

    runner: Runner
    instruments: Instruments
    clock: Clock


def execute(
    trainer: Trainer,
    request: TrialRequest,
    policy: TrialPolicy,
    tools: TrialTools,
    *,
    progress: Callable[[int], None] = lambda _steps: None,
) -> Execution:
    """Make one trial: plan it, start it, watch it, stop it, measure it.

    Args:
        progress: Called with the number of steps so far while it goes on.

    Raises:
        AutotuneError: The trial cannot be planned or started.
    """
    clock, instruments = tools.clock, tools.instruments
    decided_s = clock.now_s()
    stop_rule = StopRule(
        policy,
        clock,
        start_deadline_s=clock.now_s() + trainer.settings.section.trial.start_timeout_s,
        samples_per_step=request.samples_per_step,
        cpu_cores=instruments.cpu_cores,
        progress=progress,
    )
    plan = plan_trial(
        trainer,
        request.keys,
        trial=request.name,
        phase_s=request.phase_s,
        reads_each_loss=request.reads_each_loss,
    )
    folder = trainer.make_folder(request.name)
    with instruments:
        instruments.expect(plan.trial_id, request.gpus, folder.samples)
        asked_s = clock.now_s()
        watch = _watch(stop_rule, instruments)
        trial_exit = trainer.run(tools.runner, plan, watch, policy.deadline_s, fill_outputs=request.fill_outputs)
        # Without the time for a zygote that had to be started first: the next trials use it too.
        duration_s = clock.now_s() - decided_s - max(0.0, trial_exit.started_s - asked_s)
        return _judged(trial_exit, stop_rule, instruments, folder, request.samples_per_step, duration_s)


def _watch(stop_rule: StopRule, instruments: Instruments) -> Watch:
    """Return what the runner calls while the trial goes on: both see its events, and a lost GPU ends it."""

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        instruments.watch(events)
        stop = stop_rule(events)
        return Stop.GPU_LOST if instruments.why_lost else stop

    return watch


def _judged(
    trial_exit: TrialExit,
    stop_rule: StopRule,
    instruments: Instruments,
    folder: TrialFolder,
    default_samples: float | None,
    duration_s: float,
) -> Execution:
    """Judge and measure a trial of which no process is left."""
    policy = stop_rule.policy
    if trial_exit.stop is Stop.DEADLINE:
        stop_rule.cut(policy.deadline_s)
    window = stop_rule.window()
    rate = window.samples_per_s(default_samples) if window else 0.0
    evidence = Evidence(
        stdout_tail=folder.stdout_tail(),
        gpu_memory_full=lambda: instruments.memory_is_full(trial_exit),
        nan_counts=policy.nan_counts,
        outruns=0.0 < policy.outruns_from < rate,
        why_not_started=stop_rule.why_not_started,
    )
    ending, detail = ending_of(trial_exit, stop_rule.events, evidence)
    if instruments.why_lost and ending in (Ending.GPU_LOST, *_FOR_WANT_OF_A_GPU):
        ending, detail = Ending.GPU_LOST, instruments.why_lost
    if ending is Ending.KILLED_BY_BUDGET and stop_rule.is_uncounted:
        ending, detail = Ending.UNCOUNTED, one_line(uncounted(stop_rule.events))
    window = window if ending in _MEASURED else None
    validity = _validity(stop_rule, window, ending)
    measurement, seen, memory = None, GpuUsage(), _NO_MEMORY
    if window:
        if policy.validate_s is not None:
            memory = instruments.memory(window, started_s=trial_exit.started_s)
        measurement, seen = instruments.measure(
            window,
            started_s=trial_exit.started_s,
            default_samples=default_samples,
            filling=policy.filling,
            stages=stages_between(stop_rule.events, window),
        )
    return Execution(
        ending=ending,
        detail="; ".join(part for part in (detail, seen.remark) if part),
        validity=seen.spoiled if seen.spoiled and validity is Validity.GOOD else validity,
        window=window,
        measurement=measurement,
        duration_s=duration_s,
        saw_a_pass=stop_rule.saw_a_pass,
        stderr_tail=quoted_output(trial_exit.stderr_tail, folder.stdout_tail()),
        folder=folder,
        gpu=seen.conditions,
        losses=stop_rule.losses,
        milestones=stop_rule.milestones,
        memory=memory,
        events=stop_rule.events,
        cpu_cores=instruments.cpu_cores,
    )


def _validity(stop_rule: StopRule, window: Window | None, ending: Ending) -> Validity:
    """Return the fitness of the numbers, as far as the steps tell."""
    goal = stop_rule.policy.goal
    if stop_rule.is_cold and stop_rule.steps and ending in _UNHURT:
        return Validity.COLD
    if stop_rule.is_cold:
        return Validity.UNMEASURED
    if window and window.time_s >= goal.min_s and window.steps >= goal.min_steps:
        return Validity.GOOD
    return Validity.NOT_STEADY if stop_rule.steps else Validity.UNMEASURED
