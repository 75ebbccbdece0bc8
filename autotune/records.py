"""Records passed between the stages of a trial.

Times are seconds of ``CLOCK_MONOTONIC``, which a machine's processes share, unless a name says ``utc``. Unknown or
absent is None, never 0.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from autotune.stage_times import PipelineTimes

Scalar = bool | int | float | str | None
"""Value of a config: any YAML scalar."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
PositiveCount = Annotated[int, Meta(ge=1, le=1 << 53)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Time = Annotated[float, Meta(ge=0.0, le=1e12)]
Length = Annotated[float, Meta(ge=1e-9, le=1e12)]
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]  # a trainer may report a step before its start
Rate = Annotated[float, Meta(ge=1e-30, le=1e18)]  # ratios of two must fit into a float
Amount = Annotated[float, Meta(ge=0.0, le=1e18)]
Share = Annotated[float, Meta(ge=0.0, le=1.0 + 1e-6)]  # rounding may make a mean of shares exceed 1
Shares = Annotated[float, Meta(ge=0.0, le=1e6)]  # sums over processes, whose kernels may overlap
Loss = Annotated[float, Meta(ge=-1e30, le=1e30)]
Text = Annotated[str, Meta(max_length=1_000)]
Window = tuple[Moment, Annotated[float, Meta(le=1e12)], float]
"""Numbers with limits that are checked when a record is read."""

Values = Mapping[str, Scalar]
"""Knob values by dotted key path, e.g. ``{"data.batch_size": 32}``."""


class Purpose(StrEnum):
    """Purpose of a trial."""

    BASELINE = "baseline"  # the config's present values; every score is relative to them
    EXPLORE = "explore"  # a point not measured yet
    REPEAT = "repeat"  # a promising point again
    TAKE_BACK = "take back"  # ablation: the finalist with and without some of its changes, for their gain
    CONFIRM = "confirm"  # one half of an interleaved pair
    VALIDATE = "validate"  # a longer training, with pauses such as evaluations
    DIAGNOSE = "diagnose"  # without part of the trainer's work; never compared with others
    RACE = "race"  # trained as long as others, to compare losses
    TRAINING = "training"  # no trial: a user's training by `autotune run`


NOT_COMPARED = frozenset({Purpose.VALIDATE, Purpose.DIAGNOSE, Purpose.RACE, Purpose.TRAINING})
"""Purposes whose numbers and endings say nothing about the point."""


NO_SEARCH = frozenset({Purpose.DIAGNOSE, Purpose.TRAINING})
"""Purposes outside of searches, whose field ``search`` names something else."""


class Ending(StrEnum):
    """Reason why a trial ended; `Validity` judges its numbers."""

    COMPLETED = "completed"  # the trainer exited with status 0
    STOPPED = "stopped"  # autotune stopped it: enough was known
    CRASHED = "crashed"  # the trainer ended with an error
    OUT_OF_HOST_MEMORY = "out of host memory"
    OUT_OF_GPU_MEMORY = "out of GPU memory"
    OUT_OF_SHARED_MEMORY = "out of shared memory"  # /dev/shm, through which a loader's workers pass batches
    GPU_LOST = "GPU lost"  # or its driver: it no longer answers
    DIVERGED = "diverged"  # loss NaN, infinite, or far above the baseline's at the same step
    HUNG = "hung"  # no step for too long, or no first step with idle processes
    NEVER_STARTED = "never started"  # no step within trial.start_timeout_s
    NO_STEPS = "no steps seen"  # it exited without reporting a step
    OBSERVER_MISSING = "observer missing"  # ... and no observer inside it could have reported one
    UNCOUNTED = "steps not counted"  # enough steps, none of them measurable
    KILLED_BY_BUDGET = "killed by budget"
    INTERRUPTED = "interrupted"  # ^C, or the process that owned the trial died


class Validity(StrEnum):
    """Fitness of a trial's numbers for comparisons."""

    GOOD = "good"
    COLD = "cold"  # caches were still being filled
    CONTAMINATED = "contaminated"  # another process used the GPU
    THROTTLED = "throttled"  # heat or a power brake throttled the GPU's clocks
    NOT_STEADY = "not steady"  # too few steps after warm-up for a window
    UNMEASURED = "unmeasured"  # it has no measurement


DISTURBED = frozenset({Validity.CONTAMINATED, Validity.THROTTLED})
"""Something else interfered: the trial is worth repeating."""


class Stop(StrEnum):
    """Reason why autotune stops a running trial."""

    ENOUGH = "enough"  # the measuring window is long enough
    HOPELESS = "hopeless"  # a short measurement shows that it is far behind
    GPU_LOST = "GPU lost"  # its driver no longer answers
    DIVERGED = "diverged"
    HUNG = "hung"
    NEVER_STARTED = "never started"
    UNCOUNTED = "uncounted"  # enough steps for long enough, none of them measurable
    DEADLINE = "deadline"  # the end of the budget
    GUARD_LOST = "guard lost"  # the guard process died; its orphans were killed


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """GPU of the machine."""

    name: str
    uuid: str
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Hardware that the numbers depend on; cores and memory are those available to this process.

    Attributes:
        cpu_bfloat16: Whether the CPU has bfloat16 instructions; emulation is many times slower.
        name: 8 hex digits that identify it within its class; empty if irrelevant.
    """

    cpu_cores: int
    cpu_model: str
    memory_bytes: int
    cpu_bfloat16: bool = False
    gpus: tuple[Gpu, ...] = ()
    name: str = ""


CODE = "code:"
"""Prefix of values in the trainer's code instead of the config."""

