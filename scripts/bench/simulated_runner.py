"""Simulated runner: trials in virtual time, so that half an hour of search takes a second.

A simulated trial gives a search the same information as a real one: events, an exit, and the probes that
`scripts.bench` puts around it. The times of steps vary as measured on real trainers: the level differs from trial to
trial and has two modes; within a trial, steps are autocorrelated, some steps are long, and the first ones are slow;
over minutes the machine itself drifts and throttles.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.clock import VirtualClock
from autotune.measure.probe import GpuProbe, GpuUsage, HostUsage, TrialGpus
from autotune.records import DATA_KEY_VARIABLE, PHASE_VARIABLE, Stop, TraineeEvent, TrialExit, TrialPhase, TrialPlan
from autotune.trainee.samples import Fingerprints
from autotune.trial.folders import TrialFolder
from autotune.trial.instruments import Instruments
from autotune.trial.launch import Watch

LOOK_S = 0.25
"""Longest interval between two calls of the watch."""


# The level of a trial is a mixture of two normal distributions with mean 0 and variance 1: most trials are on the fast
# mode, the others about two standard deviations below it.
_SLOW_SHARE = 0.3


_MODE_SD = 0.45


_MODE_DISTANCE = math.sqrt((1 - _MODE_SD**2) / (_SLOW_SHARE * (1 - _SLOW_SHARE)))


_SMALLEST_CHUNK, _LARGEST_CHUNK = 8, 4096


_DRIFT_GRID_S = 5.0


_DRIFT_BLOCK = 256  # points of the grid made at a time


_CRASH = """Traceback (most recent call last):
  File "train.py", line 212, in <module>
    main()
