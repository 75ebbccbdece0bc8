"""Execution of one trial: plan, start, watch, stop, measure."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.clock import Clock
from autotune.config.load import Copy, Settings
from autotune.config.outputs import path_of, quiet_trackers, unquoted
from autotune.measure.data import TrialData, read_data
from autotune.measure.phases import Bounds, bounds_of, phased_trial
from autotune.measure.probe import GpuUsage, MemorySeries, TrialGpus
from autotune.measure.ranks import ranks_of
from autotune.measure.window import Window, WindowGoal, measure_trial, pauses_of, stages_between
from autotune.records import (
    CONFIGS_VARIABLE,
    DATA_KEY_VARIABLE,
    EACH_LOSS_VARIABLE,
    PHASE_VARIABLE,
    WHEREABOUTS_VARIABLE,
    Ending,
    GpuConditions,
    Measurement,
    Purpose,
    Stop,
    TraineeEvent,
    TrialExit,
    TrialPhase,
    TrialPlan,
    TrialRecord,
    Validity,
    Values,
)
from autotune.trial.error_text import last_error, one_line, quoted_output
from autotune.trial.folders import TEMPORARY_VARIABLE, StateFolder, TrialFolder, has_space, temporary_folder
from autotune.trial.instruments import Instruments
from autotune.trial.launch import Runner, Watch
from autotune.trial.outcome import Losses, Milestones, TrialEvidence, ending_of, uncounted
from autotune.trial.stop_rule import StopLimits, StopRule

_MEASURED = (Ending.COMPLETED, Ending.STOPPED, Ending.CRASHED, Ending.KILLED_BY_BUDGET, Ending.HUNG)
_NO_MEMORY: tuple[MemorySeries, MemorySeries] = (), ()
_UNHARMED = (Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET)
_NO_START = (Ending.NEVER_STARTED, Ending.NO_STEPS, Ending.OBSERVER_MISSING)
_POSSIBLE_GPU_LOSS = (Ending.GPU_LOST, Ending.CRASHED, Ending.HUNG, *_NO_START)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Result of one executed trial.

    Attributes:
        gpu: None if GPUs were not watched.
        duration_s: Time from the decision to run it until its last process ended, without the runner's preparation.
        saw_a_pass: Whether it completed a pass over the data.
        stderr_tail: From `quoted_output`.
        memory: Of a validation trial, over its window: of the host, and of its fullest GPU.
        bounds: Of a trial with phases.
        data: Samples that it was seen to train on.
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
    bounds: Bounds | None = None
    data: TrialData = field(default_factory=TrialData)

    def close(self, record: TrialRecord, *, keep_outputs: bool, is_over: Callable[[], bool] = lambda: False) -> None:
        """Write the record into the trial's folder, and delete the trainer's outputs until `is_over`."""
        self.folder.write_result(record.as_stored())
        self.folder.discard_temporary(is_over)
        if not keep_outputs:
            self.folder.discard_outputs(is_over)


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """Phases of a trial."""

    rounds: int
    phase_s: float

    @property
    def length_s(self) -> float:
        return self.rounds * len(TrialPhase) * self.phase_s


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Specification of a trial: what to run, and with which limits.

    Attributes:
        planned_pairs: Most pairs of its sequential confirmation.
        ends_s: Time on the clock at which it is killed.
        limit_s: Length after which it is stopped with the steps so far.
        waits_s: Least time to wait for its first step even if it idles.
        goal: None derives it from the study's noise.
        alone: Whether no process trains on this machine's other GPUs meanwhile.
        validate_s: As in `StopLimits`, like `trains_s`.
        keys: Config keys it sets: at first only those in addition to its point's, all once it is named.
        tried_keys: Those of them that it tries.
        name: Empty, and `limits` None, until it is about to start.
        samples_per_step: From the config, for trainers that report no samples.
    """

    values: Values
    purpose: Purpose
    pair: int | None = None
    planned_pairs: int | None = None
    ends_s: float = math.inf
    limit_s: float = math.inf
    waits_s: float = 0.0
    goal: WindowGoal | None = None
    alone: bool = False
    warms_up: bool = False
    validate_s: float | None = None
    phases: PhasePlan | None = None
    trains_s: float | None = None
    keys: Values = field(default_factory=dict)
    tried_keys: Values = field(default_factory=dict)
    name: str = ""
    gpus: TrialGpus = field(default_factory=TrialGpus)
    samples_per_step: float | None = None
    limits: StopLimits | None = None


