"""Records that flow between the stages of a trial: frozen, keyword-only, with units in their names.

Durations and points in time are seconds of the monotonic clock (``CLOCK_MONOTONIC``, which all processes
of a machine share) unless a name says ``utc``. Absent is None, never 0.
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
"""One value of a config: any YAML scalar."""

Count = Annotated[int, Meta(ge=0, le=1 << 53)]
PositiveCount = Annotated[int, Meta(ge=1, le=1 << 53)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Time = Annotated[float, Meta(ge=0.0, le=1e12)]
Length = Annotated[float, Meta(ge=1e-9, le=1e12)]
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]  # a trainer may say that its step was before its start
Rate = Annotated[float, Meta(ge=1e-30, le=1e18)]  # so that no ratio of two leaves what a float can hold
Amount = Annotated[float, Meta(ge=0.0, le=1e18)]
Share = Annotated[float, Meta(ge=0.0, le=1.0 + 1e-6)]  # a mean of shares may come to more than 1 by rounding
Shares = Annotated[float, Meta(ge=0.0, le=1e6)]  # sums over processes, whose kernels may run at the same time
Loss = Annotated[float, Meta(ge=-1e30, le=1e30)]
Text = Annotated[str, Meta(max_length=1_000)]
Window = tuple[Moment, Annotated[float, Meta(le=1e12)], float]
"""Numbers of a record with their least and their most, which are checked where one is read back."""

Values = Mapping[str, Scalar]
"""Knob values by dotted key path, e.g. ``{"data.batch_size": 32}``."""


class Purpose(StrEnum):
    """Reason for which a trial is made."""

    BASELINE = "baseline"  # the values that the config holds now; every score is relative to them
    EXPLORE = "explore"  # a point nobody has measured
    REPEAT = "repeat"  # a promising point, once more
    TAKE_BACK = "take back"  # the finalist, or the finalist without some of its changes: what they are worth
    CONFIRM = "confirm"  # one half of an interleaved pair
    VALIDATE = "validate"  # a longer training, through what a training does besides steps
    DIAGNOSE = "diagnose"  # part of the trainer's work is taken away; never compared with others
    RACE = "race"  # trained for as long as others, for the loss that it comes to
    TRAINING = "training"  # no trial: a real training of the user's, by `autotune run`


NOT_COMPARED = frozenset({Purpose.VALIDATE, Purpose.DIAGNOSE, Purpose.RACE, Purpose.TRAINING})
"""Purposes of trials that differ from the others: their numbers, and how they ended, say nothing about the point."""


NO_SEARCH = frozenset({Purpose.DIAGNOSE, Purpose.TRAINING})
"""Purposes of trials that are part of no search: what stands in their field ``search`` names something else."""


class Ending(StrEnum):
    """Reason for which a trial ended. Its numbers are judged separately, by `Validity`."""

    COMPLETED = "completed"  # the trainer ended by itself, exit status 0
    STOPPED = "stopped"  # we stopped it: enough was known
    CRASHED = "crashed"  # the trainer ended with an error
    OUT_OF_HOST_MEMORY = "out of host memory"
    OUT_OF_GPU_MEMORY = "out of GPU memory"
    OUT_OF_SHARED_MEMORY = "out of shared memory"  # /dev/shm, through which a loader's workers pass batches
    GPU_LOST = "GPU lost"  # or its driver: it does not answer any more
    DIVERGED = "diverged"  # the loss became NaN or infinite, or far higher than the baseline's at the same step
    HUNG = "hung"  # no step for too long: after others, or before the first one, with idle processes
    NEVER_STARTED = "never started"  # no step within trial.start_timeout_s
    NO_STEPS = "no steps seen"  # it ended by itself and reported no step
    OBSERVER_MISSING = "observer missing"  # ... and nothing inside it could have reported any
    UNCOUNTED = "steps not counted"  # enough steps came, and none of them could be measured
    KILLED_BY_BUDGET = "killed by budget"
    INTERRUPTED = "interrupted"  # ^C, or the process that owned the trial died


class Validity(StrEnum):
    """Fitness of a trial's numbers to be compared with those of others."""

    GOOD = "good"
    COLD = "cold"  # caches were still being filled
    CONTAMINATED = "contaminated"  # somebody else used the GPU
    THROTTLED = "throttled"  # heat or a power brake held the GPU's clocks down
    NOT_STEADY = "not steady"  # too few steps after warm-up for a window
    UNMEASURED = "unmeasured"  # it gave no numbers at all


DISTURBED = frozenset({Validity.CONTAMINATED, Validity.THROTTLED})
"""Something else interfered: such a trial says nothing about its point, and is worth repeating."""