RuntimeError: CUDA error: an illegal memory access was encountered
"""


_Array = NDArray[np.float64]


Batches = Iterable[tuple[NDArray[np.generic], ...]]
"""Batches of one pass: inputs and labels of each."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Behaviour of a trainer under one config.

    All times are means: the long-run throughput, noise left out, is that of one epoch after the first,
    ``epoch * samples / (epoch * step_s + epoch_gap_s)``.

    Attributes:
        samples: Samples in a step.
        step_s: Time of a step.
        start_s: Time from its start until its first step begins; infinite for one that hangs before it.
        first_step_s: Time of the first step, which traces and compiles; None for five times the others.
        warm_up: Relative excess of the second step's time; halves with every further step.
        first_pass_step_s: Time of a step in the first epoch, while caches fill; None for `step_s`.
        noise: Standard deviation of ln speed between its trials.
        step_noise: Standard deviation of the ln time of steps within a trial.
        autocorrelation: Autocorrelation of neighbouring steps, 0..1.
        long_steps: Fraction of steps that take `long_step` times as long as the others.
        long_step: Time of a long step, relative to the others.
        work: Frames or tokens in a step; None if it is not reported.
        work_spread: Relative standard deviation of the work between steps, up to 0.5.
        work_weight: Fraction of a step's time that is proportional to its work, 0..1.
        wait_fraction: Fraction of a step's time that it waits for data; None if it is not reported.
        first_pass_wait_fraction: The same fraction during the first epoch; None for no difference.
        steps: Number of steps before it ends by itself; None for one that goes on.
        hangs: True if it then goes on without a step, instead of ending.
        exit_code: Exit code.
        stderr: Last output.
        crash_chance: Fraction of its trials that crash at random.
        hang_chance: Fraction of its trials that hang at random.
        epoch: Steps in an epoch; None for endless ones.
        epoch_gap_s: Extra time of the first step of each epoch but the first, while the pipeline fills again.
        loss: Loss that it reports with each step; a function of the number of steps before it, or constant.
        held_out: Loss that its evaluations report; a function of the number of steps before one.
        pauses: Kinds of the pauses after some steps, ``eval`` or ``checkpoint``, by the number of steps before them.
        pause_s: Time of each of them.
        stall_every: Number of steps from one that stalls to the next; None for none.
        stall_s: Extra time of each of these.
        drawn: Draws the times of the steps of one trial, which is all that they consist of besides noise; None for
            those above.
        cpu_cores: Cores that its processes keep busy.
        memory_bytes: Peak host memory.
        memory_growth_bytes_per_s: Growth of its host memory, from the first step on.
        freed_bytes: Host memory that is in use in the first third of the time besides, and freed then.
        gpu_memory_bytes: Peak GPU memory; None without a GPU.
        gpu_utilization: Fraction of the time in which its GPU works; None without one.
        passes: Draws the batches of each pass over the data that its samples are seen of; None where none are seen.
        phases: Times of a batch in each phase of a trial that is taken through phases; None of a trainer that this
            cannot be done with.
    """

    samples: float = 8.0
    step_s: float = 0.05
    start_s: float = 1.0
    first_step_s: float | None = None
    warm_up: float = 0.0
    first_pass_step_s: float | None = None
    noise: float = 0.0
    step_noise: float = 0.03
    autocorrelation: float = 0.0
    long_steps: float = 0.0
    long_step: float = 5.0
    work: float | None = None
    work_spread: float = 0.0
    work_weight: float = 1.0
    wait_fraction: float | None = None
    first_pass_wait_fraction: float | None = None
    steps: int | None = None
    hangs: bool = False
    exit_code: int = 0
    stderr: str = ""
    crash_chance: float = 0.0
    hang_chance: float = 0.0
    epoch: int | None = None
    epoch_gap_s: float = 0.0
    loss: float | Callable[[int], float] | None = None
    held_out: Callable[[int], float] | None = None
    pauses: Mapping[int, str] = field(default_factory=dict)
    pause_s: float = 0.0
    stall_every: int | None = None
    stall_s: float = 0.0
    drawn: Callable[[np.random.Generator], Iterator[float]] | None = None
    cpu_cores: float = 1.0
    memory_bytes: int = 1 << 30
    memory_growth_bytes_per_s: float = 0.0
    freed_bytes: int = 0
    gpu_memory_bytes: int | None = None
    gpu_utilization: float | None = None
    passes: Callable[[np.random.Generator], Iterable[Batches]] | None = None
    phases: PhaseTimes | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Times of one batch in each phase, and the cores that are busy meanwhile.

    Attributes:
        train_s: Time of a step of training.
        wait_s: Time of that which it waits for data.
        replay_s: Time of a step with free data.
        load_s: Time of a batch of the loader alone.
        train_cores: Cores in use during training.
        load_cores: Cores in use during loading.
    """

    train_s: float
    wait_s: float
    replay_s: float
    load_s: float
    train_cores: float = 1.0
    load_cores: float = 1.0

    def cores(self, phase: TrialPhase) -> float:
        return {
            TrialPhase.TRAIN: self.train_cores,
            TrialPhase.REPLAY: 1.0,
            TrialPhase.LOAD: self.load_cores,
        }[phase]


Trainer = Callable[[str], Training]
"""Function from the text of a trial's config to the training."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Drift of the machine's speed, whatever runs on it.

    Attributes:
        spread: Standard deviation of ln speed over a long time (an Ornstein-Uhlenbeck process).
        memory_s: Time constant of its autocorrelation.
        throttles_per_h: Mean number of throttlings of the clocks in an hour.
        throttled_s: Mean length of a throttling.
        throttled_speed: Relative speed during a throttling.
    """

    spread: float = 0.0
    memory_s: float = 600.0
    throttles_per_h: float = 0.0
    throttled_s: float = 150.0
    throttled_speed: float = 0.85


