"""The records that flow between the stages of a trial: frozen, keyword-only, units in their names.

Durations and points in time are seconds of the monotonic clock (``CLOCK_MONOTONIC``, which all processes
of a machine share) unless a name says ``utc``. Absent is None, never 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Scalar = bool | int | float | str | None
"""One value of a config: what a YAML scalar can be."""

Values = Mapping[str, Scalar]
"""Knob values by dotted key path, e.g. ``{"data.batch_size": 32}``."""


class Purpose(StrEnum):
    """Why a run is made."""

    TODAY = "today"  # what the config holds now: the unit of everything
    EXPLORE = "explore"  # a point nobody has measured
    REPEAT = "repeat"  # a promising point, once more
    CONFIRM = "confirm"  # one half of an interleaved pair


class Ending(StrEnum):
    """Why a run ended. Whether its numbers may be compared is its `Validity`."""

    COMPLETED = "completed"  # the trainer ended by itself, exit status 0
    STOPPED = "stopped"  # we stopped it: enough was known
    CRASHED = "crashed"  # the trainer ended with an error
    OUT_OF_HOST_MEMORY = "out of host memory"
    OUT_OF_GPU_MEMORY = "out of GPU memory"
    GPU_LOST = "GPU lost"  # or its driver: nothing of it answers any more
    DIVERGED = "diverged"  # the loss became NaN or infinite, or far higher than today's at the same step
    HUNG = "hung"  # steps came, then none for too long
    NEVER_STARTED = "never started"  # no step within run.start_timeout_s
    NO_STEPS = "no steps seen"  # it ended by itself and reported no step
    OBSERVER_MISSING = "observer missing"  # ... and nothing inside it could have reported any
    KILLED_BY_BUDGET = "killed by budget"
    INTERRUPTED = "interrupted"  # ^C, or the process that owned the run died


class Validity(StrEnum):
    """Whether the numbers of a run are fit to be compared with others."""

    GOOD = "good"
    COLD = "cold"  # caches were still being filled
    CONTAMINATED = "contaminated"  # somebody else used the GPU
    THROTTLED = "throttled"  # heat or a power brake held the GPU's clocks down
    NOT_STEADY = "not steady"  # too few steps after warm-up for a window
    UNMEASURED = "unmeasured"  # it gave no numbers at all


DISTURBED = frozenset({Validity.CONTAMINATED, Validity.THROTTLED})
"""Something else was in the way: such a run says nothing about its point, and is worth making again."""


class Stop(StrEnum):
    """Why we stop a run that would have gone on."""

    ENOUGH = "enough"  # the measuring window is long enough
    HOPELESS = "hopeless"  # a short look shows that it is far behind
    GPU_LOST = "GPU lost"  # its driver gives nothing any more
    DIVERGED = "diverged"
    HUNG = "hung"
    NEVER_STARTED = "never started"
    DEADLINE = "deadline"  # the budget's wall
    GUARD_LOST = "guard lost"  # the process that guards the runs died; what it left was swept


class Verdict(StrEnum):
    """What a search says in the end."""

    BETTER = "better"
    NO_CHANGE = "no_change"
    NO_BASELINE = "no_baseline"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of the machine."""

    name: str
    uuid: str
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the numbers depend on besides the config: runs on unlike machines are never compared.

    Attributes:
        cpu_cores: Cores that this process may use.
        cpu_model: As the kernel names it.
        memory_bytes: Memory that this process may use.
        cpu_bfloat16: Whether the CPU multiplies bfloat16 itself; else it is emulated, at a fraction of the speed.
        gpus: In the order of the driver; empty if there is none that can be seen.
    """

    cpu_cores: int
    cpu_model: str
    memory_bytes: int
    cpu_bfloat16: bool = False
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TraineeEvent:
    """One line that a training process wrote about itself.

    Attributes:
        kind: ``start`` (the header of a stream), ``step``, ``loss``, ``epoch_end``, ``eval``, ``checkpoint``,
            ``sync`` or ``note``; readers ignore kinds they do not know.
        t_s: When it happened.
        stream: Which process and which of its loops wrote it, e.g. ``"4711.0"``.
        wait_s: Of a step: how long the loop waited for data; None if not known.
        samples: Of a step: valid samples in the batch; None if not known.
        work: Of a step: valid frames or tokens in the batch; None if not known.
        loss: The loss, where it was to be had; may be NaN or infinite.
        devices: Of a start: UUIDs of the accelerators that the process says it uses, perhaps only how they begin.
        text: Of a note: what it says, printable and of one line.
    """

    kind: str
    t_s: float
    stream: str
    wait_s: float | None = None
    samples: float | None = None
    work: float | None = None
    loss: float | None = None
    devices: tuple[str, ...] = ()
    text: str | None = None

    @property
    def pid(self) -> int:
        """The process that wrote it."""
        return int(self.stream.partition(".")[0])


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything needed to make one run; printing it is the dry run.

    Attributes:
        run_id: Unique name of the run, carried by all its processes in ``AUTOTUNE_RUN_ID``.
        folder: The run's own folder; nothing the run is told to write lies outside.
        argv: The command, placeholders filled in.
        cwd: Where the user typed the search.
        env: What is added to the environment of the search.
        config_text: The run's own copy of the config.
    """

    run_id: str
    folder: Path
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    config_text: str