class Stop(StrEnum):
    """Reason for which we stop a trial that would have gone on."""

    ENOUGH = "enough"  # the measuring window is long enough
    HOPELESS = "hopeless"  # a short look shows that it is far behind
    GPU_LOST = "GPU lost"  # its driver does not answer any more
    DIVERGED = "diverged"
    HUNG = "hung"
    NEVER_STARTED = "never started"
    UNCOUNTED = "uncounted"  # enough steps, for long enough, and none that can be measured
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
    """Hardware that the numbers depend on besides the config; trials on unlike machines are never compared.

    Attributes:
        cpu_cores: Cores that this process may use.
        cpu_model: As the kernel names it.
        memory_bytes: Memory that this process may use.
        cpu_bfloat16: Whether the CPU multiplies bfloat16 itself; else it is emulated, at a fraction of the speed.
        gpus: In the order of the driver; empty if there is none that can be seen.
        name: Name that tells it from others of its class, of 8 hex digits; empty where it does not matter.
    """

    cpu_cores: int
    cpu_model: str
    memory_bytes: int
    cpu_bfloat16: bool = False
    gpus: tuple[Gpu, ...] = ()
    name: str = ""


CODE = "code:"
"""Prefix of values that stand in the trainer's code, not in the config."""

CODE_VARIABLE = "AUTOTUNE_CODE"
"""Environment variable of a trial whose calls are made with other values than the trainer's code has."""

CALLS_MADE = "calls.made"
"""File in a trial's folder with the names of the values of `CODE_VARIABLE` that a call was made with."""

CONFIGS_VARIABLE = "AUTOTUNE_CONFIGS"
"""Environment variable of a trial whose trainer opens its configs by itself: its copies, by the user's files."""

CONFIGS_OPENED = "configs.opened"
"""File in a trial's folder that is there once one of the copies of `CONFIGS_VARIABLE` was opened."""

EACH_LOSS_VARIABLE = "AUTOTUNE_EACH_LOSS"
"""Variable that has the observer read the loss of each step, where that does not wait for an accelerator."""


class TrialPhase(StrEnum):
    """Phase of a trial that is taken through phases, to see what its speed would be without one part of its work."""

    TRAIN = "train"  # nothing is changed
    LOAD = "load"  # batches are drawn from the loader as fast as it gives them; few are trained on
    REPLAY = "replay"  # the same few batches are trained on again and again: data costs nothing


class DataEffect(StrEnum):
    """Effect of a change on the data that are trained on, as the samples of trials show it."""

    SAME = "same data"
    BATCH = "batch"  # another number of samples per update
    DIFFERENT = "different data"
    UNVERIFIED = "not verified"


@dataclass(frozen=True)
class DataFinding:
    """What the samples of a trial show, compared with those of today's config.

    Attributes:
        evidence: In words, without a full stop.
    """

    effect: DataEffect
    evidence: Text


DATA_KEY_VARIABLE = "AUTOTUNE_DATA_KEY"
"""Key of the hashes of samples, which trials of one search have in common."""

WHEREABOUTS_VARIABLE = "AUTOTUNE_WHEREABOUTS"
"""Variable that has the observer report in which lines of the trainer's own its loop stays."""

PHASE_VARIABLE = "AUTOTUNE_PHASE_S"
"""Variable that has the observer take a trial through phases, each of so many seconds."""

FIRST_PHASE = TrialPhase.REPLAY
"""Phase that each round begins with. Loading comes after it and empties the buffers that have filled meanwhile, so that
training goes on with them as they would be."""

PAUSES = frozenset({"eval", "checkpoint"})
"""Kinds of event whose time is not training. The end of an epoch is no pause: to refill the pipeline is a cost
of the config."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Rank of a process in a training of several.

    Attributes:
        number: From 0.
        world: Number of ranks.
        local: Rank within its node; None if unknown.
        node: Name of the node.
        is_joined: Whether its framework has joined the ranks; else only the variables of a launcher say so.
    """

    number: Count
    world: Annotated[int, Meta(ge=1, le=1 << 16)]
    local: Count | None = None
    node: Annotated[str, Meta(max_length=255)] = ""
    is_joined: bool = False


RANK_STEP = "rank_step"
"""Kind of the event that is a step of one rank; ``step`` is one of the whole training."""