class SimulatedRunner:
    """Runner that advances a virtual clock instead of running anything.

    The noise of a trial depends on the seed and on how many trials came before it, the drift on the seed and the time:
    two searches with one seed meet the same machine.

    Args:
        clock: Virtual clock, advanced by this runner only.
        trainer: The trainer.
        seed: Seed of all random numbers.
        drift: Drift of the machine.

    Attributes:
        clock: The virtual clock.
        plans: Plans of the started trials, in order.
        training: Training of the latest trial; None before the first.
        begun_phases: Phases of the latest trial, each with the time at which it began.
    """

    def __init__(self, clock: VirtualClock, trainer: Trainer, *, seed: int = 0, drift: Drift | None = None) -> None:
        self.clock = clock
        self._trainer = trainer
        self._seed = seed
        self._drift = _DriftPath(drift, clock.now_s(), seed) if drift else None
        self.plans: list[TrialPlan] = []
        self.training: Training | None = None
        self.begun_phases: list[tuple[float, TrialPhase]] = []

    def instruments(self) -> Instruments:
        """Return the instruments for one trial: the simulated host, and no GPU."""
        return Instruments(SimulatedHostProbe(self))

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        started_s = self.clock.now_s()
        if started_s >= deadline_s:
            return TrialExit(started_s=started_s, ended_s=started_s, exit_code=None, stop=Stop.DEADLINE)
        TrialFolder(plan.folder).create()
        if (config := plan.folder / plan.config_name).is_file():
            config.read_bytes()  # as a trainer does: a preflight looks whether it was
        rng = np.random.default_rng((self._seed, len(self.plans)))
        self.plans.append(plan)
        training = self.training = _with_accident(self._trainer(plan.config_text), rng)
        self.begun_phases = []
        phase_s = plan.env.get(PHASE_VARIABLE)
        if training.passes is not None:
            _fetch(training.passes(rng), plan)
        events = self._events(training, started_s, rng, None if phase_s is None else float(phase_s))
        coming = next(events, None)
        stop: Stop | None = None
        while stop is None:
            # An end of its own, and the deadline, come when they come, and not at the next look.
            due_s = min(self.clock.now_s() + LOOK_S, deadline_s)
            due = []
            while coming is not None and coming.t_s <= due_s:
                due.append(coming)
                coming = next(events, None)
            has_ended = coming is None
            self.clock.wait((due[-1].t_s if has_ended and due else due_s) - self.clock.now_s())
            stop = watch(due)
            if has_ended:
                return self._exit(started_s, training, exit_code=training.exit_code)
            if stop is None and self.clock.now_s() >= deadline_s:
                stop = Stop.DEADLINE
        return self._exit(started_s, training, stop=stop)

    def _exit(
        self, started_s: float, training: Training, *, exit_code: int | None = None, stop: Stop | None = None
    ) -> TrialExit:
        return TrialExit(
            started_s=started_s,
            ended_s=self.clock.now_s(),
            exit_code=exit_code,
            stop=stop,
            stderr_tail=training.stderr,
            cpu_s=training.cpu_cores * (self.clock.now_s() - started_s),
            oom_killed=False,
        )

    def _events(
        self, training: Training, started_s: float, rng: np.random.Generator, phase_s: float | None
    ) -> Iterator[TraineeEvent]:
        """Yield the steps of one trial, endless where the trainer is."""
        stream = f"{os.getpid()}.0"
        slowness = math.exp(-training.noise * _run_level(rng))
        t_s = started_s + training.start_s
        # A trainer without steps has announced itself all the same.
        yield TraineeEvent(kind="start", t_s=t_s if math.isfinite(t_s) else started_s, stream=stream)
        if phase_s is not None and training.phases is not None:
            yield from phased_events(
                training.phases,
                samples=training.samples,
                phase_s=phase_s,
                start_s=t_s,
                stream=stream,
                factor=lambda: slowness * math.exp(training.step_noise * rng.standard_normal()),
                begins=lambda begun_s, phase: self.begun_phases.append((begun_s, phase)),
            )
        if phase_s is not None:
            yield TraineeEvent(kind="unphased", t_s=t_s, stream=stream, text="its batches cannot be seen")
        pace = _Pace(training, rng)
        made, paused_s = 0, 0.0
        while training.steps is None or made < training.steps:
            count = 1 if made == 0 else pace.chunk(made)
            if training.steps is not None:
                count = min(count, training.steps - made)
            durations_s, work = pace.steps(made, count)
            durations_s *= slowness
            if self._drift:
                durations_s /= self._drift.speed(t_s + np.cumsum(durations_s))
            ends_s = t_s + np.cumsum(durations_s)
            t_s = float(ends_s[-1])
            for end_s, duration_s, amount in zip(ends_s.tolist(), durations_s.tolist(), work, strict=True):
                wait = training.wait_fraction
                if training.first_pass_wait_fraction is not None and made < (training.epoch or 0):
                    wait = training.first_pass_wait_fraction
                made += 1
                yield TraineeEvent(
                    kind="step",
                    t_s=end_s + paused_s,
                    stream=stream,
                    wait_s=None if wait is None else wait * duration_s,
                    samples=training.samples,
                    work=amount,
                    loss=training.loss(made - 1) if callable(training.loss) else training.loss,
                )
                if made in training.pauses:
                    paused_s += training.pause_s
                    kind = training.pauses[made]
                    yield TraineeEvent(
                        kind=kind,
                        t_s=end_s + paused_s,
                        stream=stream,
                        duration_s=training.pause_s,
                        loss=training.held_out(made) if kind == "eval" and training.held_out else None,
                    )
                if training.epoch and made % training.epoch == 0:
                    yield TraineeEvent(kind="epoch_end", t_s=end_s + paused_s, stream=stream)
        if training.hangs:
            yield TraineeEvent(kind="note", t_s=math.inf, stream=stream)  # never reached


