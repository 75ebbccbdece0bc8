"""Speeds of a trial in each phase: training, replay of the same batches, loading alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median

from autotune.measure.statistics import moderated_interval
from autotune.measure.window import main_stream
from autotune.records import FIRST_PHASE, PAUSES, Ratio, TraineeEvent, TrialPhase

_LEAST_S = 1e-6
Span = tuple[float, float]
"""Start and end, in seconds of the monotonic clock."""


@dataclass(kw_only=True)
class PhaseRound:
    """One round of phases.

    Attributes:
        speeds: Samples per second in each phase (batches if samples are not reported) with enough steps.
        spans: Measured time of each phase.
        batch: Samples per training step, 1 if not reported; None without steps.
        wait_s: Mean time per training step spent waiting for data; None if not reported.
    """

    speeds: dict[TrialPhase, float] = field(default_factory=dict)
    spans: dict[TrialPhase, Span] = field(default_factory=dict)
    batch: float | None = None
    wait_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhasedTrial:
    """Speeds of one trial in phases.

    Attributes:
        counts_samples: Whether speeds are in samples per second, not batches.
        why_not: Reasons, for users, for missing phases.
        replay_step_s: Durations of replayed steps, for which data cost nothing.
    """

    rounds: Sequence[PhaseRound]
    counts_samples: bool
    why_not: Sequence[str] = ()
    replay_step_s: Sequence[float] = field(default=())

    def pairs(self, phase: TrialPhase, other: TrialPhase) -> list[tuple[float, float]]:
        return [(one.speeds[phase], one.speeds[other]) for one in self.rounds if {phase, other} <= one.speeds.keys()]


def phased_trial(events: Sequence[TraineeEvent]) -> PhasedTrial:
    """Return the speeds of a trial in each phase, from its events in time order.

    Ignored are the first step of each phase, steps with an evaluation or a checkpoint, and the first quarter of loading
    alone.
    """
    stream = main_stream(events)
    steps = [event for event in events if event.kind == "step" and event.stream == stream]
    begins = [event for event in events if event.kind == "phase" and event.phase is not None]
    loads = [event for event in events if event.kind == "load" and event.batches]
    counts_samples = all(event.samples for event in (*steps, *loads))
    pauses_s = sorted(event.t_s for event in events if event.kind in PAUSES)
    rounds: list[PhaseRound] = []
    replayed_s: list[float] = []
    ends_s = [event.t_s for event in begins[1:]]
    for begin, end_s in zip(begins, ends_s, strict=False):  # the last phase is incomplete
        phase = begin.phase
        assert phase is not None, "others are filtered above"
        if phase is FIRST_PHASE or not rounds:
            rounds.append(PhaseRound())
        if phase is TrialPhase.LOAD:
            drawn = [event for event in loads if begin.t_s < event.t_s <= end_s]
            measured = _loading(drawn, counts_samples=counts_samples)
        else:
            timed = _timed([step for step in steps if begin.t_s < step.t_s <= end_s], pauses_s)
            measured = _training(timed, counts_samples=counts_samples)
            if phase is TrialPhase.REPLAY:
                replayed_s += [step.t_s - before_s for step, before_s in timed]
            elif timed:
                rounds[-1].batch = fmean(step.samples or 0.0 for step, _ in timed) if counts_samples else 1.0
                waits_s = [step.wait_s for step, _ in timed if step.wait_s is not None]
                rounds[-1].wait_s = fmean(waits_s) if waits_s else None
        if measured is not None:
            rounds[-1].speeds[phase], rounds[-1].spans[phase] = measured
    return PhasedTrial(
        rounds=rounds,
        counts_samples=counts_samples,
        why_not=tuple(event.text or "" for event in events if event.kind == "unphased"),
        replay_step_s=tuple(replayed_s),
    )


def _timed(steps: Sequence[TraineeEvent], pauses_s: Sequence[float]) -> list[tuple[TraineeEvent, float]]:
    """Return each step without a pause, with the end of the step before it."""
    return [
        (step, before.t_s)
        for before, step in pairwise(steps)
        if step.t_s > before.t_s and not any(before.t_s < pause_s <= step.t_s for pause_s in pauses_s)
    ]


def _training(timed: Sequence[tuple[TraineeEvent, float]], *, counts_samples: bool) -> tuple[float, Span] | None:
    time_s = sum(step.t_s - before_s for step, before_s in timed)
    if len(timed) < 2 or time_s < _LEAST_S:
        return None
    amount = sum(step.samples or 0.0 for step, _ in timed) if counts_samples else float(len(timed))
    return amount / time_s, (timed[0][1], timed[-1][0].t_s)


def _loading(drawn: Sequence[TraineeEvent], *, counts_samples: bool) -> tuple[float, Span] | None:
    all_s = sum(event.duration_s or 0.0 for event in drawn)
    settled, past_s = [], 0.0
    for event in drawn:
        past_s += event.duration_s or 0.0
        # buffers that were full at the start of loading are empty by then
        if past_s > 0.25 * all_s:
            settled.append(event)
    time_s = sum(event.duration_s or 0.0 for event in settled)
    if not settled or time_s < _LEAST_S:
        return None
    amount = sum((event.samples if counts_samples else event.batches) or 0.0 for event in settled)
    first = settled[0]
    return amount / time_s, (first.t_s - (first.duration_s or 0.0), settled[-1].t_s)


CANNOT_MATTER = 1.02
"""Gain that a bound must exceed for a change to matter."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Speeds of training, of the step alone and of the loader alone, and their ratios. None is unknown.

    Attributes:
        free_data: Speed with data at no cost over that of training.
        free_step: Speed of the loader alone over that of training.
        speeds: Median speed in each phase, in samples per second, or batches.
        cores: Cores in use in each phase, if known.
        batch: Samples per step, 1 if speeds are in batches.
        wait_s: Time per training step spent waiting for data.
        why_not: Reasons for missing phases.
        fraction: Share of training time that the phases represent; the ratios are of all training.
        repeated: Share of time for work that replayed batches don't repeat, which is not a cost of data.
    """

    free_data: Ratio | None
    free_step: Ratio | None
    speeds: Mapping[TrialPhase, float]
    counts_samples: bool
    cores: Mapping[TrialPhase, float]
    batch: float | None = None
    wait_s: float | None = None
    why_not: tuple[str, ...] = ()
    fraction: float = 1.0
    repeated: float = 0.0

    def within(self, fraction: float) -> Bounds:
        """Return the bounds of a training of which the phases represent this share of time."""
        of_whole = replace(self, fraction=fraction)
        free_data, free_step = (
            one and _at_each_end(one, of_whole.in_whole) for one in (self.free_data, self.free_step)
        )
        return replace(of_whole, free_data=free_data, free_step=free_step)

    def less(self, repeated: float) -> Bounds:
        """Return the bounds without this share of work that replay does not repeat."""
        if self.free_data is None or not repeated:
            return self
        free_data = _at_each_end(self.free_data, lambda gain: max(1.0, 1.0 / (1.0 / gain + repeated)))
        return replace(self, free_data=free_data, repeated=repeated)

    def in_whole(self, ratio: float) -> float:
        """Return the gain of all training if the part that the phases represent becomes this much faster."""
        return 1.0 / (1.0 - self.fraction + self.fraction / ratio)

    def may_gain(self, *, on_step: bool) -> bool:
        """Return whether a change of the step alone, or of the input alone, may matter."""
        bound = self.free_step if on_step else self.free_data
        return bound is None or bound.high > CANNOT_MATTER


def _at_each_end(ratio: Ratio, change: Callable[[float], float]) -> Ratio:
    return Ratio(ratio=change(ratio.ratio), low=change(ratio.low), high=change(ratio.high))


def bounds_of(trial: PhasedTrial, cpu_cores: Callable[[float, float], float | None]) -> Bounds:
    """Return the bounds that a trial in phases shows.

    Args:
        cpu_cores: Returns the cores in use between two times; None if unknown.
    """
    train, load, replay = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
    speeds = {
        phase: median(found)
        for phase in TrialPhase
        if (found := [one.speeds[phase] for one in trial.rounds if phase in one.speeds])
    }
    cores = {}
    for phase in TrialPhase:
        spans = [one.spans[phase] for one in trial.rounds if phase in one.spans]
        known = [used for span in spans if (used := cpu_cores(*span)) is not None]
        if known:
            cores[phase] = fmean(known)
    batches = [one.batch for one in trial.rounds if one.batch is not None]
    waits_s = [one.wait_s for one in trial.rounds if one.wait_s is not None]
    return Bounds(
        free_data=ratio_of(trial.pairs(replay, train)),
        free_step=ratio_of(trial.pairs(load, train)),
        speeds=speeds,
        counts_samples=trial.counts_samples,
        cores=cores,
        batch=fmean(batches) if batches else None,
        wait_s=fmean(waits_s) if waits_s else None,
        why_not=tuple(trial.why_not),
    )


# Ratios of interleaved speeds.


_ROUND_SD = 0.015
"""Prior standard deviation of ln speed between rounds of phases of one trial, with two degrees of freedom."""


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the ratio of the first of each pair of speeds to the second; None without pairs."""
    differences = [math.log(one / other) for one, other in pairs if one > 0 and other > 0]
    if not differences:
        return None
    mean, half = moderated_interval(differences, 2.0 * _ROUND_SD**2, 2.0)
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def without(share: float, error: float) -> Ratio:
    """Return the speed without something that takes a share of the time, over the speed with it.

    Args:
        error: Half-width of the share's 95 % interval.
    """
    low, high = (min(max(bound, 0.0), 0.99) for bound in (share - error, share + error))
    return Ratio(ratio=1.0 / (1.0 - min(max(share, 0.0), 0.99)), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