@dataclass(frozen=True, kw_only=True)
class TraineeEvent:
    """Event that a training process reported about itself: one line of its step file.

    Attributes:
        kind: ``start`` (the header of a stream), ``step``, ``loss``, ``epoch_end``, ``eval``, ``checkpoint``,
            ``sync``, ``note``, ``stages``, ``reporter`` (the trainer has imported what reports its own steps),
            ``unseen`` (it trains, and none of its steps can be seen), ``files`` (modules that it has loaded), ``begin``
            (of the first step, its batch included), or of a trial that is taken through phases ``phase`` (one begins),
            ``load`` (batches were drawn and not trained on), ``unphased`` (that cannot be done with this trainer) and
            ``in_force`` (what the frameworks are set to), or ``cost`` (what recurs besides the arithmetic of steps);
            readers ignore kinds they do not know. Of a training of several ranks: ``rank`` (which of them a process
            is), ``own`` (its time outside of the exchange of gradients) and ``rank_step`` (a step of one rank).
            ``launched`` comes from the runner, when the process has begun that it may have prepared a warm interpreter
            for.
        stream: The process and its loop that wrote it, ``<pid>.<n>``, e.g. ``"4711.0"``.
        wait_s: Of a step: seconds that the loop waited for data; None if not known.
        samples: Of a step: valid samples in the batch; of the end of a pass, those in it; None if not known.
        work: Of a step: valid frames or tokens in the batch; None if not known.
        update: Of a step: whether the optimizer's update is part of it, as far as is known; False where gradients are
            only accumulated.
        loss: The loss, where it was available; may be NaN or infinite. Of ``eval`` that of the evaluation.
        devices: Of a start: UUIDs of the accelerators that the process reports to use, perhaps only prefixes of them.
        text: Of a note, or of ``unseen``, ``unphased`` and ``cost`` the reason: its text, printable and on one line.
        stages: Of ``stages``: the times of the pipeline's two stages so far.
        duration_s: Of ``eval``, ``checkpoint`` and ``load``: seconds that it took, up to its time; None if not known.
            Of ``cost`` those of all of its kind and place so far; of a ``stay`` its own.
        cost: Of ``cost``: its kind, ``trace``, ``compile``, ``python``, ``workers``, or ``stay`` (of the loop in a
            line).
        place: Of ``cost``: file, line and name, in the trainer's own code where it is known.
        times: Of ``cost``: how often so far.
        phase: Of ``phase``: the phase that begins; None if it is none that is known.
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

    @property
    def pid(self) -> int:
        """Id of the process that wrote it."""
        return int(self.stream.partition(".")[0])


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """Plan of one trial: everything needed to make it; printing it is the dry run.

    Attributes:
        trial_id: Unique name of the trial, carried by all its processes in ``AUTOTUNE_TRIAL_ID``.
        folder: The trial's own folder; nothing the trial is told to write lies outside.
        config_text: The trial's own copy of the config.
        further_configs: The trial's own copies of further configs, by the names of their files.
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
    """End of a trial's processes; `autotune.trial.outcome` decides what it means.

    Attributes:
        exit_code: Exit status of the trainer, negative for a signal; None if it could not be learned.
        stop: Reason for which we stopped it; None if it ended by itself.
        stderr_tail: The last lines that the trainer wrote to stderr.
        cpu_s: CPU time of the trainer and its reaped children.
        oom_killed: Whether the kernel's out-of-memory counter increased during the trial; None if unreadable.
        left_pids: Processes that could not be killed (uninterruptible sleep).
        waited_for: What it still waited for when it was stopped before its process was started; empty if it was.
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
    """Figures of one GPU over a stretch of time: of a trial, of all trials of a point, or of a monitor's last minute.

    The one list of what is measured of a GPU; the records of each stage hold one of these as their ``figures``.
    Shares are 0..1 of the stretch; None is "not known", never 0.

    Attributes:
        uuid: UUID of the GPU; that of a MIG instance for an instance.
        name: Name that the driver gives it.
        utilization: Share of time in which at least one kernel ran.
        covered_fraction: Share of the stretch that driver windows cover.
        memory_total_bytes: Memory of the device.
        peak_memory_bytes: Most memory in use by all processes; of a trial, from its start on.
        power_w: Mean electric power.
        energy_j: Energy drawn over the stretch.
        sm_activity: Share of the multiprocessors' time that was used; of Hopper and later.
        tensor_activity: The same of the tensor cores.
        dram_activity: The same of the memory's bandwidth.
        own_fraction: Share of time in which kernels of the trial's own processes ran.
        foreign_fraction: The same of other processes. Both are sums over processes, which may overlap.
        throttled_fraction: Share of the readings with a reason of `throttling.THROTTLING`: heat or a power brake.
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
    """Work of a GPU, where data and model have one each."""

    DATA = "data"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class GpuMeasurement:
    """Measurement of one GPU over the steady window of a trial.

    Attributes:
        figures: Figures over the window; no utilization where that of the window is not to be relied on.
        scored: Whether it is one that the score looks at: the model's, where the data has another.
        busy_windows: The driver windows wholly inside, each (end in seconds from the start of the window, length in
            seconds, share of it in which a kernel ran): what the trials of a point are pooled from.
        role: Its work where the config gives data and model a GPU each; else None.
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
        number: Its number, from 0.
        node: Name of its node.
        step_s: Median time of its steps.
        data_wait_fraction: Share of the time that it waited for data; None if not reported.
        own_fraction: Share of the time outside of the exchange of gradients, waiting for data included; None if that is
            not seen.
    """

    number: Count
    node: Annotated[str, Meta(max_length=255)]
    step_s: Time
    data_wait_fraction: Share | None = None
    own_fraction: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """What a training does between its steps: evaluations, checkpoints and the ends of epochs, over a stretch of it.

    Attributes:
        epoch_ends: Number of passes over the data that ended.
        evaluations: Number of evaluations.
        checkpoints: Number of checkpoints that were written.
        time_s: Time of all of them, beyond that of usual steps.
        samples: Samples that were trained on up to the last of them, as the speed counts them.
        in_window_s: Part of their time that lies in the window of the trial's speed: that of ends of epochs.
    """

    time_s: Time
    samples: Rate
    epoch_ends: Count = 0
    evaluations: Count = 0
    checkpoints: Count = 0
    in_window_s: Time = 0.0

    @property
    def count(self) -> int:
        """Number of all of them."""
        return self.epoch_ends + self.evaluations + self.checkpoints

    @property
    def kinds(self) -> frozenset[str]:
        """Names of those that there were, as `PAUSE_NOUNS` has them."""
        return frozenset(kind for kind in PAUSE_NOUNS if getattr(self, kind))