def _fetch(passes: Iterable[Batches], plan: TrialPlan) -> None:
    """Have the fingerprints of some passes taken, as the observer does."""
    looks = Fingerprints(str(plan.folder), plan.env[DATA_KEY_VARIABLE])
    looks.spend(math.inf)
    dataset = looks.dataset()
    for batches in passes:
        under_way = looks.begin(dataset, lambda: True)
        for batch in batches:
            looks.take(under_way, batch, len(batch[0]))
    looks.flush()


def _with_accident(training: Training, rng: np.random.Generator) -> Training:
    # after which, on average, a trial hangs or crashes, if it does
    chance, steps = rng.random(), int(rng.exponential(40.0))
    if training.steps is not None and training.steps <= steps:
        return training
    if chance < training.crash_chance:
        return replace(training, steps=steps, exit_code=1, stderr=_CRASH)
    if chance < training.crash_chance + training.hang_chance:
        return replace(training, steps=steps, hangs=True)
    return training


def _run_level(rng: np.random.Generator) -> float:
    """Draw the level of a trial, as ln speed in units of its spread: mean 0, variance 1, two modes."""
    is_slow = rng.random() < _SLOW_SHARE
    mode = _MODE_DISTANCE * (_SLOW_SHARE - 1 if is_slow else _SLOW_SHARE)
    return float(mode + _MODE_SD * rng.standard_normal())