def execute(
    trainer: Trainer,
    spec: TrialSpec,
    *,
    runner: Runner,
    instruments: Instruments,
    clock: Clock,
    progress: Callable[[int], None] = lambda _steps: None,
    fill_outputs: Callable[[Path], None] = lambda _outputs: None,
) -> Execution:
    """Run one trial; close the instruments.

    Args:
        progress: As in `StopRule`.
        fill_outputs: Puts initial checkpoints into the outputs folder.

    Raises:
        AutotuneError: The trial cannot be planned or started.
    """
    decided_s = clock.now_s()
    assert spec.limits is not None, "complete by now"
    stop_rule = StopRule(
        spec.limits,
        clock,
        start_deadline_s=decided_s + trainer.settings.section.trial.start_timeout_s,
        samples_per_step=spec.samples_per_step,
        cpu_cores=instruments.cpu_cores,
        progress=progress,
    )
    plan = plan_trial(
        trainer,
        spec.keys,
        trial=spec.name,
        phase_s=spec.phases.phase_s if spec.phases else None,
        reads_each_loss=spec.trains_s is not None,
        reports_lines=spec.purpose is Purpose.DIAGNOSE and spec.phases is None,
    )
    folder = trainer.make_folder(spec.name)
    with instruments:
        instruments.expect(plan.trial_id, spec.gpus, folder.samples)
        asked_s = clock.now_s()

        def watch(events: Sequence[TraineeEvent]) -> Stop | None:
            instruments.watch(events)
            stop = stop_rule(events)
            return Stop.GPU_LOST if instruments.why_lost else stop

        trial_exit = trainer.run(runner, plan, watch, spec.limits.deadline_s, fill_outputs=fill_outputs)
        # Without the start of a zygote, which the next trials use too.
        duration_s = clock.now_s() - decided_s - max(0.0, trial_exit.started_s - asked_s)
        return _evaluate(spec, trial_exit, stop_rule, instruments, folder, duration_s)


def _evaluate(
    spec: TrialSpec,
    trial_exit: TrialExit,
    stop_rule: StopRule,
    instruments: Instruments,
    folder: TrialFolder,
    duration_s: float,
) -> Execution:
    limits, started_s, default_samples = stop_rule.limits, trial_exit.started_s, spec.samples_per_step
    if trial_exit.stop is Stop.DEADLINE:
        stop_rule.cut(limits.deadline_s)
    window = stop_rule.window()
    rate = window.samples_per_s(default_samples) if window else 0.0
    evidence = TrialEvidence(
        stdout_tail=folder.stdout_tail(),
        gpu_memory_full=lambda: instruments.memory_is_full(trial_exit),
        nan_counts=limits.nan_counts,
        outruns=0.0 < limits.outruns_from < rate,
        must_last=limits.must_last,
        why_not_started=stop_rule.why_not_started,
    )
    ending, detail = ending_of(trial_exit, stop_rule.events, evidence)
    if instruments.why_lost and ending in _POSSIBLE_GPU_LOSS:
        ending, detail = Ending.GPU_LOST, instruments.why_lost
    if ending is Ending.KILLED_BY_BUDGET and stop_rule.is_uncounted:
        ending, detail = Ending.UNCOUNTED, one_line(uncounted(stop_rule.events))
    has_failed = limits.must_last and ending in (Ending.CRASHED, Ending.HUNG)
    window = window if ending in _MEASURED and not has_failed else None
    validity = _validity(stop_rule, window, ending)
    measurement, seen, memory = None, GpuUsage(), _NO_MEMORY
    if window:
        if limits.validate_s is not None:
            memory = instruments.memory(window, started_s=started_s)
        host, seen = instruments.usage(window, started_s=started_s)
        measured = measure_trial(
            window, started_s=started_s, default_samples=default_samples, host=host, gpu=seen, filling=limits.filling
        )
        measurement = replace(
            measured,
            stages=stages_between(stop_rule.events, window),
            pauses=pauses_of(stop_rule.events, window, default_samples=default_samples),
            ranks=ranks_of(stop_rule.events, window),
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
        data=read_data(folder.path, stop_rule.events),
        bounds=bounds_of(phased_trial(stop_rule.events), instruments.cpu_cores) if spec.phases else None,
    )


