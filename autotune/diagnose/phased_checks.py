"""Checks of a trial in phases: whether the input limits training, and the fixed cost of a step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autotune.diagnose.findings import (
    MOST_SHARE,
    CheckResult,
    Limit,
    bound_text,
    issue,
    milliseconds,
    percent,
    ratio_text,
)
from autotune.measure.phases import Bounds
from autotune.records import Ratio, TrialPhase

_WORTH_CORES = 2.0
"""Smallest speedup with free data that makes a loader an issue although no step waits for it."""

_WORTH_REPORTING = 1.05  # smallest certain gain of an issue: smaller ones are within the noise of short trials


# Input: speed of training with free data, and what the loader spends its time on.


_TRAIN, _LOAD, _REPLAY = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
_MEANING = {
    Limit.OVERLAP: "Loading and the step alternate: prefetching helps",
    Limit.READING: "The loader mostly waits, for files or the network: reading is the limit, not preparing samples",
    Limit.PREPARING: "Preparing samples is the limit, not waiting for files",
    Limit.LOADING: "It is unknown whether reading or preparing is the limit",
}


def judge_input(
    bounds: Bounds, machine_cores: int, own_cores: float | None = None, *, loads_ahead: bool | None = None
) -> CheckResult:
    """Judge whether the input limits the training; `loads_ahead` is None if the config doesn't mention prefetching."""
    gain = bounds.free_data
    if gain is None:
        unseen = "its batches come from no tf.data iterator, Keras' fit or PyTorch DataLoader that can be replayed"
        why_not = "the trial was too short" if bounds.speeds else unseen
        return CheckResult(check="input", why_not="; ".join(bounds.why_not) or why_not)
    if gain.low <= _WORTH_REPORTING:
        return CheckResult(check="input", sentence=f"With free data, training would be {ratio_text(gain)} as fast.")
    if _is_beside(bounds) and gain.ratio < _WORTH_CORES:
        sentence = (
            f"With free data, training would be {ratio_text(gain)} as fast, but the step hardly waits for data: "
            f"loading is far faster and takes cores from the step.{_work(bounds)}"
        )
        return CheckResult(check="input", sentence=sentence)
    if bounds.speeds.get(_LOAD) is None:
        limit = _limit_by_cores(1.0 - 1.0 / gain.ratio, own_cores)
    else:
        limit = _limit(bounds, machine_cores, loads_ahead=loads_ahead)
    sentence = (
        f"The input takes {percent(1.0 - 1.0 / gain.ratio)} of the time; with free data, training would be "
        f"{bound_text(gain)} as fast. {_MEANING[limit]}.{_work(bounds)}"
    )
    unit = "samples" if bounds.counts_samples else "batches"
    numbers = {"time_fraction": 1.0 - 1.0 / gain.ratio}
    numbers |= {f"{phase.value}_{unit}_per_s": speed for phase, speed in bounds.speeds.items()}
    if bounds.batch and bounds.speeds.get(_LOAD):
        numbers["load_s"] = bounds.batch / bounds.speeds[_LOAD]
    numbers |= {f"{phase.value}_cores": cores for phase, cores in bounds.cores.items()}
    return CheckResult(check="input", issues=(issue("input", sentence, numbers=numbers, bound=gain, limit=limit),))


def _is_beside(bounds: Bounds) -> bool:
    """Return whether loading only competes for cores."""
    loading, training, replay = (bounds.speeds.get(phase) for phase in (_LOAD, _TRAIN, _REPLAY))
    if loading is None or training is None or replay is None:
        return False
    if bounds.wait_s is None or not bounds.batch:
        return loading > 4.0 * replay
    waiting = bounds.wait_s * training / bounds.batch
    return (loading > 4.0 * replay and waiting < 0.25) or (loading > 2.0 * replay and waiting < 0.1)


def _limit_by_cores(waiting: float, own_cores: float | None) -> Limit:
    """Return the limiting part of loading by the share of the time that the step waits.

    Meanwhile a loader that computes keeps a core busy; a loader that waits for files does not.
    """
    if own_cores is None:
        return Limit.LOADING
    idle = max(0.0, 1.0 - own_cores)
    return Limit.READING if idle >= 0.5 * waiting else Limit.PREPARING if idle <= 0.2 * waiting else Limit.LOADING