class _Pace:
    """Times of the steps of one trial."""

    def __init__(self, training: Training, rng: np.random.Generator) -> None:
        self._training = training
        self._rng = rng
        self._deviation = float(rng.standard_normal())  # of ln time, in units of its spread
        self._drawn = training.drawn(rng) if training.drawn else None

    def chunk(self, made: int) -> int:
        """Return how many steps to draw at a time, given the number so far."""
        # of steps that are made at a time: few enough to waste little when the trial is stopped
        return int(min(max(1.0 / self._step_s(made), _SMALLEST_CHUNK), _LARGEST_CHUNK))

    def steps(self, made: int, count: int) -> tuple[_Array, list[float | None]]:
        """Return the times and the work of the next steps, given the number so far."""
        training = self._training
        index = np.arange(made, made + count)
        durations_s = np.full(count, training.step_s)
        if self._drawn is not None:
            durations_s = np.fromiter(self._drawn, float, count)
        if training.first_pass_step_s is not None:
            durations_s[index < (training.epoch or math.inf)] = training.first_pass_step_s
        if made == 0:
            durations_s[0] = 5.0 * durations_s[0] if training.first_step_s is None else training.first_step_s
        elif training.warm_up:
            durations_s *= 1.0 + training.warm_up * 0.5 ** (index - 1.0)
        durations_s *= self._noise(count)
        work: list[float | None] = [None] * count
        if training.work is not None:
            # Uniform: the mean is 1 exactly, and nothing is ever cut off.
            share = 1.0 + training.work_spread * math.sqrt(3.0) * self._rng.uniform(-1.0, 1.0, count)
            durations_s *= 1.0 + training.work_weight * (share - 1.0)
            work = (training.work * share).tolist()
        if training.epoch:
            durations_s[(index % training.epoch == 0) & (index > 0)] += training.epoch_gap_s
        if training.stall_every:
            durations_s[(index % training.stall_every == 0) & (index > 0)] += training.stall_s
        return durations_s, work

    def _step_s(self, made: int) -> float:
        training = self._training
        if training.first_pass_step_s is not None and made < (training.epoch or math.inf):
            return training.first_pass_step_s
        return training.step_s

    def _noise(self, count: int) -> _Array:
        """Return factors on the time of the next steps, with mean 1."""
        training = self._training
        memory, fresh = training.autocorrelation, math.sqrt(1.0 - training.autocorrelation**2)
        shocks = (fresh * self._rng.standard_normal(count)).tolist()
        deviations = list(accumulate(shocks, lambda last, shock: memory * last + shock, initial=self._deviation))[1:]
        self._deviation = deviations[-1]
        factors = np.exp(training.step_noise * np.array(deviations) - training.step_noise**2 / 2)
        if training.long_steps:
            factors[self._rng.random(count) < training.long_steps] *= training.long_step
            factors /= 1.0 + training.long_steps * (training.long_step - 1.0)
        return factors


class _DriftPath:
    """One realization of a drift over time, extended on demand."""

    def __init__(self, drift: Drift, start_s: float, seed: int) -> None:
        self._drift = drift
        self._start_s = start_s
        self._rng = np.random.default_rng((seed, 0, 1))  # no trial's
        self._last = float(self._rng.standard_normal())
        self._throttled_points = 0  # of the grid, still to come
        self._ln_speed = np.empty(0)

    def speed(self, t_s: _Array) -> _Array:
        """Return the speed of the machine at these times, around 1."""
        at = (t_s - self._start_s) / _DRIFT_GRID_S
        while len(self._ln_speed) <= at[-1] + 1:
            self._ln_speed = np.concatenate([self._ln_speed, self._block()])
        return np.exp(np.interp(at, np.arange(len(self._ln_speed)), self._ln_speed))

    def _block(self) -> _Array:
        drift = self._drift
        memory = math.exp(-_DRIFT_GRID_S / drift.memory_s)
        shocks = (math.sqrt(1.0 - memory**2) * self._rng.standard_normal(_DRIFT_BLOCK)).tolist()
        trace = list(accumulate(shocks, lambda last, shock: memory * last + shock, initial=self._last))[1:]
        self._last = trace[-1]
        ln_speed = drift.spread * np.array(trace)
        throttling = drift.throttles_per_h * _DRIFT_GRID_S / 3600.0
        for point in range(_DRIFT_BLOCK):
            if self._throttled_points == 0 and self._rng.random() < throttling:
                self._throttled_points = 1 + int(self._rng.exponential(drift.throttled_s / _DRIFT_GRID_S))
            if self._throttled_points > 0:
                self._throttled_points -= 1
                ln_speed[point] += math.log(drift.throttled_speed)
        return ln_speed