PAUSE_FIELDS: Mapping[str, str] = {"epoch_end": "epoch_ends", "eval": "evaluations", "checkpoint": "checkpoints"}
"""Fields of `Pauses` and of `Validation` that count each kind of event."""

PAUSE_NOUNS: Mapping[str, tuple[str, str]] = {
    "epoch_ends": ("end of an epoch", "ends of epochs"),
    "evaluations": ("evaluation", "evaluations"),
    "checkpoints": ("checkpoint", "checkpoints"),
}
"""Words for one and for several of each, by these fields."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Numbers of one trial over its steady state.

    Attributes:
        speed_error: Relative standard error of the speed, as far as the steps of this trial tell.
        cycles: Whole cycles in the window, where training stops and goes; None where its steps are of one kind.
        beat_s: Usual time of such a cycle; None where none was seen whole.
        stall_fraction: Share of the window that steps took beyond the median, those of more than three medians.
        stall_wait_fraction: Share of these steps' time that the training loop waited for data; None if not reported.
        stall_epoch_fraction: Share of their time that those took at which a pass over the data ended; None without any.
        pauses: What it came to between its steps; None where it trained on after none.
        cv: Coefficient of variation of the steps' time per unit of work; None if not known.
        data_wait_fraction: Share of the window the training loop waited for data; None if not reported.
        first_step_s: From the start of the process to the end of its first step.
        setup_s: From there to the begin of that: imports, the model, opening the data; None if not known.
        first_batch_s: Time of the first step that it waited for its batch; None if not known.
        cpu_cores: CPU time of the trial's processes over the window, in cores; None if not sampled.
        gpu_utilization: Share of time in which a kernel ran, 0..1, mean of the scored GPUs; None means not measured.
        gpu_memory_bytes: Most memory that was in use on one of the GPUs; None means not measured.
        filled_samples_per_s: Estimated throughput once the caches are filled (the throughput without waiting for data),
            where the trial's caches were still being filled; None otherwise.
        energy_per_sample_j: Energy that the GPUs drew for each sample; None means not measured.
        gpus: Measurements of each GPU, in the order in which the trial sees them; empty means not measured.
        stages: Times of the two stages of a pipeline over two devices; None where the trainer reports none.
        ranks: Measurements of each rank of a training of several processes; empty for one.
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
        """Figures of the GPU with the largest share of its memory in use; None if no GPU reports both figures."""
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
        """Share of the window that is of steps, without what the ends of epochs in it took."""
        return 1.0 if self.pauses is None else 1.0 - self.pauses.in_window_s / self.window_s

    @property
    def sample_s(self) -> float:
        """Mean time of a sample by `speed`, without what the ends of epochs in the window took."""
        return self.step_fraction / self.speed

    @property
    def overall_samples_per_s(self) -> float | None:
        """Samples per second of whole training, with all that comes between its steps; None where nothing came."""
        return None if self.pauses is None else 1.0 / (self.sample_s + self.pauses.time_s / self.pauses.samples)

    def __post_init__(self) -> None:
        if not (0 < self.window_s < math.inf and 0 < self.samples_per_s < math.inf):
            raise ValueError(f"a measurement needs a window and samples, got {self.window_s} s")
        if self.pauses is not None and not self.pauses.in_window_s < self.window_s:
            raise ValueError(f"a window of {self.window_s} s holds more than pauses, got {self.pauses.in_window_s} s")


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Findings of a validation trial: a longer training of a point that was confirmed, or of the baseline.

    Attributes:
        trained_s: Time from the first step to the end.
        epoch_ends: Number of passes over the data that ended.
        evaluations: Number of evaluations (validation of the model, in the field's other sense of the word).
        checkpoints: Number of checkpoints that were written.
        speed_ratio: Speed over that of the baseline's validation trial; None for the baseline, or if not known.
        overall_ratio: The same from the first step to the end, with all that comes between steps: evaluations,
            checkpoints, the ends of epochs.
        loss_ratio: Loss relative to where it began, over the baseline's after as many updates (or samples, if that is
            less); None for the baseline, or if one of them reports too few losses.
        losses: Its loss after as many steps as the baseline's, and the baseline's, on batches of the same size; None
            as for ``loss_ratio``.
        memory_growth_bytes_per_s: Growth of host memory, where it went on until the end; 0 where it did not; None if
            it was not measured for long enough.
        gpu_memory_growth_bytes_per_s: The same of the memory of the fullest GPU.
        broke: Reasons for not recommending the point, one clause each; empty if it held.
        remarks: What the training did not come to, or does with the baseline's values as well; one clause each.
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
    """Losses of one training over time, each the mean over one of equal stretches of it.

    Attributes:
        ends_s: Ends of the stretches in which a loss came, in seconds from the first step, increasing.
        losses: Mean loss of each.
        samples: Samples that training had gone through by each end; empty where its steps do not tell them.
    """

    ends_s: Annotated[tuple[float, ...], Meta(max_length=10_000)]
    losses: tuple[float, ...]
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.ends_s) or len(self.samples) not in (0, len(self.ends_s)):
            raise ValueError("a loss curve has as many losses as ends")
        if any(later <= earlier for earlier, later in pairwise((0.0, *self.ends_s))):
            raise ValueError("a loss curve goes on in time")
        if not all(map(math.isfinite, (*self.ends_s, *self.losses, *self.samples))):
            raise ValueError("a loss curve is finite")


class RaceArm(StrEnum):
    """Config that takes part in a race."""

    BASELINE = "baseline"
    WINNER = "winner"
    SCALED = "winner with the learning rate scaled"


@dataclass(frozen=True, kw_only=True)
class RaceLeg:
    """Training of one config in a race.

    Attributes:
        pair: Number of the round, from 0; each config trains once in it, with the same seed.
        trained_s: Time from its first step to its end.
        curve: Its losses; None where too few were seen.
        first_loss: Mean of its first few losses; None without.
        seed: Seed that it was given; None where no key of the config says one.
        learning_rate_key: Key of the config that holds the learning rate; empty where none is known.
        learning_rate: Learning rate that it was given; None where it was that of the config.
        checkpoint: Name of the checkpoint of which it was given a copy to start from; empty without one.
        resumed: Whether it went on from that.
        update_samples: Samples in an update of the weights; None where its steps do not tell them.
        epoch_samples: Samples from one end of an epoch to the next; None where two were not seen.
        evaluation_loss: Loss of its latest evaluation; None where none was seen.
        held_out: Losses of its latest evaluations, each at the time at which it began; None without.
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
"""Prefix of stored conditions that hold the version of a framework."""