def _limit(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None) -> Limit:
    """Return the limiting part of loading.

    Loader and step alternate if a wait is as long as loading a batch, and training is as fast as both in sequence. If
    it is slower, or batches are prefetched, they compete for the cores or Python's lock instead.
    """
    speeds, cores = bounds.speeds, bounds.cores
    loading, training, replay = speeds[_LOAD], speeds[_TRAIN], speeds[_REPLAY]
    is_saturated = cores.get(_TRAIN, 0.0) >= 0.85 * machine_cores  # of the machine's cores
    slower = min(loading, replay)
    in_sequence = loading * replay / (loading + replay)
    # as fast as in sequence, within the noise of rounds; overlapped, the slower of the two sets the speed
    least = 0.88 if loads_ahead is None else 0.7  # without prefetching, little else can slow them down
    may_overlap = least * in_sequence <= training < 0.9 * slower
    # prefetching must bring 0.3 of the gain (in ln) with free data: else the loader itself is the limit
    may_overlap &= math.log(slower / training) >= 0.3 * math.log(replay / training)
    # share of a batch's loading time: none of it overlaps with the step, or the config sets no prefetching
    least_wait_s = (0.85 if loads_ahead is None else 0.5) * (bounds.batch or math.inf) / loading
    if may_overlap and not is_saturated and not loads_ahead and (bounds.wait_s or 0.0) >= least_wait_s:
        return Limit.OVERLAP
    if _LOAD not in cores:
        return Limit.LOADING
    # a loader that never pauses but uses less than half a core is waiting for files
    return Limit.READING if cores[_LOAD] < 0.5 else Limit.PREPARING


def _work(bounds: Bounds) -> str:
    loading, cores = bounds.speeds.get(_LOAD), bounds.cores.get(_LOAD)
    if loading is None or bounds.batch is None:
        return ""
    took = milliseconds(bounds.batch / loading)
    if cores is None:
        return f" The loader alone takes {took} per batch."
    return f" The loader alone takes {took} per batch and keeps {cores:.1f} cores busy."


# Fixed cost: the part of a step that is independent of the batch size.


_LAUNCHING_CORES = 1.3  # most that launches and Python keep busy: one thread, and a little more


@dataclass(frozen=True, kw_only=True)
class ReplayedSteps:
    """Times of steps with free data at one batch size."""

    batch: float
    step_s: Sequence[float]


def judge_fixed_cost(one: ReplayedSteps | None, other: ReplayedSteps | None, bounds: Bounds) -> CheckResult:
    """Judge how much of a step is independent of the batch size, by two of them."""
    if one is None or other is None or not one.step_s or not other.step_s:
        return CheckResult(check="fixed-cost", why_not="it needs steps with free data at two batch sizes")
    factor = other.batch / one.batch
    if factor < 1.5:
        why_not = f"the two batch sizes are too similar: {one.batch:g} and {other.batch:g}"
        return CheckResult(check="fixed-cost", why_not=why_not)
    today_s, larger_s = median(one.step_s), median(other.step_s)
    error = 1.96 * math.sqrt(2.0) * 0.04  # of ln step time between two trials
    # A step with the fixed share s takes s + (1 - s) * factor times as long with the larger batch.
    times = [larger_s / today_s * math.exp(shift) for shift in (0.0, error, -error)]
    share, least, most = (min(1.0, max(0.0, (factor - ratio) / (factor - 1.0))) for ratio in times)
    bound = _bounded(share, least, most, bounds)
    seen = (
        f"Of the {milliseconds(today_s)} of a step with free data, {percent(share)} is independent of the batch size "
        f"({milliseconds(larger_s)} with {factor:g} times the batch size)"
    )
    # a smaller certain share may be the update of the weights, which is useful work
    if least < 0.6 or bound.low <= _WORTH_REPORTING:
        return CheckResult(check="fixed-cost", sentence=f"{seen}.")
    if (cores := bounds.cores.get(_REPLAY, 0.0)) > _LAUNCHING_CORES:
        seen = f"{seen}; it keeps {cores:.1f} cores busy, so it is computation, such as reading the weights"
        return CheckResult(check="fixed-cost", sentence=f"{seen}.")
    launches = "possibly launches and Python, or the update of the weights. Graph mode, XLA or a larger batch can help."
    found = issue(
        "fixed-cost",
        f"{seen}: {launches}",
        numbers={"step_s": today_s, "larger_step_s": larger_s, "batch_factor": factor, "fixed_fraction": share},
        bound=bound,
        limit=Limit.HOST,
    )
    return CheckResult(check="fixed-cost", issues=(found,))


def _bounded(share: float, least: float, most: float, bounds: Bounds) -> Ratio:
    """Return the speed ratio without the fixed part, at most that of a free step."""
    free_step, of_training = bounds.free_step, bounds.fraction
    if bounds.free_data:
        of_training = max(0.0, 1.0 / bounds.free_data.ratio - (1.0 - bounds.fraction) - bounds.repeated)
    ratio, low, high = (1.0 / (1.0 - min(part * of_training, MOST_SHARE)) for part in (share, least, most))
    if free_step is None:
        return Ratio(ratio=ratio, low=low, high=high)
    return Ratio(ratio=min(ratio, free_step.ratio), low=min(low, free_step.low), high=min(high, free_step.high))