_ORDER = (TrialPhase.REPLAY, TrialPhase.LOAD, TrialPhase.TRAIN)


_LEAST = 3  # steps, or batches, in a phase


def phased_events(
    times: PhaseTimes,
    *,
    samples: float,
    phase_s: float,
    start_s: float,
    stream: str,
    factor: Callable[[], float],
    begins: Callable[[float, TrialPhase], object],
) -> Iterator[TraineeEvent]:
    """Yield the events of a trial that is taken through phases, without end.

    Args:
        times: The trainer.
        samples: Samples in a batch.
        phase_s: Length of each phase.
        start_s: When the first step begins.
        stream: Name of its stream.
        factor: Returns the next step's time over the usual one.
        begins: Told when each phase begins.
    """
    t_s = start_s
    for _ in range(5):
        t_s += times.train_s * factor()
        yield TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=samples, wait_s=times.wait_s)
    while True:
        for phase in _ORDER:
            begins(t_s, phase)
            yield TraineeEvent(kind="phase", t_s=t_s, stream=stream, phase=phase)
            until_s, made = t_s + phase_s, 0
            while t_s < until_s or made < _LEAST:
                if phase is TrialPhase.LOAD:
                    batches = max(1, round(0.25 / times.load_s))  # of loading, for each event
                    took_s = batches * times.load_s * factor()
                    t_s += took_s
                    made += batches
                    yield TraineeEvent(
                        kind="load",
                        t_s=t_s,
                        stream=stream,
                        samples=batches * samples,
                        batches=batches,
                        duration_s=took_s,
                    )
                else:
                    trains = phase is TrialPhase.TRAIN
                    t_s += (times.train_s if trains else times.replay_s) * factor()
                    made += 1
                    wait_s = times.wait_s if trains else 0.0
                    yield TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=samples, wait_s=wait_s)


_READINGS = 40  # of the memory, between two times


class SimulatedHostProbe:
    """Probe of the host usage of a runner's latest trial.

    Args:
        runner: Runner of the trials.
    """

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner

    def open(self, trial_id: str, pid: int) -> None:
        """See `autotune.measure.probe.Probe.open`."""

    def between(self, t0_s: float, t1_s: float) -> HostUsage | None:
        training = self._runner.training
        if training is None:
            return None
        hangs = math.isinf(training.start_s)
        length_s, grown = t1_s - t0_s, training.memory_growth_bytes_per_s
        shares = [part / _READINGS for part in range(_READINGS + 1)]
        memory = tuple(
            (
                t0_s + length_s * share,
                int(training.memory_bytes + grown * length_s * share) + (training.freed_bytes if share < 1 / 3 else 0),
            )
            for share in shares
        )
        cores = training.cpu_cores
        if training.phases is not None and (begun := [one for one in self._runner.begun_phases if one[0] <= t0_s]):
            cores = training.phases.cores(begun[-1][1])
        return HostUsage(cpu_cores=0.0 if hangs else cores, peak_memory_bytes=training.memory_bytes, memory=memory)

    def close(self) -> None:
        """See `autotune.measure.probe.Probe.close`."""


class SimulatedGpuProbe:
    """Probe of the GPU usage of a runner's latest trial.

    Args:
        runner: Runner of the trials.
    """

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner

    def open(self, kept: Path) -> None:
        """See `autotune.measure.probe.GpuProbe.open`; there are no raw readings."""

    def lost(self, trial: TrialGpus) -> str | None:
        return None

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        training = self._runner.training
        samples = int((t1_s - t0_s) * 6.0)  # as NVML keeps them
        if training is None or training.gpu_utilization is None or samples == 0:
            return None
        return GpuUsage(utilization=training.gpu_utilization, peak_memory_bytes=training.gpu_memory_bytes)

    def close(self) -> None:
        """See `autotune.measure.probe.GpuProbe.close`."""


_is_a_gpu_probe: type[GpuProbe] = SimulatedGpuProbe