@dataclass(frozen=True, kw_only=True)
class GpuConditions:
    """GPUs that a trial could use, over its steady window.

    Attributes:
        driver: Version of their driver; None if it is unknown.
        readings: State of each GPU by name, e.g. ``gpu0.sm_clock_mhz`` and ``gpu0.temperature_end_c``.
        not_measured: Reason, for people, why the trial's utilization is unknown; None if it is known.
    """

    driver: str | None
    readings: Mapping[str, Scalar]
    not_measured: str | None


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Everything that the numbers of a trial, and their judgement, depend on besides its values.

    Attributes:
        autotune: Version of autotune.
        host: Name of the machine's host, for people.
        machine: Name of the machine, see `Machine.name`; None if it does not matter.
        gpus: Names of the machine's GPUs, commas between; None without any.
        frameworks: Version of each framework, by its package.
        gpu: The GPUs during the trial; None if they were not watched.
        validate_s: Longest training of a validation trial of its search; None if the answer is not to be validated.
        document: Hash of the training that its config describes, knobs left out.
        changes: Kinds of change of the training that its point makes against its search's baseline.
        allowed_changes: Kinds of change that the user has allowed its search.
        outside_answer: Point of the study's current answer, if the config's own domains do not have it any more.
        left_out_answer: Point of the study's current answer, if a limit of its search leaves that out.
        until_step: Step up to which each point of its search is measured, where steps get slower; None where not.
        pairs_planned: Most pairs of a sequential confirmation: the intervals that it is judged by depend on it.
        claims_sd: By how much earlier claims of its study had missed what trainings achieved, beyond their intervals,
            as a standard deviation of ln speed: the intervals that it is judged by are wider for it; None for nothing.
        alone: Whether trials on this machine's other GPUs waited meanwhile; None if there were none.
        unheeded: Knobs that it never read, so that their values had no effect.
        no_loss: True if its trainer reported no loss that could be seen; None if it did, or that is not known.
        free_data_ratio: Of a trial in phases: speed with data that costs nothing over that of training.
        free_data_ratio_high: Upper end of that ratio's interval.
        free_step_ratio: Speed of the loader alone over that of training.
        free_step_ratio_high: Upper end of that ratio's interval.
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
        """Return them as they are stored: scalars by name, without unknown ones."""
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
"""Separators of the conditions that are stored as one text."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One finished trial, as the study keeps it.

    Attributes:
        number: Position in the study, from 0.
        point: Name of the point: a hash of its values.
        pair: Of a confirming trial: index of its pair, from 0; None otherwise.
        duration_s: Time from the decision to start it until the last process was gone, without the time that it took
            to start a zygote.
        detail: One line on the ending, e.g. the exception's class and message.
        validation: Of a validation trial: its findings; None otherwise, and where it was cut short.
        race: Of a trial of a race: how its loss went; None otherwise, and where it was cut short.
        code: Digest of each of the project's own files that the trainer loaded, by its path from the folder of the
            command; empty where none is known. Trials are compared only with those of the same code.
        data: How the samples that it trained on compare with today's; None where that was not looked at.
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
        """Return whether all files that both trials loaded were the same."""
        return all(other.code.get(name, digest) == digest for name, digest in self.code.items())

    def as_stored(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {**asdict(self), "conditions": self.conditions.as_stored()}

    @property
    def machine(self) -> str:
        """Name of the machine that it was made on: the host's where it has no other."""
        return self.conditions.machine or self.conditions.host or ""

    @property
    def comparable(self) -> Measurement | None:
        """The measurement if it is fit to be compared with others, else None.

        A validation trial is longer than the others, and holds what they stop in front of; one of a diagnosis does
        not do all the work.
        """
        is_fit = self.validity is Validity.GOOD and self.purpose not in NOT_COMPARED
        return self.measurement if is_fit else None