CODE_VARIABLE = "AUTOTUNE_CODE"
"""Environment variable of a trial with values that replace arguments of calls in the trainer's code."""

CALLS_MADE = "calls.made"
"""File in a trial's folder with the names of the `CODE_VARIABLE` values that were used in a call."""

CONFIGS_VARIABLE = "AUTOTUNE_CONFIGS"
"""Environment variable of a trial whose trainer opens configs itself: their copies by the user's files."""

CONFIGS_OPENED = "configs.opened"
"""File in a trial's folder that exists once a copy of `CONFIGS_VARIABLE` was opened."""

EACH_LOSS_VARIABLE = "AUTOTUNE_EACH_LOSS"
"""Variable that makes the observer read every step's loss that needs no wait for an accelerator."""


class TrialPhase(StrEnum):
    """Phase of a trial that shows the speed without part of the work."""

    TRAIN = "train"  # nothing is changed
    LOAD = "load"  # batches are drawn as fast as the loader yields them; few are trained on
    REPLAY = "replay"  # the same few batches are trained on: data cost nothing


class DataEffect(StrEnum):
    """Effect of a change on the training data, by the samples of trials."""

    SAME = "same data"
    BATCH = "batch"  # another number of samples per update
    DIFFERENT = "different data"
    UNVERIFIED = "not verified"


@dataclass(frozen=True)
class DataFinding:
    """Comparison of a trial's samples with the baseline's; the evidence is a clause."""

    effect: DataEffect
    evidence: Text


DATA_KEY_VARIABLE = "AUTOTUNE_DATA_KEY"
"""Key of the hashes of samples in all trials of a search."""

WHEREABOUTS_VARIABLE = "AUTOTUNE_WHEREABOUTS"
"""Variable that makes the observer report in which lines the trainer's loop spends time."""

PHASE_VARIABLE = "AUTOTUNE_PHASE_S"
"""Variable that makes the observer run a trial in phases of this many seconds."""

FIRST_PHASE = TrialPhase.REPLAY
"""First phase of each round: loading follows and drains the buffers that it filled."""

PAUSES = frozenset({"eval", "checkpoint"})
"""Kinds of event whose time is not training. Refilling the pipeline after an epoch is a cost of the config."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Rank of a process in a distributed training.

    Attributes:
        world: Number of ranks.
        is_joined: Whether its framework has joined the ranks; else they are from a launcher's variables.
    """

    number: Count
    world: Annotated[int, Meta(ge=1, le=1 << 16)]
    node: Annotated[str, Meta(max_length=255)] = ""
    is_joined: bool = False


RANK_STEP = "rank_step"
"""Kind of event for a step of one rank; ``step`` is one of the whole training."""


@dataclass(frozen=True, kw_only=True)
class TraineeEvent:
    """Event that a training process reports: one line of its step file. Unknown kinds are ignored.

    Attributes:
        kind: ``start`` (header of a stream), ``step``, ``loss``, ``epoch_end``, ``eval``, ``checkpoint``, ``sync``,
            ``note``, ``stages``, ``reporter`` (its step reporter was imported), ``unseen`` (steps can't be seen),
            ``files`` (loaded modules), ``begin`` (of the first step, batch included), ``cost`` (recurring work apart
            from the arithmetic of steps) or ``launched`` (by the runner: start of a process, possibly from a warm
            interpreter). In phases also ``phase``, ``load`` (batches drawn without training), ``unphased`` (impossible
            with this trainer) and ``in_force`` (settings of the frameworks). With several ranks ``rank``, ``own`` (time
            outside of the gradient exchange) and ``rank_step``.
        stream: Process and loop, ``<pid>.<n>``.
        wait_s: Time of waiting for data.
        samples: Valid samples in a step's batch, or in a finished pass.
        work: Valid frames or tokens in a step's batch.
        update: False if a step only accumulates gradients.
        loss: Of a step or an evaluation; may be NaN or infinite.
        devices: UUIDs, or their prefixes, of accelerators in use.
        text: Note, or reason of ``unseen``, ``unphased`` and ``cost``; printable, one line.
        stages: Times so far.
        duration_s: Of ``eval``, ``checkpoint``, ``load`` and ``stay``, which end at `t_s`; of other costs the sum of
            kind and place so far.
        cost: E.g. ``trace``, ``compile``, ``python``, ``workers``, or ``stay`` (of the loop in a line).
        place: Of ``cost``: file, line and name, in the trainer's code if known.
        times: Of ``cost``: count so far.
        phase: Of ``phase``; None if unknown.
        offset_s: Of a process on another node: what was added to its own time to get `t_s`.
    """

    kind: str
    t_s: float
    stream: str
    wait_s: float | None = None
    samples: float | None = None
    work: float | None = None
    update: bool = True
    loss: float | None = None
    devices: tuple[str, ...] = ()
    text: str | None = None
    stages: PipelineTimes | None = None
    duration_s: float | None = None
    phase: TrialPhase | None = None
    batches: int | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    cost: str | None = None
    place: str | None = None
    times: int | None = None
    rank: Rank | None = None
    offset_s: float | None = None

    @property
    def pid(self) -> int:
        return int(self.stream.partition(".")[0])


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """Everything needed to run a trial; printing it is the dry run.

    Attributes:
        trial_id: Unique name, in ``AUTOTUNE_TRIAL_ID`` of all its processes.
        folder: Folder for everything that it writes.
        further_configs: Copies of further configs, by file name.
    """

    trial_id: str
    folder: Path
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    config_text: str
    config_name: str = "config.yaml"
    further_configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialExit:
    """End of a trial's processes; `autotune.trial.outcome` interprets it.

    Attributes:
        exit_code: Negative for a signal.
        stop: Reason why autotune stopped it; None if it exited.
        cpu_s: CPU time of the trainer and its reaped children.
        oom_killed: Whether the kernel's out-of-memory counter increased.
        left_pids: Processes that could not be killed (uninterruptible sleep).
        waited_for: What it waited for if stopped before its process started.
    """

    started_s: float
    ended_s: float
    exit_code: int | None
    stop: Stop | None
    stderr_tail: str = ""
    cpu_s: float | None = None
    oom_killed: bool | None = None
    left_pids: tuple[int, ...] = ()
    waited_for: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuFigures:
    """Figures of one GPU over a stretch of time.

    The only list of what is measured of a GPU. Shares are 0..1 of the stretch.

    Attributes:
        uuid: Of the GPU or MIG instance.
        name: By the driver.
        utilization: Share of time in which a kernel ran.
        covered_fraction: Share of the stretch that driver windows cover.
        memory_total_bytes: Of the device.
        peak_memory_bytes: Most in use by all processes; of a trial, since its start.
        power_w: Mean.
        energy_j: Drawn over the stretch.
        sm_activity: Share of the multiprocessors' time in use (Hopper and later).
        tensor_activity: The same of the tensor cores.
        dram_activity: The same of the memory's bandwidth.
        own_fraction: Share of time with kernels of the trial; a sum over processes, which may overlap.
        foreign_fraction: The same of other processes.
        throttled_fraction: Share of the readings with one of `driver.THROTTLING`.
    """

    uuid: str
    name: str
    utilization: Share | None = None
    covered_fraction: Share = 0.0
    memory_total_bytes: Bytes | None = None
    peak_memory_bytes: Bytes | None = None
    power_w: Amount | None = None
    energy_j: Amount | None = None
    sm_activity: Share | None = None
    tensor_activity: Share | None = None
    dram_activity: Share | None = None
    own_fraction: Shares | None = None
    foreign_fraction: Shares | None = None
    throttled_fraction: Share | None = None


