"""Checks of what a trial in phases shows: whether the input limits training, and the fixed cost of a step."""

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
"""Speedup with free data from which a loader is an issue although no step waits for it: it competes for the cores."""

_WORTH_TELLING = 1.05  # least gain that is an issue: smaller ones drown in the noise of a few short trials


# Input: how fast training would be if data cost nothing, and what the loader spends its time on.


_TRAIN, _LOAD, _REPLAY = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
_MEANING = {
    Limit.OVERLAP: "Loading and the step take turns: loading ahead of the step is what helps",
    Limit.READING: "Reading is the limit, not preparing",
    Limit.PREPARING: "Preparing is the limit, not reading",
    Limit.LOADING: "Whether reading or preparing is the limit is not known",
}


def judge_input(
    bounds: Bounds, machine_cores: int, own_cores: float | None = None, *, loads_ahead: bool | None = None
) -> CheckResult:
    """Judge whether the input limits the training.

    Args:
        bounds: What the phased trial showed.
        own_cores: Cores that training keeps busy; None if unknown.
        loads_ahead: Whether the config says that batches are loaded ahead of the step; None if it says nothing of it.
    """
    gain = bounds.free_data
    if gain is None:
        unseen = (
            "its batches do not come from a tf.data iterator, Keras' fit or a PyTorch DataLoader that could be replayed"
        )
        why_not = "the trial was too short for it" if bounds.speeds else unseen
        return CheckResult(check="input", why_not="; ".join(bounds.why_not) or why_not)
    if gain.low <= _WORTH_TELLING:
        return CheckResult(check="input", sentence=f"With free data it would be {ratio_text(gain)} as fast.")
    if _is_beside(bounds) and gain.ratio < _WORTH_CORES:
        sentence = (
            f"With free data it would be {ratio_text(gain)} as fast, and the step hardly waits for data: loading, "
            f"which is far faster, takes cores from the step.{_work(bounds)}"
        )
        return CheckResult(check="input", sentence=sentence)
    if bounds.speeds.get(_LOAD) is None:
        limit = _limit_by_cores(1.0 - 1.0 / gain.ratio, own_cores)
    else:
        limit = _limit(bounds, machine_cores, loads_ahead=loads_ahead)
    sentence = (
        f"The input takes {percent(1.0 - 1.0 / gain.ratio)} of the time; with free data it would be "
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
    """Return whether loading is no limit, but takes the step's cores: it is far faster, and no step waits for it."""
    loading, training, replay = (bounds.speeds.get(phase) for phase in (_LOAD, _TRAIN, _REPLAY))
    if loading is None or training is None or replay is None:
        return False
    if bounds.wait_s is None or not bounds.batch:
        return loading > 4.0 * replay
    waiting = bounds.wait_s * training / bounds.batch
    return (loading > 4.0 * replay and waiting < 0.25) or (loading > 2.0 * replay and waiting < 0.1)


def _limit_by_cores(waiting: float, own_cores: float | None) -> Limit:
    """Return the part of loading that is the limit of a training that waits for a share of the time.

    Who waits for a loader that computes keeps a core busy all the time; one that waits itself, for its files, none.
    """
    if own_cores is None:
        return Limit.LOADING
    idle = max(0.0, 1.0 - own_cores)
    return Limit.READING if idle >= 0.5 * waiting else Limit.PREPARING if idle <= 0.2 * waiting else Limit.LOADING


def _limit(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None) -> Limit:
    """Return the part of loading that is the limit.

    Loader and step take turns where the loop waits for a batch as long as that takes to load, and training is as fast
    as one after the other. Where it is slower still, or batches are loaded ahead all the same, they hold each other up:
    they share the cores, or Python's lock. Frameworks may load a part of a batch ahead by themselves: where the config
    says that nothing is, waiting for half of the time is enough.
    """
    speeds, cores = bounds.speeds, bounds.cores
    loading, training, replay = speeds[_LOAD], speeds[_TRAIN], speeds[_REPLAY]
    is_saturated = cores.get(_TRAIN, 0.0) >= 0.85 * machine_cores  # of the machine's cores
    slower = min(loading, replay)
    in_turn = loading * replay / (loading + replay)
    # loader and step in turn, within the noise of rounds; overlapped, the slower of the two sets the speed
    least = 0.88 if loads_ahead is None else 0.7  # where nothing is loaded ahead, nothing else can hold them up
    may_overlap = least * in_turn <= training < 0.9 * slower
    # with free data that loading ahead has to bring: else the loader itself is what counts
    may_overlap &= math.log(slower / training) >= 0.3 * math.log(replay / training)
    # of the time that a batch takes to load: nothing of it passes during the step, or the config itself says so
    least_wait_s = (0.85 if loads_ahead is None else 0.5) * (bounds.batch or math.inf) / loading
    if may_overlap and not is_saturated and not loads_ahead and (bounds.wait_s or 0.0) >= least_wait_s:
        return Limit.OVERLAP
    if _LOAD not in cores:
        return Limit.LOADING
    # below which a loader that works all the time is waiting for something
    return Limit.READING if cores[_LOAD] < 0.5 else Limit.PREPARING


def _work(bounds: Bounds) -> str:
    loading, cores = bounds.speeds.get(_LOAD), bounds.cores.get(_LOAD)
    if loading is None or bounds.batch is None:
        return ""
    took = milliseconds(bounds.batch / loading)
    if cores is None:
        return f" The loader alone takes {took} for a batch."
    return f" The loader alone takes {took} for a batch and keeps {cores:.1f} cores busy."


# Fixed cost: how much of a step does not depend on the batch.


@dataclass(frozen=True, kw_only=True)
class ReplayedSteps:
    """Times of steps with free data at one size of the batch."""

    batch: float
    step_s: Sequence[float]


def judge_fixed_cost(one: ReplayedSteps | None, other: ReplayedSteps | None, bounds: Bounds) -> CheckResult:
    """Judge how much of a step does not depend on the batch.

    Args:
        one: Steps of today's batch; None if they were not seen.
        other: Steps of a larger batch; None if they were not seen.
        bounds: What a step that costs nothing gains, which bounds what this gains.
    """
    if one is None or other is None or not one.step_s or not other.step_s:
        return CheckResult(check="fixed-cost", why_not="it takes steps with free data at two sizes of the batch")
    factor = other.batch / one.batch
    if factor < 1.5:  # between the two batches
        why_not = f"the two batches are too alike: {one.batch:g} and {other.batch:g}"
        return CheckResult(check="fixed-cost", why_not=why_not)
    today_s, larger_s = median(one.step_s), median(other.step_s)
    error = 1.96 * math.sqrt(2.0) * 0.04  # of ln step time between two trials
    # A step of which the share s is fixed takes s + (1 - s) factor times as long with the larger batch.
    times = [larger_s / today_s * math.exp(shift) for shift in (0.0, error, -error)]
    share, least, most = (min(1.0, max(0.0, (factor - ratio) / (factor - 1.0))) for ratio in times)
    bound = _bounded(share, least, most, bounds)
    seen = (
        f"Of the {milliseconds(today_s)} of a step with free data, {percent(share)} is taken whatever the batch "
        f"({milliseconds(larger_s)} with {factor:g} times the batch)"
    )
    # of the step for certain: up to there it may be the update of the weights, which is work
    if least < 0.6 or bound.low <= _WORTH_TELLING:
        return CheckResult(check="fixed-cost", sentence=f"{seen}.")
    launches = (
        "it may be launches and Python, or the update of the weights. Graph mode, XLA or a larger batch can help."
    )
    found = issue(
        "fixed-cost",
        f"{seen}: {launches}",
        numbers={"step_s": today_s, "larger_step_s": larger_s, "batch_factor": factor, "fixed_fraction": share},
        bound=bound,
        limit=Limit.HOST,
    )
    return CheckResult(check="fixed-cost", issues=(found,))


def _bounded(share: float, least: float, most: float, bounds: Bounds) -> Ratio:
    """Return the speed without the fixed part over today's: no more than with a step that costs nothing at all."""
    free_step, of_training = bounds.free_step, bounds.fraction
    if bounds.free_data:
        of_training = max(0.0, 1.0 / bounds.free_data.ratio - (1.0 - bounds.fraction) - bounds.anew)
    ratio, low, high = (1.0 / (1.0 - min(part * of_training, MOST_SHARE)) for part in (share, least, most))
    if free_step is None:
        return Ratio(ratio=ratio, low=low, high=high)
    return Ratio(ratio=min(ratio, free_step.ratio), low=min(low, free_step.low), high=min(high, free_step.high))