_SAME_TRAINING = "same training"  # label of `space.knob`
_RACED = ("batch", "precision")  # labels of changes of which a race tells whether training learns as fast

NO_LOSS = "the trainer reports no loss that can be seen"
"""Reason for which no race can show how an answer learns."""


class Verdict(StrEnum):
    """Verdict of a search."""

    BETTER = "better"
    STEADIER = "steadier"  # as fast, with evener steps or a busier GPU
    NO_CHANGE = "no_change"
    NO_BASELINE = "no_baseline"


CONFIRMED = (Verdict.BETTER, Verdict.STEADIER)
"""Verdicts that a change of the config follows from."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % confidence interval; 1.0 means no difference.

    Attributes:
        ratio: The ratio.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PooledGpu:
    """One GPU over all comparable trials of a point; `metrics.GPU_METRICS` describes its numbers.

    Utilization and what is derived from it are None as long as too little of it was seen; `text` says how much is
    missing.

    Attributes:
        figures: Figures over all trials.
        scored: Whether it is one that the score looks at.
        text: Its utilization for people: ``2-40 % cyclic, period 2.1 s``, ``not enough yet: 34 of 60 driver samples``
            or ``not measured``.
        verdict: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        meaning: Usual cause of that pattern, and its usual remedy.
        samples: Number of driver windows, over all trials.
        p10: Utilization that at least a tenth of the time covered is at or below.
        idle_fraction: Share of this time in driver windows that were busy for less than a tenth.
        duty_fraction: Share of this time at the high level; None also where the two levels are as good as one.
        low: The lower of the two levels between which utilization moves.
        high: The upper one.
        period_s: Length of a cycle; None unless the verdict is ``cyclic``.
        energy_per_sample_j: Energy that this GPU drew for each sample.
        role: Its work, ``data`` or ``model``, where the config gives them a GPU each.
        reference: Utilization that is stated for a GPU of that role, least and most; None without one.
        against_reference: Whether its utilization is ``below``, ``within`` or ``above`` that; None if it is not known.
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
        """Return a field of this record or of its figures by its name."""
        return getattr(self.figures if hasattr(self.figures, name) else self, name)