class GpuRole(StrEnum):
    """Work of a GPU, if data and model have one each."""

    DATA = "data"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class GpuMeasurement:
    """Measurement of one GPU over the steady window of a trial.

    Attributes:
        figures: Figures over the window, without unreliable utilization.
        scored: Whether its utilization counts; if data have a separate GPU, only the model's does.
        busy_windows: Driver windows: end in seconds from the window's start, length in seconds, busy share.
        role: Its work if data and model have a GPU each.
    """

    figures: GpuFigures
    scored: bool = True
    busy_windows: Annotated[tuple[Window, ...], Meta(max_length=1_000_000)] = ()
    role: GpuRole | None = None

    def __post_init__(self) -> None:
        last_s = -math.inf
        for end_s, length_s, busy in self.busy_windows:
            if not (last_s < end_s < math.inf and 0.0 < length_s < math.inf and 0.0 <= busy <= 1.0):
                raise ValueError(f"driver windows must be in order and busy for 0..1, got {(end_s, length_s, busy)}")
            last_s = end_s


@dataclass(frozen=True, kw_only=True)
class RankMeasurement:
    """Measurement of one rank over the steady window of a trial, by its own clock.

    Attributes:
        number: Number of the rank.
        node: Name of its machine.
        step_s: Median time of its steps.
        data_wait_fraction: Share of time waiting for data.
        own_fraction: Share of time outside of the gradient exchange, waiting for data included.
    """

    number: Count
    node: Annotated[str, Meta(max_length=255)]
    step_s: Time
    data_wait_fraction: Share | None = None
    own_fraction: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Evaluations, checkpoints and ends of epochs over a stretch of training.

    Attributes:
        time_s: Total time beyond that of usual steps.
        samples: Samples trained on until the last of them.
        in_window_s: Part of `time_s` in the trial's window: that of ends of epochs.
    """

    time_s: Time
    samples: Rate
    epoch_ends: Count = 0
    evaluations: Count = 0
    checkpoints: Count = 0
    in_window_s: Time = 0.0

    @property
    def count(self) -> int:
        return self.epoch_ends + self.evaluations + self.checkpoints

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds that occurred, by field."""
        return frozenset(kind for kind in PAUSE_NOUNS if getattr(self, kind))


PAUSE_FIELDS: Mapping[str, str] = {"epoch_end": "epoch_ends", "eval": "evaluations", "checkpoint": "checkpoints"}
"""Fields of `Pauses` and `Validation` that count each kind of event."""