@dataclass(frozen=True, kw_only=True)
class TrialExit:
    """How a run's processes ended; what it means is decided in `autotune.trial.outcome`.

    Attributes:
        started_s: When the process was started.
        ended_s: When the last of its processes was gone.
        exit_code: Exit status of the trainer, negative for a signal; None if it could not be learned.
        stop: Why we stopped it; None if it ended by itself.
        stderr_tail: The last lines that the trainer wrote to stderr.
        cpu_s: CPU time of the trainer and its reaped children.
        peak_memory_bytes: Largest resident set of the trainer or one of its reaped children.
        oom_killed: Whether the kernel's out-of-memory counter moved during the run; None if unreadable.
        left_pids: Processes that could not be killed (uninterruptible sleep).
    """

    started_s: float
    ended_s: float
    exit_code: int | None
    stop: Stop | None
    stderr_tail: str = ""
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_killed: bool | None = None
    left_pids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpuMeasurement:
    """What one GPU showed over the steady window of a run.

    Attributes:
        uuid: Its UUID; that of a MIG instance for an instance.
        name: As the driver names it.
        scored: Whether it is one that the score looks at: the model's, where the data has another.
        utilization: Share of the window in which a kernel ran, 0..1; None means not measured.
        covered_fraction: Share of the window that driver windows cover.
        busy_windows: The driver windows wholly inside, each (end in seconds from the start of the window, length in
            seconds, share of it in which a kernel ran): what the runs of a point are pooled from.
        peak_memory_bytes: Most memory in use by all, from the start of the run.
        energy_j: Drawn over the window.
        sm_activity: Share of the multiprocessors' time that was used; of Hopper and later.
        tensor_activity: The same of the tensor cores.
        dram_activity: The same of the memory's bandwidth.
        foreign_fraction: Share of the window in which somebody else's kernels ran; None where that cannot be known.
        throttled_fraction: Share of the window in which heat or a power brake held the clocks down.
    """

    uuid: str
    name: str
    scored: bool = True
    utilization: float | None = None
    covered_fraction: float = 0.0
    busy_windows: tuple[tuple[float, float, float], ...] = ()
    peak_memory_bytes: int | None = None
    energy_j: float | None = None
    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    foreign_fraction: float | None = None
    throttled_fraction: float | None = None

    def __post_init__(self) -> None:
        last_s = -math.inf
        for end_s, length_s, busy in self.busy_windows:
            if not (last_s < end_s < math.inf and 0.0 < length_s < math.inf and 0.0 <= busy <= 1.0):
                raise ValueError(f"driver windows must be in order and busy for 0..1, got {(end_s, length_s, busy)}")
            last_s = end_s


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one run showed over the steady state.

    Attributes:
        window_s: Length of the measuring window.
        steps: Steps in the window.
        samples_per_s: Valid samples per second.
        cv: Variation of the time per unit of work, over blocks of equal work; None below 4 blocks.
        step_p50_s: Median step time.
        step_p95_s: 95th percentile of the step time.
        data_wait_fraction: Share of the window the training loop waited for data; None if not reported.
        first_step_s: From the start of the process to its first step.
        cpu_cores: CPU time of the run's processes over the window, in cores; None if not sampled.
        peak_memory_bytes: Largest resident set seen.
        gpu_utilization: Share of time in which a kernel ran, 0..1, mean of the scored GPUs; None means not measured.
        gpu_memory_bytes: Most memory that was in use on one of the GPUs; None means not measured.
        filled_samples_per_s: What the throughput would be without waiting for data, where the run's caches were still
            being filled: an estimate of what they will make of it. None where that is no question.
        energy_per_sample_j: What the GPUs drew for each sample; None means not measured.
        gpus: What each GPU of the run showed, in the order in which the run sees them; empty means not measured.
    """

    window_s: float
    steps: int
    samples_per_s: float
    cv: float | None
    step_p50_s: float
    step_p95_s: float
    data_wait_fraction: float | None
    first_step_s: float
    cpu_cores: float | None = None
    peak_memory_bytes: int | None = None
    gpu_utilization: float | None = None
    gpu_memory_bytes: int | None = None
    filled_samples_per_s: float | None = None
    energy_per_sample_j: float | None = None
    gpus: tuple[GpuMeasurement, ...] = ()

    @property
    def speed(self) -> float:
        """Samples per second by which runs are compared."""
        return self.samples_per_s if self.filled_samples_per_s is None else self.filled_samples_per_s

    def __post_init__(self) -> None:
        if not (0 < self.window_s < math.inf and 0 < self.samples_per_s < math.inf):
            raise ValueError(f"a measurement needs a window and samples, got {self.window_s} s")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One finished run, as the study keeps it.

    Attributes:
        number: Position in the study, from 0.
        search: The search that made it.
        point: Name of the point: a hash of its values.
        values: The knob values it ran with.
        pair: Of a confirming run: which pair it belongs to, from 0; None otherwise.
        ended_utc: ISO 8601 stamp.
        duration_s: From the decision to start it until the last process was gone, without the time that a warm
            interpreter took to be made.
        detail: One line on the ending, e.g. the exception's class and message.
        conditions: What the numbers depend on besides the values (host, frameworks, ...).
    """

    number: int
    search: str
    point: str
    values: Values
    purpose: Purpose
    ending: Ending
    validity: Validity
    ended_utc: str
    duration_s: float
    pair: int | None = None
    measurement: Measurement | None = None
    detail: str = ""
    conditions: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def comparable(self) -> Measurement | None:
        """The measurement, if it is fit to be compared with others."""
        return self.measurement if self.validity is Validity.GOOD else None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % confidence interval; 1.0 means no difference."""

    ratio: float
    low: float
    high: float


# Events: what a search tells whoever watches. The storage is the truth, these are a view.


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """The search knows its study and its space, and is about to start the first process."""

    search: str
    study: str
    config: str
    today: Values
    points: int
    runs_found: int
    budget_s: float
    measures: str


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run is being started."""

    number: int
    purpose: Purpose
    changes: Values
    pair: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A run is going on."""

    number: int
    elapsed_s: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """A run has ended and is in the record."""

    run: RunRecord
    changes: Values
    speedup: float | None
    stderr_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class IncumbentChanged:
    """A better point is known."""

    values: Values
    changes: Values
    speedup: float


@dataclass(frozen=True, kw_only=True)
class PhaseChanged:
    """The search turns from exploring to confirming, with the reason."""

    phase: str
    why: str


@dataclass(frozen=True, kw_only=True)
class SearchEnded:
    """The last event of a search."""

    verdict: Verdict | None
    runs: int
    elapsed_s: float


Event = SearchStarted | RunStarted | RunProgress | RunEnded | IncumbentChanged | PhaseChanged | SearchEnded


@dataclass(frozen=True, kw_only=True)
class PooledGpu:
    """What one GPU showed over all comparable runs of a point; `metrics.GPU_METRICS` describes its numbers.

    What is said of utilization is None as long as too little of it was seen; `text` says how much is missing.

    Attributes:
        uuid: Its UUID; that of a MIG instance for an instance.
        name: As the driver names it.
        scored: Whether it is one that the score looks at.
        text: Its utilization for people: ``2-40 % cyclic, period 2.1 s``, ``not enough yet: 34 of 60 driver samples``
            or ``not measured``.
        verdict: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        meaning: What that usually means, and what usually helps.
        samples: Driver windows, over all runs.
        covered_fraction: Share of the runs' windows that they cover.
        utilization: Share of time in which a kernel ran.
        p10: Utilization that at least a tenth of this time is at or below.
        duty_fraction: Share of this time at the high level; None also where the two levels are as good as one.
        low: The lower of the two levels between which utilization moves.
        high: The upper one.
        period_s: Length of a cycle; None unless the verdict is ``cyclic``.
        peak_memory_bytes: Most memory in use in any run.
        energy_per_sample_j: What this GPU drew for each sample.
        sm_activity: Share of the multiprocessors' time that was used; of Hopper and later.
        tensor_activity: The same of the tensor cores.
        dram_activity: The same of the memory's bandwidth.
        foreign_fraction: Share of time in which somebody else's kernels ran.
        throttled_fraction: Share of time in which heat or a power brake held the clocks down.
    """

    uuid: str
    name: str
    scored: bool
    text: str
    verdict: str | None = None
    meaning: str | None = None
    samples: int = 0
    covered_fraction: float = 0.0
    utilization: float | None = None
    p10: float | None = None
    duty_fraction: float | None = None
    low: float | None = None
    high: float | None = None
    period_s: float | None = None
    peak_memory_bytes: int | None = None
    energy_per_sample_j: float | None = None
    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    foreign_fraction: float | None = None
    throttled_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class PooledGpus:
    """What the GPUs showed over all comparable runs of a point.

    Attributes:
        devices: In the order in which the runs see them.
        utilization: Mean of the scored ones; None unless it is known of each.
        effective_utilization: Share of what the GPUs have shown to be able to do that training really uses; None while
            the study does not know that. Above 1 by as much as the study's limit, a lower bound, is too low.
    """

    devices: tuple[PooledGpu, ...]
    utilization: float | None = None
    effective_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison: a point, its pooled metrics by name, and its GPUs; None where none was measured."""

    values: Values
    metrics: Mapping[str, float | None] | None
    gpus: PooledGpus | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One knob that a point changes against today's config, and what that seems to be worth.

    Attributes:
        worth: Estimated speed ratio of this change, or of its whole group; None where the runs cannot tell.
        group: Changes with the same number were only ever made together, so the runs cannot tell them apart.
        label: What it means for training: ``same training``, ``batch``, ``precision`` or ``unknown``.
        effective_batch: What it makes of the effective batch, in words; empty where it leaves that alone.
    """

    path: str
    old: Scalar
    new: Scalar
    worth: float | None
    group: int
    label: str
    effective_batch: str = ""


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What is known at the end of a search, worked out from the record alone.

    Attributes:
        baseline: Today's config.
        best: The answer; equals the baseline if nothing better was confirmed.
        candidate: What was tried against today's config and not found better.
        speedup: Speed of the best (or the candidate) over today's, from the confirming pairs.
        score_ratio: The same for the score, steadiness included.
        smallest_gain: The smallest gain that the confirmation could have shown, e.g. 0.05; None without one.
        same_training: The best point that leaves the training itself unchanged, with its speed ratio.
        runs: Runs of this search.
        outcomes: How often each ending came in this search.
        changes: What the best (or candidate) changes.
        gain_of_ten_minutes: How much faster the best point would get on average in ten more minutes of searching, e.g.
            0.02; None if that is not known (the answer was read from the record).
        objective: What was searched for, as the config names it: the score is made of that.
        why_no_gpu: Why utilization is not measured on this machine; None if it is.
        cautions: What was found on the way that the reader of the answer should know, one sentence each.
    """

    verdict: Verdict
    why: str
    baseline: Side | None
    best: Side | None
    candidate: Side | None
    speedup: Ratio | None
    score_ratio: Ratio | None
    smallest_gain: float | None
    same_training: tuple[Side, float] | None
    runs: int
    outcomes: Mapping[str, int]
    changes: Sequence[Change]
    gain_of_ten_minutes: float | None = None
    objective: str = "effective_utilization"
    why_no_gpu: str | None = None
    cautions: tuple[str, ...] = ()