@dataclass(frozen=True, kw_only=True)
class PooledGpus:
    """GPUs of a point over all its comparable trials.

    Attributes:
        devices: The GPUs in the order in which the trials see them.
        utilization: Mean utilization of the scored ones; None unless it is known of each.
        effective_utilization: Share of what the GPUs have shown to be able to do that training really uses; None while
            the study does not know that. Above 1 by as much as the study's limit, a lower bound, is too low.
    """

    devices: tuple[PooledGpu, ...]
    utilization: float | None = None
    effective_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison: a point, its pooled metrics by name, and its GPUs; None where none was measured.

    A trainer with a pipeline over two devices also has the times of its two stages.

    Attributes:
        point: Its name, see `space.point_name`: values alone do not say what the keys hold that move along.
        values: Value of each knob, by its key path.
        metrics: Its numbers, by the names of `metrics.METRICS`.
        gpus: Its GPUs.
        stages: Times of the two stages of a pipeline over two devices.
        ranks: Its ranks, where training has several.
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
        path: Its path.
        old: Value in today's config.
        new: Value in the point.
    """

    path: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, kw_only=True)
class Change:
    """One knob that a point changes against today's config, and what that is worth.

    Attributes:
        path: Key path of the knob.
        old: Value in today's config.
        new: Value in the point.
        worth: Speed of the point over its speed with this change taken back, or its whole group, and what does not work
            without it; None where no trial shows it.
        group: Changes with the same number are worth that together: the trials do not tell them apart.
        needed: Whether the trainer failed without it.
        label: What it means for training: ``same training``, ``batch``, ``precision`` or ``unknown``.
        effective_batch: What it makes of the effective batch, in words; empty where it leaves that alone.
        along: Further keys that change with it; empty also where the config's present knobs do not tell.
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
        path: Its path.
        old: Value that it was judged against; None also where that is not known.
        new: Value that is written, which may be the old one: the whole point was judged.
        label: What the change means for training, as of `Change`.
    """

    path: str
    old: Scalar
    new: Scalar
    label: str


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """Changes to a config as they were judged: all that `apply`, the daemon and its page ever write.

    Attributes:
        study: Name of the study.
        search: Name of the search that judged them.
        point: Name of the point.
        keys: Every key that the point sets.
        document: Hash of the training that the config describes, knobs left out; None where it is not on record.
        code: Digests of the trainer's files, see `TrialRecord.code`.
        speedup: Confirmed speed over that of the config as it was; None where it was not confirmed.
        allowed: Kinds of change of the training that the user had allowed that search.
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
        """Name by which it is asked for again: a hash of all that it holds."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def values(self) -> dict[str, Scalar]:
        """The values that are written, by key."""
        return {key.path: key.new for key in self.keys}


class Learning(StrEnum):
    """Judgement of a race: how fast a config learns, beside today's."""

    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "alike"
    UNKNOWN = "cannot be told"
    MEMORISES = "memorises: not comparable"

    @property
    def is_safe(self) -> bool:
        """True if the race has shown that it does not learn more slowly."""
        return self in (Learning.FASTER, Learning.ALIKE)


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Difference of two losses, that of today's config subtracted, with its 97.5 % confidence interval.

    Attributes:
        today: Mean loss of today's config.
        other: Mean loss of the other.
        low: Lower end of the interval of their difference.
        high: Upper end.
    """

    today: float
    other: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """True if the interval leaves out zero."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, kw_only=True)
class Raced:
    """Comparison of a config with today's by their losses, after equal time of training.

    Attributes:
        learning: Judgement.
        at_equal_time: Losses after equal time; None where they cannot be compared.
        at_equal_samples: Losses after equally many samples; None where steps do not tell them.
        held_out: Losses of evaluations after equal time, which then decide; None where not all trainings came to two.
        after_s: Time after which its losses are compared; None for that of the race.
        why: Reason for which it cannot be told, or is not comparable, one clause; empty where the interval says it.
        learning_speed: Time that today's config takes to a loss over the time that this one takes to it; None where
            neither came to the other's, or that is no learning.
        needed_s: Training time after which a race would tell what this one leaves open; None where it would not, or
            there is nothing left open.
        diverged: Whether a training of it ended with losses that are no numbers.
        evaluation_losses: Mean loss of the latest evaluations, of today's config and of this one; None where not all
            trainings came to one.
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
        """Losses that decide: those of evaluations where they are known."""
        return self.at_equal_time if self.held_out is None else self.held_out


@dataclass(frozen=True, kw_only=True)
class Race:
    """Race of an answer against today's config.

    Attributes:
        winner: How the answer came out.
        scaled: How it came out with the learning rate scaled with the batch; None where that was not raced.
        trained_s: Time that all of its trainings took from their first steps.
        pairs: Number of rounds.
        checkpoint: Name of the checkpoint that the trainings went on from; empty where they began from scratch.
        why_unknown: Reason for which the losses cannot be compared, one clause; empty if they can.
        learning_rate_key: Key of the config that holds the learning rate; empty where none was scaled.
        learning_rate: The scaled learning rate; None where none was.
        cautions: What the race shows besides, one sentence each.
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
        """Key and value of the learning rate that is proposed with the answer; None where none is.

        It learns as fast as today's config at least; and where the answer does so with the rate as it is, its loss is
        lower than the answer's by more than can be chance.
        """
        if self.scaled is None or self.learning_rate is None or not self.scaled.learning.is_safe:
            return None
        if self.winner.learning.is_safe and not self._is_lower_when_scaled():
            return None
        return self.learning_rate_key, self.learning_rate

    def _is_lower_when_scaled(self) -> bool:
        winner, scaled = self.winner.deciding, self.scaled.deciding if self.scaled else None
        return winner is not None and scaled is not None and scaled.high < winner.other - winner.today