PAUSE_NOUNS: Mapping[str, tuple[str, str]] = {
    "epoch_ends": ("end of an epoch", "ends of epochs"),
    "evaluations": ("evaluation", "evaluations"),
    "checkpoints": ("checkpoint", "checkpoints"),
}
"""Singular and plural of each, by these fields."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Numbers of one trial over its steady state.

    Attributes:
        speed_error: Relative standard error of the speed, by the steps of this trial.
        cycles: Whole cycles between stalls in the window.
        beat_s: Usual time of a whole cycle.
        stall_fraction: Share of the window that steps of more than three medians took beyond the median.
        stall_wait_fraction: Share of these steps' time spent waiting for data.
        stall_epoch_fraction: Share of their time at the ends of passes over the data.
        pauses: Pauses after which training resumed.
        cv: Coefficient of variation of the steps' time per unit of work.
        data_wait_fraction: Share of the window spent waiting for data.
        first_step_s: From process start to the end of the first step.
        setup_s: From process start to the start of that step.
        first_batch_s: Time that the first step waited for its batch.
        cpu_cores: CPU time per second.
        gpu_utilization: Share of time in which a kernel ran, mean of the scored GPUs.
        gpu_memory_bytes: Most memory in use on one of the GPUs.
        filled_samples_per_s: Estimated throughput with full caches, if they were being filled.
        energy_per_sample_j: Energy of all GPUs.
        gpus: In the order in which the trial sees them.
        ranks: Empty for a single process.
    """

    window_s: Length
    steps: PositiveCount
    samples_per_s: Rate
    cv: Amount | None
    step_p50_s: Time
    step_p95_s: Time
    data_wait_fraction: Share | None
    first_step_s: Moment
    setup_s: Moment | None = None
    first_batch_s: Time | None = None
    speed_error: Amount = 0.0
    cycles: Count | None = None
    beat_s: Time | None = None
    step_p99_s: Time | None = None
    step_max_s: Time | None = None
    stall_fraction: Share | None = None
    stall_wait_fraction: Share | None = None
    stall_epoch_fraction: Share | None = None
    pauses: Pauses | None = None
    cpu_cores: Shares | None = None
    peak_memory_bytes: Bytes | None = None
    gpu_utilization: Share | None = None
    gpu_memory_bytes: Bytes | None = None
    filled_samples_per_s: Rate | None = None
    energy_per_sample_j: Amount | None = None
    gpus: Annotated[tuple[GpuMeasurement, ...], Meta(max_length=256)] = ()
    stages: PipelineTimes | None = None
    ranks: Annotated[tuple[RankMeasurement, ...], Meta(max_length=1 << 16)] = ()

    @property
    def fullest_gpu(self) -> GpuFigures | None:
        """Figures of the GPU with the largest share of memory in use."""
        known = {
            gpu.figures.peak_memory_bytes / gpu.figures.memory_total_bytes: gpu.figures
            for gpu in self.gpus
            if gpu.figures.peak_memory_bytes is not None and gpu.figures.memory_total_bytes
        }
        return known[max(known)] if known else None

    @property
    def speed(self) -> float:
        """Samples per second by which trials are compared."""
        return self.samples_per_s if self.filled_samples_per_s is None else self.filled_samples_per_s

    @property
    def step_fraction(self) -> float:
        """Share of the window without the time of ends of epochs."""
        return 1.0 if self.pauses is None else 1.0 - self.pauses.in_window_s / self.window_s

    @property
    def sample_s(self) -> float:
        """Mean time of a sample by `speed`, without the ends of epochs in the window."""
        return self.step_fraction / self.speed

    @property
    def overall_samples_per_s(self) -> float | None:
        """Samples per second with the time of pauses; None without pauses."""
        return None if self.pauses is None else 1.0 / (self.sample_s + self.pauses.time_s / self.pauses.samples)

    def __post_init__(self) -> None:
        if not (0 < self.window_s < math.inf and 0 < self.samples_per_s < math.inf):
            raise ValueError(f"a measurement needs a window and samples, got {self.window_s} s")
        if self.pauses is not None and not self.pauses.in_window_s < self.window_s:
            raise ValueError(f"a window of {self.window_s} s holds more than pauses, got {self.pauses.in_window_s} s")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Findings of a validation trial, of a confirmed point or the baseline.

    Attributes:
        trained_s: Time from the first step to the end.
        epoch_ends: Number of passes over the data that ended.
        evaluations: Number of evaluations of the model.
        checkpoints: Number of checkpoints.
        speed_ratio: Speed over the baseline's in its validation trial; None for the baseline.
        overall_ratio: The same from the first step to the end, pauses included.
        loss_ratio: Loss relative to its start, over the baseline's after as many updates (or samples, if fewer); None
            for the baseline.
        losses: Its loss and the baseline's after equal steps, on batches of one size.
        memory_growth_bytes_per_s: Growth of host memory that continued until the end, else 0.
        gpu_memory_growth_bytes_per_s: The same of the fullest GPU.
        broke: Reasons not to recommend the point, one clause each.
        remarks: What was not reached, or also happens with the baseline's values; one clause each.
    """

    trained_s: Time
    epoch_ends: Count = 0
    evaluations: Count = 0
    checkpoints: Count = 0
    speed_ratio: Amount | None = None
    overall_ratio: Amount | None = None
    loss_ratio: Amount | None = None
    losses: tuple[float, float] | None = None
    memory_growth_bytes_per_s: Amount | None = None
    gpu_memory_growth_bytes_per_s: Amount | None = None
    broke: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Losses of one training, as means over equal stretches of time.

    Attributes:
        ends_s: Ends of the stretches with a loss, from the first step.
        samples: Samples trained on by each end; empty if unknown.
    """

    ends_s: Annotated[tuple[float, ...], Meta(max_length=10_000)]
    losses: tuple[float, ...]
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.ends_s) or len(self.samples) not in (0, len(self.ends_s)):
            raise ValueError("a loss curve has as many losses as ends")
        if any(later <= earlier for earlier, later in pairwise((0.0, *self.ends_s))):
            raise ValueError("the times of a loss curve increase")
        if not all(map(math.isfinite, (*self.ends_s, *self.losses, *self.samples))):
            raise ValueError("a loss curve is finite")