def _validity(stop_rule: StopRule, window: Window | None, ending: Ending) -> Validity:
    goal = stop_rule.limits.goal
    if stop_rule.is_cold and stop_rule.steps and ending in _UNHARMED:
        return Validity.COLD
    if stop_rule.is_cold:
        return Validity.UNMEASURED
    if window and goal.cycle is not None and window.cycle_ends is None:
        return Validity.NOT_STEADY  # stopped within a cycle
    if window and (goal.is_met_by(window) or (window.time_s >= goal.min_s and window.steps >= goal.min_steps)):
        return Validity.GOOD
    return Validity.NOT_STEADY if stop_rule.steps else Validity.UNMEASURED


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trainer that trials run: its config, command and working directory.

    Attributes:
        typed_command: Replaces the config's; with placeholders.
        study: Also the name of the folder of its trials.
        excluded: Paths of autotune itself, such as the state folder.
        creates: Keys of outputs whose folder the trainer creates, and refuses if it exists.
        data_key: For hashes of samples, which are comparable within a search only.
    """

    config_path: Path
    settings: Settings
    typed_command: tuple[str, ...] | None
    state: StateFolder
    study: str
    excluded: tuple[Path, ...]
    data_key: str
    creates: set[str] = field(default_factory=set)

    def make_folder(self, trial: str) -> TrialFolder:
        """Create the folder of a trial.

        Raises:
            TrialError: That failed, or the disk is nearly full.
        """
        self.state.require_space()
        folder = self.state.trial(self.study, trial)
        folder.create()
        return folder

    def run(
        self,
        runner: Runner,
        plan: TrialPlan,
        watch: Watch,
        deadline_s: float,
        *,
        fill_outputs: Callable[[Path], None] = lambda _outputs: None,
    ) -> TrialExit:
        """Run a planned trial, with its outputs redirected into its folder.

        Outputs that exist as folders outside are created there too. A trainer whose last error refuses one is restarted
        without it.

        Raises:
            TrialError: The folder cannot be created, or the trainer cannot be started.
        """
        folder = TrialFolder(plan.folder)
        moved = self.settings.moved_outputs(folder.outputs)
        folders = {key for key, _, path in self.outputs() if os.path.isdir(path)} - self.creates
        made = {key: path for key, path in moved.items() if key in folders}
        folder.create(output_paths=moved.values(), output_folders=made.values())
        fill_outputs(folder.outputs)
        trial_exit = runner.run(plan, watch, deadline_s)
        error = last_error(trial_exit.stderr_tail, folder.stdout_tail()) if trial_exit.exit_code else ""
        refused = {key for key, path in made.items() if _is_exists_error(error, path)}
        if not refused:
            return trial_exit
        self.creates.update(refused)
        folder.discard_outputs()
        return self.run(runner, plan, watch, deadline_s, fill_outputs=fill_outputs)

    def outputs(self) -> Iterator[tuple[str, str, Path]]:
        """Yield each output key, its text, and its path relative to the working directory and to the config."""
        for key in self.settings.outputs.redirected:
            text = unquoted(self.settings.trial_document.leaf(key).text)
            for base in (self.settings.folder, self.config_path.absolute().parent):
                if (path := path_of(os.path.expandvars(text), base)) is not None:
                    yield key, text, path


def _is_exists_error(error: str, path: str) -> bool:
    named = re.search(rf"{re.escape(path.rstrip('/'))}(?![\w.-]|/\w)", error)
    return named is not None and re.search(r"(?<!not )\bexists?\b|not empty", error, re.IGNORECASE) is not None


_COMPILED = ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def plan_trial(
    trainer: Trainer,
    keys: Values,
    *,
    trial: str,
    phase_s: float | None = None,
    reads_each_loss: bool = False,
    reports_lines: bool = False,
) -> TrialPlan:
    """Plan a trial of a point.

    Args:
        keys: Every config key that the point sets.
        trial: Name of the trial and its folder.
        reports_lines: Whether to report the lines where the training loop spends time.

    Raises:
        ConfigError: The config or command line cannot be created.
    """
    folder = trainer.state.trial(trainer.study, trial)
    further = trainer.settings.copies(keys, folder.path, folder.outputs)
    copy = further.pop("")
    argv = trainer.settings.argv(
        command=trainer.typed_command,
        config=copy.path,
        python=sys.executable,
        config_text=copy.text,
        outputs=folder.outputs,
        further=further,
        added=trainer.settings.overrides(keys, folder.outputs),
    )
    env = _environment(trainer, keys, folder, {"": copy, **further})
    if phase_s is not None:
        env[PHASE_VARIABLE] = f"{phase_s:g}"
    if reads_each_loss:
        env[EACH_LOSS_VARIABLE] = "1"
    if phase_s is None:
        env[DATA_KEY_VARIABLE] = trainer.data_key
    if reports_lines:
        env[WHEREABOUTS_VARIABLE] = "1"
    return TrialPlan(
        trial_id=f"{trainer.study}/{trial}",
        folder=folder.path,
        argv=argv,
        cwd=trainer.settings.folder,
        env=env,
        config_text=copy.text,
        config_name=copy.path.name,
        further_configs={one.path.name: one.text for one in further.values()},
    )


def _environment(trainer: Trainer, keys: Values, folder: TrialFolder, copies: Mapping[str, Copy]) -> dict[str, str]:
    """Return the variables to add to a trial's environment; the user's override our defaults."""
    cache, settings = trainer.state.cache, trainer.settings
    defaults = {
        **quiet_trackers(folder.outputs),
        # Else every trial would write .pyc files next to the user's modules.
        "PYTHONDONTWRITEBYTECODE": "1",
        TEMPORARY_VARIABLE: str(temporary_folder(folder.path)),
    }
    if not has_space(cache):  # torch.compile would split the path
        # Compiled code is kept across trials.
        defaults |= {name: str(cache / name.lower()) for name in _COMPILED if name not in os.environ}
    env = {**defaults, **settings.trial_env(keys), "AUTOTUNE_CACHE_DIR": str(cache)}
    if settings.are_opened_by_name:
        files = {**settings.files, "": trainer.config_path}
        opened = {os.path.abspath(files[prefix]): str(one.path) for prefix, one in copies.items()}
        env[CONFIGS_VARIABLE] = json.dumps(opened)
    return env