@dataclass(frozen=True, kw_only=True)
class WholeTraining:
    """Speed of whole training over today's, with all that comes between its steps.

    Attributes:
        speedup: Its ratio; None where trials and trainings have come to nothing between their steps.
        seen: Kinds of pause that they have come to, by the fields of `Pauses`.
    """

    speedup: Ratio | None = None
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AchievedTraining:
    """What one real training achieved with an answer's values, over today's config.

    Attributes:
        name: Its name in the study.
        counted_s: Time over which its steps were counted.
        steps: Speed of its steps over today's.
        whole: Speed with all that comes between its steps over today's; None where that is not known of both.
        pause_fraction: Share of its time that was none of steps.
        is_against_training: Whether today's speed is that of real trainings too, and not that of trials.
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
    """What real trainings achieved with an answer's values, over today's config: means over their time.

    Attributes:
        point: Name of the point that has these values.
        claimed: Speed of steps that confirming pairs had shown for these values, without the ends of epochs in them.
        is_same_training: Whether it is of the answer that leaves the training unchanged, beside the best.
        outcome: ``less``, ``as`` or ``more``, than was claimed: outside its interval by more than trainings differ.
        trainings: Each of them, oldest first.
        claims_sd: By how much claims of the study have missed what trainings achieved, beyond their intervals, as a
            standard deviation of ln speed; later intervals are wider for it.
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
    """Point that was confirmed, and broke in its validation trial.

    Attributes:
        changes: Its values, as far as they differ from those of the baseline.
        speedup: Its speed over the baseline's, from the confirming pairs; None if these were too few.
        validation: Findings of the validation trial.
    """

    changes: Values
    speedup: Ratio | None
    validation: Validation


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search, worked out from the record alone.

    Attributes:
        search: Name of the search by whose trials it stands.
        is_apart: Whether it answers a narrower question than the study's own answer, so that `apply` has to be told its
            name.
        baseline: Today's config.
        best: The answer; equals the baseline if nothing better was confirmed.
        candidate: What was tried against today's config and not found better.
        speedup: Speed of the best (or the candidate) over today's, from the confirming pairs.
        whole: The same for whole training, with all that comes between steps; None without a speedup.
        achieved: What real trainings with the best values achieved; None where none was counted.
        score_ratio: The same for the score.
        steadiness: The same for the steadiness of steps; None where it is not known, or no part of the objective.
        utilization: The same for the GPU's utilization, where it is part of the objective beside speed.
        smallest_gain: The smallest gain that the confirmation could have shown, e.g. 0.05; None without one.
        same_training: The best point that leaves the training itself unchanged, with its speed ratio.
        same_training_confirmed: That ratio by confirming pairs, beside an answer that changes the training; None where
            it was not confirmed.
        trials: Number of trials of this search.
        outcomes: How often each ending came in this search.
        changes: What the best (or candidate) changes.
        budget_enough_s: Budget that is probably enough to confirm what looks better, or to tell; null where nothing is
            open, or where the answer was read from the record.
        gain_of_ten_minutes: How much faster the best point would get on average in ten more minutes of searching, e.g.
            0.02; None if that is not known (the answer was read from the record).
        objective: What was searched for, as the config names it: the score is made of that.
        why_no_gpu: Why utilization is not measured on this machine; None if it is.
        validation: Findings of the validation trial of the best (or candidate); None if there was none.
        race: How the best (or candidate) learns, beside today's config; None where that was not raced.
        why_not_raced: Reason for which an answer that changes the training was not raced; empty else.
        confirmed_on: Host of each machine whose pairs compared the best (or candidate) with today's config.
        broken: Points that were confirmed before it, and broke in their validation trials.
        cautions: What was found on the way that the reader of the answer should know, one sentence each.
        data: What the samples of the best's (or candidate's) trials show, compared with those of today's config; None
            where none were compared.
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
        """True if it changes the training, and no race has shown that it learns as fast.

        Also true of what is called the same training, if its race shows that it memorises.
        """
        is_safe = self.race is not None and self.race.winner.learning.is_safe
        return (self.changes_training and not is_safe) or self._memorises

    @property
    def changes_training(self) -> bool:
        """True if it changes the training itself: its batch, its precision, or a key whose effect is not known."""
        return any(change.label != _SAME_TRAINING for change in self.changes)

    @property
    def needs_consent(self) -> bool:
        """True if ``apply`` writes the answer only with ``--all`` or by its name: the one rule for search and apply.

        Without that it writes what was confirmed and leaves the training unchanged, or changes no more of it than the
        batch and the precision and did not lose its race. No race stands in for the same data.
        """
        is_beyond_a_race = any(change.label not in (_SAME_TRAINING, *_RACED) for change in self.changes)
        return self.verdict is Verdict.NO_BASELINE or is_beyond_a_race or self.may_learn_more_slowly

    @property
    def applies_same_training(self) -> bool:
        """True if ``apply`` writes the point that leaves the training unchanged, which was confirmed beside it."""
        return self.same_training_confirmed is not None and self.needs_consent

    @property
    def lacks_race(self) -> bool:
        """True if a race could still show how it learns."""
        return self.why_not_raced not in ("", NO_LOSS)

    @property
    def _memorises(self) -> bool:
        return self.race is not None and self.race.winner.learning is Learning.MEMORISES