class RaceArm(StrEnum):
    """Config in a race."""

    BASELINE = "baseline"
    WINNER = "winner"
    SCALED = "winner with the learning rate scaled"


@dataclass(frozen=True, kw_only=True)
class RaceLeg:
    """Training of one config in a race.

    Attributes:
        pair: Round, from 0, in which each config trains once with the same seed.
        trained_s: Time from its first step to its end.
        curve: None with too few losses.
        first_loss: Mean of its first few losses.
        seed: None if the config has no key for one.
        learning_rate: None for that of the config.
        checkpoint: Name of the checkpoint that it got a copy of.
        resumed: Whether it resumed from that.
        update_samples: Samples per update of the weights.
        epoch_samples: Samples between two ends of epochs.
        evaluation_loss: Loss of its latest evaluation.
        held_out: Losses of its latest evaluations, each at its start.
    """

    arm: RaceArm
    pair: Count
    trained_s: Time
    curve: LossCurve | None
    first_loss: Loss | None = None
    seed: int | None = None
    learning_rate_key: str = ""
    learning_rate: Amount | None = None
    checkpoint: str = ""
    resumed: bool = False
    update_samples: Amount | None = None
    epoch_samples: Amount | None = None
    evaluation_loss: Loss | None = None
    held_out: LossCurve | None = None


FRAMEWORK = "framework."
"""Prefix of stored conditions with a framework's version."""


@dataclass(frozen=True, kw_only=True)
class GpuConditions:
    """GPUs available to a trial, over its steady window.

    Attributes:
        readings: State of each GPU by name, e.g. ``gpu0.sm_clock_mhz`` and ``gpu0.temperature_end_c``.
        not_measured: Reason, for users, why utilization is unknown.
    """

    driver: str | None
    readings: Mapping[str, Scalar]
    not_measured: str | None


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Everything but its values that a trial's numbers, and their judgement, depend on.

    Attributes:
        machine: `Machine.name`; None if irrelevant.
        gpus: Names of the machine's GPUs, separated by commas.
        frameworks: Versions, by package.
        validate_s: Longest validation training of its search.
        document: Hash of the training that its config describes, without knobs.
        changes: Kinds of training change of its point against its search's baseline.
        allowed_changes: Those that the user has allowed its search.
        outside_answer: Point of the study's current answer, if outside of the config's domains.
        left_out_answer: The same, if a limit of its search excludes it.
        until_step: Last step that its search measures, if steps get slower.
        pairs_planned: Most pairs of a sequential confirmation.
        claims_sd: Error of the study's earlier claims beyond their intervals, as a standard deviation of ln speed.
        alone: Whether trials on this machine's other GPUs waited; None if there were none.
        unheeded: Knobs that it never read.
        no_loss: True if its trainer reported no visible loss.
        free_data_ratio: Speed with data at no cost over that of training, by a trial in phases.
        free_step_ratio: The same of the loader alone.
        free_data_ratio_high, free_step_ratio_high: Upper ends of their intervals.
        further: Conditions that only another version of autotune knows.
    """

    autotune: str | None = None
    host: str | None = None
    machine: str | None = None
    cpu_model: str | None = None
    cpu_cores: Count | None = None
    memory_bytes: Bytes | None = None
    gpus: str | None = None
    frameworks: Mapping[str, str] = field(default_factory=dict)
    gpu: GpuConditions | None = None
    validate_s: Time | None = None
    document: str | None = None
    changes: tuple[str, ...] = ()
    allowed_changes: tuple[str, ...] = ()
    outside_answer: str | None = None
    left_out_answer: str | None = None
    until_step: Count | None = None
    pairs_planned: Count | None = None
    claims_sd: Amount | None = None
    alone: bool | None = None
    unheeded: tuple[str, ...] = ()
    no_loss: bool | None = None
    free_data_ratio: Amount | None = None
    free_data_ratio_high: Amount | None = None
    free_step_ratio: Amount | None = None
    free_step_ratio_high: Amount | None = None
    further: Mapping[str, Scalar] = field(default_factory=dict)

    def as_stored(self) -> dict[str, Scalar]:
        """Return the known conditions as stored scalars."""
        stored: dict[str, Scalar] = {}
        for name, value in ((one.name, getattr(self, one.name)) for one in fields(self)):
            if name == "frameworks":
                stored |= {FRAMEWORK + package: version for package, version in value.items()}
            elif name == "gpu" and value:
                stored |= {"gpu_driver": value.driver, **value.readings, "gpu_not_measured": value.not_measured}
            elif name == "further":
                stored |= value
            elif name in CONDITION_SEPARATORS:
                stored |= {name: CONDITION_SEPARATORS[name].join(value)} if value else {}
            elif value is not None or (name in ("machine", "gpus") and self.autotune):  # of a search: stored as null
                stored[name] = value
        return stored


CONDITION_SEPARATORS = {"changes": ",", "allowed_changes": ",", "unheeded": "\n"}
"""Separators of conditions that are stored as one text."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """Finished trial, as the study keeps it.

    Attributes:
        number: Position in the study, from 0.
        point: Hash of its values.
        pair: Index of a confirming trial's pair, from 0.
        duration_s: Time from the decision to start it until its last process was gone, without starting a zygote.
        detail: Line on the ending, e.g. the exception's class and message.
        code: Digests of the project's files that the trainer loaded, by path from the command's folder. Only trials of
            the same code are compared.
        data: Comparison of its samples with the baseline's.
    """

    number: Count
    search: str
    point: str
    values: Values
    purpose: Purpose
    ending: Ending
    validity: Validity
    ended_utc: str
    duration_s: Time
    pair: Count | None = None
    measurement: Measurement | None = None
    detail: str = ""
    conditions: Conditions = field(default_factory=Conditions)
    validation: Validation | None = None
    race: RaceLeg | None = None
    code: Annotated[Mapping[Text, Text], Meta(max_length=1_000)] = field(default_factory=dict)
    data: DataFinding | None = None

    def shares_code_with(self, other: "TrialRecord") -> bool:
        return all(other.code.get(name, digest) == digest for name, digest in self.code.items())

    def as_stored(self) -> dict[str, Any]:
        return {**asdict(self), "conditions": self.conditions.as_stored()}

    @property
    def machine(self) -> str:
        """Name of the machine on which it ran, by default the host's."""
        return self.conditions.machine or self.conditions.host or ""

    @property
    def comparable(self) -> Measurement | None:
        """Measurement if it is fit to be compared with others."""
        is_fit = self.validity is Validity.GOOD and self.purpose not in NOT_COMPARED
        return self.measurement if is_fit else None


_SAME_TRAINING = "same training"  # label of `space.knob`
_RACED = ("batch", "precision")  # labels of changes whose effect on convergence a race can show

NO_LOSS = "the trainer reports no loss that can be seen"
"""Reason why no race is possible."""


class Verdict(StrEnum):
    """Verdict of a search."""

    BETTER = "better"
    STEADIER = "steadier"  # as fast, with steadier steps or a busier GPU
    NO_CHANGE = "no_change"
    NOT_CONFIRMED = "not_confirmed"  # a candidate looks better, but has no confirming pairs
    NO_BASELINE = "no_baseline"


CONFIRMED = (Verdict.BETTER, Verdict.STEADIER)
"""Verdicts with a change of the config."""

UNCHANGED = (Verdict.NO_CHANGE, Verdict.NOT_CONFIRMED)
"""Verdicts that keep today's values."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio with its 95 % confidence interval; 1.0 is no difference.

    Attributes:
        ratio: Estimate.
        low: Lower end of the interval.
        high: Upper end.
    """

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PooledGpu:
    """One GPU over all comparable trials of a point.

    Utilization and derived values are None until enough is known; `text` says how much is missing.

    Attributes:
        scored: Whether its utilization counts in the score.
        text: Utilization, for users: ``2-40 % cyclic, period 2.1 s``, ``not enough yet: 34 of 60 driver samples`` or
            ``not measured``.
        verdict: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        meaning: Usual cause and remedy of that pattern.
        samples: Number of driver windows.
        p10: 10th percentile of utilization over the covered time.
        idle_fraction: Share of the covered time in windows that were busy for less than a tenth.
        duty_fraction: Share of the covered time at the high level; None if the levels are equal.
        low: Lower level of utilization.
        high: Upper level.
        period_s: Length of a cycle; None unless ``cyclic``.
        energy_per_sample_j: Energy of this GPU per sample.
        role: ``data`` or ``model``, if they have a GPU each.
        reference: Lower and upper reference utilization for that role.
        against_reference: ``below``, ``within`` or ``above`` that.
    """

    figures: GpuFigures
    scored: bool
    text: str
    role: str | None = None
    reference: tuple[float, float] | None = None
    against_reference: str | None = None
    verdict: str | None = None
    meaning: str | None = None
    samples: int = 0
    p10: float | None = None
    idle_fraction: float | None = None
    duty_fraction: float | None = None
    low: float | None = None
    high: float | None = None
    period_s: float | None = None
    energy_per_sample_j: float | None = None

    def value(self, name: str) -> Any:
        return getattr(self.figures if hasattr(self.figures, name) else self, name)


@dataclass(frozen=True, kw_only=True)
class PooledGpus:
    """GPUs of a point over all its comparable trials.

    Attributes:
        devices: In the order in which the trials see them.
        utilization: Mean of the scored ones; None unless known for each.
        effective_utilization: Share of the GPUs' demonstrated capacity that training uses; above 1 if the study's lower
            bound of it is too low.
    """

    devices: tuple[PooledGpu, ...]
    utilization: float | None = None
    effective_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison: a point with its pooled numbers.

    Attributes:
        point: Its name (`space.point_name`), which also covers keys that change along with knobs.
        values: Value of each knob, by key path.
        metrics: Medians over the trials, by the names of `metrics.METRICS`.
        gpus: Its GPUs.
        stages: Times of the two stages of a pipeline over two devices.
        ranks: Ranks of a distributed training.
    """

    point: str
    values: Values
    metrics: Mapping[str, float | None] | None
    gpus: PooledGpus | None = None
    stages: PipelineTimes | None = None
    ranks: tuple[RankMeasurement, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MovedKey:
    """Key that changes along with a knob.

    Attributes:
        path: Key path.
        old: Value in today's config.
        new: Value in the point.
    """

    path: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, kw_only=True)
class Change:
    """Knob that a point changes, and its gain.

    Attributes:
        path: Key path.
        old: Value in today's config.
        new: Value in the point.
        worth: Speed of the point over its speed without this change, its group, and changes that need it.
        group: Changes with one number have a common `worth`: the trials don't separate them.
        needed: Whether the trainer failed without it.
        label: Effect on training: ``same training``, ``batch``, ``precision`` or ``unknown``.
        effective_batch: Effect on the effective batch, in words.
        along: Further keys that change with it, if the config's present knobs show them.
    """

    path: str
    old: Scalar
    new: Scalar
    worth: Ratio | None
    group: int
    label: str
    needed: bool = False
    effective_batch: str = ""
    along: tuple[MovedKey, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """Key of a config that a set of changes writes.

    Attributes:
        path: Key path.
        old: Value that it was compared with.
        new: Value that is written; may equal the old one, because the whole point was judged.
        label: Effect on training, as of a change.
    """

    path: str
    old: Scalar
    new: Scalar
    label: str


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """Judged changes to a config: all that `apply`, the daemon and its page ever write.

    Attributes:
        study: Name of the study.
        search: Name of the search that judged them.
        keys: Every key that the point sets.
        document: Hash of the training that the config describes, without knobs.
        code: Digests of the trainer's files.
        speedup: Confirmed speed over that of the original config.
        allowed: Kinds of training change that the user had allowed.
    """

    study: str
    search: str
    point: str
    keys: tuple[KeyChange, ...]
    document: str | None
    code: Mapping[str, str]
    speedup: Ratio | None
    allowed: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Hash of its contents."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def values(self) -> dict[str, Scalar]:
        return {key.path: key.new for key in self.keys}


class Learning(StrEnum):
    """Judgement of a race: convergence compared with the baseline's."""

    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "alike"
    UNKNOWN = "cannot be told"
    MEMORISES = "memorises: not comparable"

    @property
    def is_safe(self) -> bool:
        """Whether the race has shown that it converges at least as fast."""
        return self in (Learning.FASTER, Learning.ALIKE)


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Difference of a loss from the baseline's, with its 97.5 % confidence interval.

    Attributes:
        today: Mean loss of today's config.
        other: Mean loss of the other config.
        low: Lower end of the interval.
        high: Upper end.
    """

    today: float
    other: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, kw_only=True)
class Raced:
    """Comparison of a config with the baseline by their losses after equal training time.

    Attributes:
        learning: Judgement.
        at_equal_time: Losses after equal time.
        at_equal_samples: Losses after equally many samples, if steps report these.
        held_out: Losses of evaluations after equal time, which then decide, if all trainings reached two.
        after_s: Time after which its losses are compared; None for that of the race.
        why: Clause on why it is inconclusive, or not comparable.
        learning_speed: Time in which today's config reaches a loss over this config's time; None if neither reached the
            other's loss.
        needed_s: Training time after which a race would settle an open result.
        diverged: Whether losses of a training ended up not finite.
        evaluation_losses: Mean loss of the latest evaluations, today's and its, if all trainings reached one.
    """

    learning: Learning
    at_equal_time: LossDifference | None = None
    at_equal_samples: LossDifference | None = None
    held_out: LossDifference | None = None
    after_s: float | None = None
    why: str = ""
    learning_speed: float | None = None
    needed_s: float | None = None
    diverged: bool = False
    evaluation_losses: tuple[float, float] | None = None

    @property
    def deciding(self) -> LossDifference | None:
        """Losses that decide: those of evaluations, if known."""
        return self.at_equal_time if self.held_out is None else self.held_out


@dataclass(frozen=True, kw_only=True)
class Race:
    """Race of an answer against the baseline.

    Attributes:
        winner: Result of the answer.
        scaled: Result with the learning rate scaled with the batch.
        trained_s: Total time of its trainings from their first steps.
        pairs: Number of rounds.
        checkpoint: Name of the checkpoint from which trainings resumed; empty without one.
        why_unknown: Clause on why the losses cannot be compared; empty if they can.
        learning_rate_key: Key of the learning rate; empty if none was scaled.
        learning_rate: The scaled learning rate.
        cautions: Further results, one sentence each.
    """

    winner: Raced
    scaled: Raced | None = None
    trained_s: float
    pairs: int
    checkpoint: str = ""
    why_unknown: str = ""
    learning_rate_key: str = ""
    learning_rate: float | None = None
    cautions: tuple[str, ...] = ()

    @property
    def proposed_rate(self) -> tuple[str, float] | None:
        """Key and value of the learning rate with which the answer converges faster, and as fast as the baseline."""
        if self.scaled is None or self.learning_rate is None or not self.scaled.learning.is_safe:
            return None
        winner, scaled = self.winner.deciding, self.scaled.deciding
        is_lower = winner is not None and scaled is not None and scaled.high < winner.other - winner.today
        return (self.learning_rate_key, self.learning_rate) if is_lower or not self.winner.learning.is_safe else None


@dataclass(frozen=True, kw_only=True)
class WholeTraining:
    """Speed of whole training over the baseline's, with all that happens between steps.

    Attributes:
        speedup: None if no pause was seen.
        seen: Kinds of pause that were seen, by the fields of `Pauses`.
    """

    speedup: Ratio | None = None
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AchievedTraining:
    """Result of one real training with an answer's values, relative to the baseline.

    Attributes:
        counted_s: Time over which its steps were counted.
        steps: Speed of its steps over the baseline's.
        whole: The same with pauses.
        pause_fraction: Share of its time outside of steps.
        is_against_training: Whether the baseline's speed is also from real trainings, not trials.
    """

    name: str
    ended_utc: str
    counted_s: float
    steps: float
    whole: float | None
    pause_fraction: float
    is_against_training: bool


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """Results of real trainings with an answer's values: means over their time.

    Attributes:
        claimed: Confirmed speed of steps, without ends of epochs.
        is_same_training: Whether it is of the answer that leaves the training unchanged, next to the best.
        outcome: ``less``, ``as`` or ``more`` than claimed: outside of its interval by more than trainings differ.
        trainings: Oldest first.
        claims_sd: As in `Conditions`.
    """

    point: str
    claimed: Ratio
    outcome: str
    counted_s: float
    steps: float
    whole: float | None
    pause_fraction: float
    trainings: tuple[AchievedTraining, ...]
    is_same_training: bool = False
    claims_sd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BrokenPoint:
    """Confirmed point that broke in its validation trial.

    Attributes:
        changes: Values that differ from the baseline's.
        speedup: Speed over the baseline's; None with too few pairs.
        validation: Findings of that trial.
    """

    changes: Values
    speedup: Ratio | None
    validation: Validation


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search, computed from the record alone.

    Attributes:
        search: Name of the search whose trials support it.
        is_apart: Whether it answers a narrower question than the study's answer, so `apply` needs its name.
        baseline: Today's config.
        best: The answer; equals the baseline if nothing better was confirmed.
        candidate: Point that was tried against today's config and not found better.
        speedup: Speed of the best (or candidate) over today's, from the confirming pairs.
        whole: The same of whole training.
        achieved: Results of real trainings with the best values.
        score_ratio: Ratio of the score.
        steadiness: Ratio of the steadiness of steps, if in the objective.
        utilization: Ratio of the GPU's utilization, if in the objective next to speed.
        smallest_gain: Smallest gain that the confirmation could have shown, e.g. 0.05.
        same_training: Best point that leaves the training unchanged, with its speed ratio.
        same_training_confirmed: That ratio by confirming pairs, next to an answer that changes the training.
        trials: Number of trials of this search.
        outcomes: Number of its trials with each ending.
        changes: Changes of the best (or candidate).
        budget_enough_s: Budget that probably suffices to settle what looks better; None if nothing is open, or if read
            from the record.
        gain_of_ten_minutes: Expected speedup of the best point in ten more minutes of search, e.g. 0.02; None if read
            from the record.
        objective: Objective of the search, which defines the score.
        why_no_gpu: Reason why utilization is not measured on this machine.
        validation: Findings of the validation trial of the best (or candidate).
        race: Race of the best (or candidate) against today's config.
        why_not_raced: Reason why an answer that changes the training was not raced.
        confirmed_on: Hosts of the machines with confirming pairs.
        broken: Points that were confirmed earlier and broke in their validation trials.
        cautions: Warnings to the reader, one sentence each.
        data: Comparison of the samples of the best (or candidate) with those of today's config.
        same_training_data: The same of `same_training`.
    """

    verdict: Verdict
    why: str
    baseline: Side | None
    best: Side | None
    candidate: Side | None = None
    speedup: Ratio | None = None
    whole: WholeTraining | None = None
    achieved: Achieved | None = None
    score_ratio: Ratio | None = None
    steadiness: Ratio | None = None
    utilization: Ratio | None = None
    smallest_gain: float | None = None
    same_training: tuple[Side, float] | None = None
    same_training_confirmed: Ratio | None = None
    trials: int
    outcomes: Mapping[str, int]
    changes: Sequence[Change]
    gain_of_ten_minutes: float | None = None
    budget_enough_s: float | None = None
    objective: str = "effective_utilization"
    why_no_gpu: str | None = None
    validation: Validation | None = None
    race: Race | None = None
    why_not_raced: str = ""
    confirmed_on: tuple[str, ...] = ()
    broken: tuple[BrokenPoint, ...] = ()
    cautions: tuple[str, ...] = ()
    data: DataFinding | None = None
    same_training_data: DataFinding | None = None
    search: str = ""
    is_apart: bool = False

    @property
    def may_learn_more_slowly(self) -> bool:
        """Whether it changes the training without a race that it did not lose, or overfitted in a race."""
        learning = self.race.winner.learning if self.race else Learning.UNKNOWN
        return (self.changes_training and not learning.is_safe) or learning is Learning.MEMORISES

    @property
    def changes_training(self) -> bool:
        """Whether it changes batch, precision, or a key of unknown effect."""
        return any(change.label != _SAME_TRAINING for change in self.changes)

    @property
    def needs_consent(self) -> bool:
        """Whether ``apply`` needs ``--all`` or the answer's name.

        Not for a confirmed answer that leaves the training unchanged, or changes only batch and precision and converges
        at least as fast in its race.
        """
        is_beyond_a_race = any(change.label not in (_SAME_TRAINING, *_RACED) for change in self.changes)
        return self.verdict is Verdict.NO_BASELINE or is_beyond_a_race or self.may_learn_more_slowly

    @property
    def applies_same_training(self) -> bool:
        """Whether ``apply`` writes the confirmed point that leaves the training unchanged instead."""
        return self.same_training_confirmed is not None and self.needs_consent

    @property
    def lacks_race(self) -> bool:
        """Whether a race could still show how fast it converges."""
        return self.why_not_raced not in ("", NO_LOSS)
