"""Checks of what trials show: the input, fixed costs, stalls, pauses, others, memory, settings, and single changes."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from autotune.clock import format_duration
from autotune.diagnose.findings import (
    CheckResult,
    GainBasis,
    Issue,
    Limit,
    Recommendation,
    Severity,
    bound_text,
    issue,
    milliseconds,
    percent,
    ratio_text,
)
from autotune.diagnose.subject import written
from autotune.events import Event, TrialProgress
from autotune.measure.phases import CANNOT_MATTER, Bounds, without
from autotune.measure.probe import MemorySeries
from autotune.measure.statistics import pooled_variance, student_t_quantile
from autotune.measure.trend import Trend, trend
from autotune.measure.window import growth_bytes_per_s, main_stream
from autotune.records import (
    PAUSES,
    Machine,
    Measurement,
    Ratio,
    Scalar,
    TraineeEvent,
    TrialPhase,
    TrialRecord,
    Validity,
    Values,
)
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, Label, is_number, number_of, same_scalar
from autotune.space.space import Space

_WORTH_TELLING = 1.05  # gain from which on it is an issue: less is not told from the noise of a few short trials
_MOST_SHARE = 0.99  # of the time, so that what is left of it is no division by zero


# Input: how fast training would be if data cost nothing, and what the loader spends its time on.


_TRAIN, _LOAD, _REPLAY = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
_MEANING = {
    Limit.OVERLAP: "Loading and the step take turns: loading ahead of the step is what helps",
    Limit.READING: "Reading is the limit, not preparing",
    Limit.PREPARING: "Preparing is the limit, not reading",
    Limit.LOADING: "Whether reading or preparing is the limit is not known",
}


def judge_input(
    bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None = None, made_anew: Ratio | None = None
) -> CheckResult:
    """Judge whether the input limits the training.

    Args:
        bounds: What the phased trial showed.
        made_anew: What it would gain if nothing was compiled or started anew, as on the same few batches nothing is.
        loads_ahead: Whether the config says that batches are loaded ahead of the step; None if it says nothing of it.
    """
    gain = bounds.free_data
    if gain is None:
        unseen = (
            "its batches do not come from a tf.data iterator, Keras' fit or a PyTorch DataLoader that could be replayed"
        )
        why_not = "the trial was too short for it" if bounds.speeds else unseen
        return CheckResult(check="input", why_not="; ".join(bounds.why_not) or why_not)
    # Where it is most of the gain, that is the limit; what remains of the input is seen without it.
    is_explained = made_anew is not None and made_anew.ratio >= gain.ratio**0.5
    if gain.low <= _WORTH_TELLING or is_explained:
        sentence = f"With free data it would be {ratio_text(gain)} as fast."
        if made_anew:
            sentence = (
                f"On the same few batches, for which nothing is compiled or started anew, it is {ratio_text(gain)} as "
                "fast."
            )
        return CheckResult(check="input", sentence=sentence)
    if _is_beside(bounds):
        sentence = (
            f"With free data it would be {ratio_text(gain)} as fast, and the step hardly waits for data: loading, "
            f"which is far faster, takes cores from the step.{_work(bounds)}"
        )
        return CheckResult(check="input", sentence=sentence)
    limit = _limit(bounds, machine_cores, loads_ahead=loads_ahead)
    sentence = (
        f"The input takes {percent(1.0 - 1.0 / gain.ratio)} of the time; with free data it would be "
        f"{bound_text(gain)} as fast. {_MEANING[limit]}.{_work(bounds)}"
    )
    unit = "samples" if bounds.counts_samples else "batches"
    numbers = {f"{phase.value}_{unit}_per_s": speed for phase, speed in bounds.speeds.items()}
    numbers |= {f"{phase.value}_cores": cores for phase, cores in bounds.cores.items()}
    return CheckResult(check="input", issues=(issue("input", sentence, numbers=numbers, bound=gain, limit=limit),))


def _is_beside(bounds: Bounds) -> bool:
    """Return whether loading is no limit, but takes the step's cores: it is far faster, and no step waits for it."""
    loading, training, replay = bounds.speeds.get(_LOAD), bounds.speeds[_TRAIN], bounds.speeds[_REPLAY]
    if loading is None:
        return False
    if bounds.wait_s is None or not bounds.batch:
        return loading > 4.0 * replay
    waiting = bounds.wait_s * training / bounds.batch
    return (loading > 4.0 * replay and waiting < 0.25) or (loading > 2.0 * replay and waiting < 0.1)


def _limit(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None) -> Limit:
    """Return the part of loading that is the limit.

    Loader and step take turns where the loop waits for a batch as long as that takes to load, and training is as fast
    as one after the other. Where it is slower still, or batches are loaded ahead all the same, they hold each other up:
    they share the cores, or Python's lock. Frameworks may load a part of a batch ahead by themselves: where the config
    says that nothing is, waiting for half of the time is enough.
    """
    speeds, cores = bounds.speeds, bounds.cores
    loading, training, replay = speeds.get(_LOAD), speeds[_TRAIN], speeds[_REPLAY]
    if loading is None:
        return Limit.LOADING
    is_saturated = cores.get(_TRAIN, 0.0) >= 0.85 * machine_cores  # of the machine's cores
    slower = min(loading, replay)
    in_turn = loading * replay / (loading + replay)
    # no slower than one after the other, as far as rounds tell; overlapped it has the speed of the slower of the two
    may_overlap = 0.88 * in_turn <= training < 0.9 * slower
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
    free_step, of_training = bounds.free_step, 1.0 / bounds.free_data.ratio if bounds.free_data else 1.0
    ratio, low, high = (1.0 / (1.0 - min(part * of_training, _MOST_SHARE)) for part in (share, least, most))
    if free_step is None:
        return Ratio(ratio=ratio, low=low, high=high)
    return Ratio(ratio=min(ratio, free_step.ratio), low=min(low, free_step.low), high=min(high, free_step.high))


# Time outside of steps: evaluations, checkpoints and the like, as shares of the whole.


_PAUSES = {
    "eval": ("evaluation", "evaluate more seldom, on fewer samples, or in a process of its own"),
    "checkpoint": ("checkpoint", "save more seldom, less, or while training goes on"),
}


def judge_outside_steps(events: Sequence[TraineeEvent]) -> CheckResult:
    """Judge how much of the time passes between steps, in what the trainer does besides.

    Args:
        events: All events of a trial that went on through an evaluation and a checkpoint where it came to these.
    """
    pairs = _successive_steps(events)
    if len(pairs) < 4:
        return CheckResult(check="outside-steps", why_not="too few steps were seen")
    all_s = pairs[-1][1].t_s - pairs[0][0].t_s
    issues, told = [], []
    for kind, spent_s in _pauses(pairs).items():
        (what, remedy), times, each_s = _PAUSES[kind], len(spent_s), median(spent_s)
        share = min(_MOST_SHARE, each_s * times / all_s)
        told.append(f"{what} {percent(share)}")
        if share <= 0.05:
            continue
        # What recurs takes at least the share that was seen since the start, as the latest cycle was cut short, and at
        # most that of one time more. Of the only one that was seen half is certain: the first compiles what it needs.
        low, high = (share if times > 1 else 0.5 * share), min(_MOST_SHARE, share * (times + 1) / times)
        each = milliseconds(each_s)
        often = f"{times} of {each}" if times > 1 else f"one of {each}"
        sentence = f"The {what} takes {percent(share)} of the time ({often} was seen): {remedy}."
        bound = Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
        numbers = {"time_fraction": share, "times": float(times), "each_s": each_s}
        issues.append(issue("outside-steps", sentence, numbers=numbers, bound=bound, limit=Limit.OUTSIDE))
    nothing = "No evaluation and no checkpoint was seen."
    sentence = f"Of the time seen: {', '.join(told)}." if told else nothing
    return CheckResult(check="outside-steps", issues=tuple(issues), sentence=sentence)


_Pair = tuple[TraineeEvent, TraineeEvent, frozenset[str]]


def _successive_steps(events: Sequence[TraineeEvent]) -> list[_Pair]:
    stream = main_stream(events)
    found: list[_Pair] = []
    before: TraineeEvent | None = None
    between = set[str]()
    for event in events:
        if event.kind != "step":
            between.add(event.cost or event.kind)
        elif event.stream == stream:
            found += [(before, event, frozenset(between))] if before is not None else []
            before, between = event, set()
    return found


def _pauses(pairs: Sequence[_Pair]) -> dict[str, list[float]]:
    """Return the time of each pause by its kind, a usual step taken off; one that no step came after does not count."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    usual_s = median(after.t_s - before.t_s for before, after, _kinds in pairs)
    for before, after, between in pairs:
        # The step after a pause may have filled the pipeline anew: that is a cost of the pause.
        kinds = between.intersection(PAUSES)
        for kind in kinds:
            found[kind].append(max(0.0, after.t_s - before.t_s - usual_s) / len(kinds))
    return found


# Steadiness: slow steps that recur, and cost much of the time.


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Step with the time that it took.

    Attributes:
        duration_s: Time since the end of the one before.
        wait_s: Time of this that it waited for data; None if it is not reported.
        begins_epoch: Whether an epoch ended just before it.
    """

    number: int
    end_s: float
    duration_s: float
    wait_s: float | None
    begins_epoch: bool


def timed_steps(events: Sequence[TraineeEvent]) -> list[TimedStep]:
    """Return the steps of a trial, without its warm-up and those that have a pause in them, or compile something.

    Args:
        events: All events of the trial, in the order of time.
    """
    found = [
        TimedStep(
            number=number,
            end_s=event.t_s,
            duration_s=event.t_s - before.t_s,
            wait_s=event.wait_s,
            begins_epoch="epoch_end" in between,
        )
        for number, (before, event, between) in enumerate(_successive_steps(events), start=2)
        if event.t_s > before.t_s and between.isdisjoint((*PAUSES, *_COSTS))
    ]
    return found[min(20, int(0.2 * len(found))) :]  # of the steps; they trace, compile and fill caches


def judge_steadiness(steps: Sequence[TimedStep], events: Sequence[TraineeEvent] = (), folder: str = "") -> CheckResult:
    """Judge whether slow steps recur, and cost much of the time.

    Args:
        events: All events of the trial; those that tell in which lines its loop stayed name the line.
        folder: The folder that training runs in; places in it are named as seen from there.
    """
    if len(steps) < 30:
        return CheckResult(check="steadiness", why_not=f"{len(steps)} steps are too few for it")
    if (slower := _drift(steps)) is not None:
        return CheckResult(check="steadiness", issues=(slower,))  # its last steps would all be slow ones
    usual_s = median(step.duration_s for step in steps)
    # three times the median step, and 5 ms more: less is the machine's own unrest
    slow = [step for step in steps if step.duration_s > max(3.0 * usual_s, usual_s + 0.005)]
    each_s = [step.duration_s - usual_s for step in slow]
    excess_s, all_s = sum(each_s), sum(step.duration_s for step in steps)
    share = excess_s / all_s
    # slow ones no further apart than 3 steps are one event, such as something else on the machine
    times = slow[:1] + [step for before, step in pairwise(slow) if step.number - before.number > 3]
    count = len(times)
    # of the time, half of that without the longest one; and what comes three times recurs
    if share < 0.05 or excess_s - max(each_s) < 0.025 * all_s or count < 3:
        return CheckResult(check="steadiness")
    when = _recurrence(times)
    # The number of what comes irregularly is as uncertain as that of any rare event (Poisson): two standard errors.
    bound = without(share, 2.0 * share / count**0.5)
    if when is not None:  # What recurs was cut short once, at the end of what was seen.
        low, high = share * count / (count + 1), min(_MOST_SHARE, share * (count + 1) / count)
        bound = Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
    waits_s = [step.wait_s for step in slow if step.wait_s is not None]
    are_known = len(waits_s) == len(slow)
    waiting = {"waiting_fraction": min(1.0, sum(waits_s) / excess_s)} if are_known else {}
    wait = are_known and sum(waits_s) >= 0.7 * excess_s  # of the excess is waiting for data
    where = ""
    if when == _AT_EPOCHS:
        where = ": iterators, shuffle buffers, workers and callbacks begin anew there"
    elif are_known:
        busy = ", and do not wait for data meanwhile: look for what the training loop does then besides steps"
        where = ", and wait for data" if wait else busy
    sentence = (
        f"{len(slow)} of {len(steps)} steps take {milliseconds(usual_s + fmean(each_s))} on average instead of "
        f"{milliseconds(usual_s)}: {percent(share)} of the time more. They come {when or 'irregularly'}{where}."
    )
    place, fraction = _line_of(slow, events)
    line, _, name = place.removeprefix(f"{folder}/").rpartition(" ")
    if fraction >= 0.5:
        sentence += f" {percent(min(1.0, fraction))} of that time the loop is at {line} in {name}."
    found = issue(
        "steadiness",
        sentence,
        numbers={"slow_steps": float(len(slow)), "usual_step_s": usual_s, "time_fraction": share, **waiting},
        bound=bound,
        limit=Limit.STALLS,
        place=line if fraction >= 0.5 else "",
    )
    return CheckResult(check="steadiness", issues=(found,))


def _drift(steps: Sequence[TimedStep]) -> Issue | None:
    """Return the issue of steps that get slower and slower; None where they do not, for certain."""
    blocks = np.array_split(np.arange(len(steps)), 20)
    durations_s, ends_s = (np.array([getattr(step, name) for step in steps]) for name in ("duration_s", "end_s"))
    times_s = np.array([float(np.median(ends_s[block])) for block in blocks])
    blocks_s = np.array([float(np.median(durations_s[block])) for block in blocks])
    found, length_s = trend(times_s, np.log(blocks_s)), float(times_s[-1] - times_s[0])
    # a neighbour that comes, or a machine that is slower for a while, makes no such line
    if found.concordance < 0.6 or math.expm1(found.low * length_s) < 0.2:
        return None
    first_s, last_s = float(np.median(blocks_s[:3])), float(np.median(blocks_s[-3:]))
    waits = [step.wait_s / step.duration_s for step in steps if step.wait_s is not None]
    waiting = " Most of that is waiting for data." if len(waits) == len(steps) and median(waits) > 0.5 else ""
    sentence = (
        f"Steps take {milliseconds(last_s)} after {milliseconds(first_s)} at first, within {len(steps)} steps and "
        f"{format_duration(length_s)}: {_slower_text(found)}.{waiting}"
    )
    remedy = (
        "Look for what grows with each step: operations that are added to a graph in the loop, losses that are kept "
        "with their graph, a list or a log that is gone through; memory that grows along says so. Else heat holds the "
        "clocks down, or a disk fills up."
    )
    ratios = [math.exp(part * length_s / 2.0) for part in (found.slope, found.low, found.high)]
    numbers = {"first_step_s": first_s, "last_step_s": last_s, "slower_per_minute": math.expm1(60.0 * found.slope)}
    bound = Ratio(ratio=ratios[0], low=ratios[1], high=ratios[2])
    return issue("steadiness", sentence, remedy, numbers=numbers, bound=bound, limit=Limit.DRIFT)


def _slower_text(found: Trend) -> str:
    """Return how fast steps get slower, with the interval of that."""
    slopes = found.slope, found.low, found.high
    if 60.0 * found.slope < math.log(2.0):
        rate, low, high = (percent(math.expm1(60.0 * slope)) for slope in slopes)
        return f"{rate} slower every minute ({low} to {high})"
    rate, high, low = (format_duration(math.log(2.0) / slope) for slope in slopes)
    return f"twice as long every {rate} ({low} to {high})"


def _line_of(slow: Sequence[TimedStep], events: Sequence[TraineeEvent]) -> tuple[str, float]:
    """Return the line that the loop stays in for most of the time of some steps, and the share of that it does.

    Returns:
        A place as `TraineeEvent` has it, and 0 where none is known.
    """
    stays_s: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.kind == "cost" and event.cost == "stay" and event.place and event.duration_s:
            begin_s = event.t_s - event.duration_s
            for step in slow:
                within_s = min(event.t_s, step.end_s) - max(begin_s, step.end_s - step.duration_s)
                stays_s[event.place] += max(0.0, within_s)
    place, stay_s = max(stays_s.items(), key=lambda one: one[1], default=("", 0.0))
    return place, stay_s / sum(step.duration_s for step in slow)


_AT_EPOCHS = "at the beginning of each epoch"


def _recurrence(slow: Sequence[TimedStep]) -> str | None:
    if sum(step.begins_epoch for step in slow) > 0.5 * len(slow):
        return _AT_EPOCHS
    steps = [after.number - before.number for before, after in pairwise(slow)]
    seconds = [after.end_s - before.end_s for before, after in pairwise(slow)]
    regular = 0.2  # variation of the distances between slow steps
    if pstdev(steps) < regular * fmean(steps):
        return f"every {fmean(steps):.0f} steps"
    if pstdev(seconds) < regular * fmean(seconds):
        return f"every {fmean(seconds):.1f} s"
    return None


# What recurs besides the arithmetic of steps: functions that are compiled anew, Python within a graph, new workers.


_ANEW = "give it tensors of few shapes, padded or in buckets, in place of Python numbers, and make it once"
_COSTS = {
    "trace": ("is traced anew", _ANEW, Limit.COMPILING),
    "compile": ("is compiled anew", _ANEW, Limit.COMPILING),
    "workers": ("starts the loader's workers anew", "keep them: persistent_workers=True", Limit.STALLS),
}


def judge_costs(events: Sequence[TraineeEvent], folder: str, phased_events: Sequence[TraineeEvent] = ()) -> CheckResult:
    """Judge what is done again and again besides the arithmetic of steps, by the steps that it happens in.

    Args:
        events: All events of a trial.
        folder: The folder that training runs in; places in it are named as seen from there.
        phased_events: Those of a trial that was taken through phases, in which operations are counted.
    """
    pairs = _successive_steps(events)
    pairs = pairs[min(20, int(0.2 * len(pairs))) :]  # what is done once, at the begin, is no matter
    if len(pairs) < 10:
        return CheckResult(check="recurring-costs", why_not="too few steps were seen")
    begin_s, end_s = pairs[0][0].t_s, pairs[-1][1].t_s
    usual_s = median(after.t_s - before.t_s for before, after, _kinds in pairs)
    issues: list[Issue] = []
    for (kind, place), told in _costs_by_place(events).items():
        name = place.removeprefix(f"{folder}/")
        if kind == "cut":
            issues.append(_cut(name, told[-1].text or ""))
        late = [one for one in told if begin_s < one.t_s <= end_s]
        if not late:
            continue
        # The first sum may hold what was done before there were steps.
        first = next((one for one in reversed(told) if one.t_s <= begin_s), late[0])
        times = (late[-1].times or 0) - (first.times or 0)
        took_s = (late[-1].duration_s or 0.0) - (first.duration_s or 0.0)
        if kind == "python":
            share = took_s / (end_s - begin_s)
            if share > 0.2:  # of all calls together, which may run at the same time where they release Python's lock
                issues.append(_python(name, times, took_s, share))
        elif kind in _COSTS and times >= 3:
            # The first use of what was compiled is slow, too: what counts is how long those steps take.
            at = [one.t_s for one in late]
            slow = [
                after.t_s - before.t_s
                for before, after, _kinds in pairs
                if any(before.t_s < t <= after.t_s for t in at)
            ]
            each_s = fmean(slow) - usual_s if slow else 0.0  # some are told of together with the one before
            excess_s = max(took_s, max(times, len(slow)) * each_s)
            share = min(_MOST_SHARE, excess_s / (end_s - begin_s))
            if share > 0.05:
                issues.append(_anew(kind, name, times, len(pairs), share, late[-1].text))
    ends_s = [after.t_s for _before, after, _kinds in _successive_steps(phased_events)]
    for (kind, place), told in _costs_by_place(phased_events).items():
        name = place.removeprefix(f"{folder}/")
        if kind == "eager":
            issues += _eager(name, told[-1], ends_s, usual_s)
        elif kind == "launch":
            issues += _launches(name, told[-1], usual_s)
        elif kind == "wait":
            issues += _waits_for_gpu(name, told[-1], usual_s)
    return CheckResult(check="recurring-costs", issues=tuple(issues))


def _costs_by_place(events: Sequence[TraineeEvent]) -> dict[tuple[str, str], list[TraineeEvent]]:
    found: dict[tuple[str, str], list[TraineeEvent]] = {}
    for event in events:
        if event.kind == "cost" and event.cost and event.place:
            found.setdefault((event.cost, event.place), []).append(event)
    return found


def _python(place: str, times: int, took_s: float, share: float) -> Issue:
    sentence = (
        f"{place} is Python that TensorFlow calls: {times} times, {milliseconds(took_s / times)} each, "
        f"{percent(share)} of the time in all. Calls wait for each other while they hold Python's lock; operations of "
        "TensorFlow in its place run side by side."
    )
    return _cost(place, sentence, numbers={"time_fraction": share})


def _eager(place: str, told: TraineeEvent, steps_s: Sequence[float], step_s: float) -> Iterator[Issue]:
    """Yield the operations of TensorFlow that Python launches in each step, where there are many."""
    steps = sum(told.t_s - (told.duration_s or 0.0) <= end_s <= told.t_s for end_s in steps_s)
    a_step = (told.times or 0) / max(1, steps)
    if steps and a_step > 25:  # a compiled step has a few around it: its batch, its metrics
        sentence = (
            f"{place}: Python launches {a_step:.0f} operations of TensorFlow in each step, one by one: put "
            "@tf.function on what computes and applies the gradients."
        )
        with suppress(ValueError):
            each_us, between_s = map(float, (told.text or "").split())
            share = max(a_step * 1e-6 * each_us / step_s, between_s / (told.duration_s or math.inf))
            yield _of_launches(place, sentence, a_step, min(_MOST_SHARE, share))


def _launches(place: str, told: TraineeEvent, step_s: float) -> Iterator[Issue]:
    """Yield the operations of PyTorch in a step, where they are many, and short."""
    count, launch_s = told.times or 0, told.duration_s or 0.0
    share = min(_MOST_SHARE, launch_s / step_s)
    if count >= 200 and step_s / count < 50e-6 and share > 0.05:  # a usual one takes longer than that
        sentence = (
            f"{place}: PyTorch makes {count} operations in each step, of {1e6 * step_s / count:.0f} µs on average: "
            f"launching them takes {percent(share)} of it at least. Whole batches at once, torch.compile and a larger "
            "batch make fewer of them."
        )
        yield _of_launches(place, sentence, count, share)


def _waits_for_gpu(place: str, told: TraineeEvent, step_s: float) -> Iterator[Issue]:
    """Yield how often Python reads from the GPU in a step, and waits until all before that is done."""
    count, trip_s = told.times or 0, told.duration_s or 0.0
    share = min(_MOST_SHARE, trip_s / step_s)
    if share > 0.05:
        sentence = (
            f"{place}: Python waits for the GPU {count} times in each step (.item(), .cpu(), a tensor as a "
            f"condition), and the GPU then for Python: {percent(share)} of the step at least. Keep what is computed "
            "on the GPU, and read it after many steps."
        )
        yield _of_launches(place, sentence, count, share)


def _of_launches(place: str, sentence: str, count: float, share: float) -> Issue:
    """Return the issue of operations whose launches take a share of the step at least."""
    numbers = {"operations_per_step": float(count), "time_fraction": share}
    return _cost(place, sentence, numbers=numbers, bound=without(share, 0.3 * share), limit=Limit.HOST)


def _cost(place: str, sentence: str, **about: Any) -> Issue:
    """Return the issue of a cost at a place: file and line, with the name of what is there behind them."""
    return issue("recurring-costs", sentence, place=place.rpartition(" ")[0] or place, **about)


def _cut(place: str, why: str) -> Issue:
    sentence = f"torch.compile cuts {place} into pieces, with Python between them: {why}"
    return _cost(place, sentence, severity=Severity.NOTE, limit=Limit.HOST)


def _anew(kind: str, place: str, times: int, steps: int, share: float, why: str | None) -> Issue:
    what, remedy, limit = _COSTS[kind]
    reason = f" (the last time {why})" if why else ""
    sentence = f"{place} {what} {times} times in {steps} steps{reason}: {percent(share)} of the time; {remedy}."
    numbers = {"times": float(times), "time_fraction": share}
    bound = without(share, 2.0 * share / times**0.5)
    return _cost(place, sentence, numbers=numbers, bound=bound, limit=limit)


# The machine: others on it, clocks that are held down, and the room that its memory leaves.


class BusyReadings:
    """Readings of the machine's CPU time while trials go on; a consumer of events.

    Args:
        busy_s: Returns the CPU time of all processes; None where the kernel does not tell it.
    """

    def __init__(self, now_s: Callable[[], float], busy_s: Callable[[], float | None]) -> None:
        self._now_s = now_s
        self._busy_s = busy_s
        self._readings: list[tuple[float, float]] = []  # time, CPU time up to it

    def __call__(self, event: Event) -> None:
        """Take a reading with each sign of life of a trial."""
        if isinstance(event, TrialProgress) and (busy_s := self._busy_s()) is not None:
            self._readings.append((self._now_s(), busy_s))

    def foreign_cores(self, t0_s: float, t1_s: float, own_cores: float | None) -> float | None:
        """Return the cores that others kept busy between two times, on average; None if that is not known.

        Args:
            own_cores: Cores that the trial kept busy meanwhile; None if that is not known.
        """
        inside = [reading for reading in self._readings if t0_s <= reading[0] <= t1_s]
        if len(inside) < 2 or own_cores is None:
            return None
        (begin_s, before_s), (end_s, after_s) = inside[0], inside[-1]
        return max(0.0, (after_s - before_s) / (end_s - begin_s) - own_cores) if end_s > begin_s else None


def judge_neighbours(
    foreign_cores: Sequence[float], machine_cores: float, own_cores: float | None, trials: Sequence[TrialRecord]
) -> CheckResult:
    """Judge whether others, or heat, have slowed the trials down.

    Args:
        foreign_cores: Cores that others kept busy during each trial.
        own_cores: Cores that training kept busy; None if that is not known.
    """
    issues = []
    # of the machine's cores: below it a desktop, a monitor, or this program itself
    if foreign_cores and median(foreign_cores) > 0.25 * machine_cores:
        issues.append(_on_the_cpu(median(foreign_cores), machine_cores, own_cores))
    issues += _on_the_gpus(trials)
    if not issues and not foreign_cores:
        return CheckResult(check="neighbours", why_not="the CPU time of others is not known here")
    return CheckResult(check="neighbours", issues=tuple(issues))


def _on_the_cpu(foreign: float, cores: float, own: float | None) -> Issue:
    is_short = own is not None and own + foreign > 0.9 * cores
    most = cores / (cores - foreign) if foreign < cores else None
    return issue(
        "neighbours",
        (
            f"Other processes keep {foreign:.1f} of {cores:g} cores busy, and "
            f"{'the trainer wants them too' if is_short else 'the trainer leaves them free'}: what is measured now is "
            "not the speed of an idle machine."
        ),
        severity=Severity.WARNING if is_short else Severity.NOTE,
        numbers={"foreign_cores": foreign, "cores": cores},
        # At most as if all their time were the trainer's: it may not scale so far.
        bound=Ratio(ratio=most, low=1.0, high=most) if is_short and most else None,
        limit=Limit.NEIGHBOUR if is_short else None,
    )


def _on_the_gpus(trials: Sequence[TrialRecord]) -> list[Issue]:
    """Return the trials that were disturbed, or else what was seen on the GPUs, two issues at most."""
    issues = []
    for validity, limit in ((Validity.CONTAMINATED, Limit.NEIGHBOUR), (Validity.THROTTLED, Limit.THROTTLING)):
        spoiled = [trial for trial in trials if trial.validity is validity]
        if spoiled:
            sentence = f"{len(spoiled)} of {len(trials)} trials were disturbed: {spoiled[0].detail}."
            issues.append(issue("neighbours", sentence, numbers={"trials": float(len(spoiled))}, limit=limit))
    if issues:
        return issues
    for figures in (gpu.figures for trial in trials if trial.measurement for gpu in trial.measurement.gpus):
        found = partial(issue, "neighbours", place=figures.uuid)
        throttled, foreign = figures.throttled_fraction or 0.0, figures.foreign_fraction or 0.0
        if throttled > 0.05:  # of the readings
            share = percent(throttled)
            held = f"Heat or a power brake holds the clocks of {figures.name} down for {share} of the time."
            issues.append(found(held, limit=Limit.THROTTLING))
        elif foreign > 0.05:  # of the time; as `gpu.contamination` has it for trials
            used = f"Other processes use {figures.name} for {percent(foreign)} of the time."
            issues.append(found(used, limit=Limit.NEIGHBOUR))
    return issues[:2]


_NEARLY_FULL = 0.92  # of the memory: an odd batch, or a cache that grows, ends the training
_GIB = 1 << 30


def judge_memory(
    machine: Machine,
    measurement: Measurement | None,
    series: tuple[MemorySeries, MemorySeries],
    batches: Sequence[tuple[float, Measurement]],
) -> CheckResult:
    """Judge how much room the memory leaves.

    Args:
        measurement: Numbers of a trial of today's config; None if there are none.
        series: Memory of the host, and of the fullest GPU, over a longer trial.
        batches: Batch sizes with the numbers of a trial of each, for the largest that is safe.
    """
    if measurement is None:
        return CheckResult(check="memory-room", why_not="no trial gave numbers")
    gpu_total = measurement.fullest_gpu.memory_total_bytes if measurement.fullest_gpu else None
    largest = largest_batch(batches, gpu_total) if gpu_total else None
    # TensorFlow and JAX take all of a GPU's memory at once: it is full only if it depends on the batch.
    places = (
        ("The host's memory", measurement.peak_memory_bytes, machine.memory_bytes, series[0], True),
        ("The GPU's memory", measurement.gpu_memory_bytes, gpu_total, series[1], largest is not None),
    )
    issues, seen = [], []
    for what, peak, total, over_time, tells_full in places:
        if peak is None or not total:
            continue
        seen.append(f"{what} is used up to {peak / _GIB:.1f} of {total / _GIB:.1f} GiB.")
        growth = growth_bytes_per_s(over_time) or 0.0
        full_s = (total - peak) / growth if growth > 0 else math.inf
        sentence = None
        if peak > _NEARLY_FULL * total and tells_full:
            share = percent(peak / total)
            sentence = f"{what} is nearly full: {share} of {total / _GIB:.1f} GiB."
        elif full_s < 24 * 3600.0:
            sentence = (
                f"{what} grows by {growth * 60 / (1 << 20):.0f} MiB a minute: it would be full after "
                f"{format_duration(full_s)}."
            )
        if sentence:
            issues.append(issue("memory-room", sentence, numbers={"peak_bytes": float(peak)}, limit=Limit.MEMORY))
    if largest is not None:
        seen.append(f"The largest batch that is safe is about {largest}.")
    if not seen:
        return CheckResult(check="memory-room", why_not="the memory in use is not known")
    return CheckResult(check="memory-room", issues=tuple(issues), sentence=" ".join(seen))


def largest_batch(batches: Sequence[tuple[float, Measurement]], total_bytes: int) -> int | None:
    """Return the largest safe power-of-two multiple of the smallest batch, by a line through two trials.

    Args:
        batches: Batch sizes with the numbers of a trial of each; two at least are needed.

    Returns:
        None where it is not known, or memory does not depend on the batch, as where a framework takes it all.
    """
    known = sorted((batch, one.gpu_memory_bytes) for batch, one in batches if one.gpu_memory_bytes is not None)
    if len(known) < 2:
        return None
    (small, least), (large, most) = known[0], known[-1]
    slope = (most - least) / (large - small) if large > small else 0.0
    if slope <= 0:
        return None
    limit = small + (_NEARLY_FULL * total_bytes - least) / slope
    return int(small * 2 ** math.floor(math.log2(limit / small))) if limit >= small else None


# Switches: changes of one knob each, tried in turn with today's config, and what each gains.


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Change of one knob, with the others that it needs; or several of these together.

    Attributes:
        changes: Its values, as far as they differ from today's.
    """

    knobs: tuple[Knob, ...]
    values: Values
    changes: Values
    label: Label

    @property
    def on_step(self) -> bool:
        """True if it makes the step itself faster, and not the loading of its data alone."""
        return any(traits_of(knob).on_step for knob in self.knobs)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Measured gain of a switch.

    Attributes:
        gain: Speed with it over that of today; None if no trial of it gave numbers.
        why_not: How its trials ended, where they gave no numbers.
    """

    switch: Switch
    gain: Ratio | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class SwitchPlan:
    """Plan of which switches are tried.

    Attributes:
        tried: Switches to try, the most promising first.
        irrelevant_knobs: Paths of knobs whose change cannot matter, by whether they act on the step.
        not_tried: Switches that may help, and for which a few short trials are not enough.
    """

    tried: tuple[Switch, ...]
    irrelevant_knobs: Mapping[bool, tuple[str, ...]] = field(default_factory=dict)
    not_tried: tuple[Switch, ...] = ()

    def without(self, known: Sequence[Switch], *, most: int) -> "SwitchPlan":
        """Return it with so many switches at most, and without those of which the gain is known."""
        tried = [one for one in self.tried if one not in known]
        rest = tuple(one for one in self.not_tried if one not in known)
        return replace(self, tried=tuple(tried[:most]), not_tried=(*rest, *tried[most:]))


def plan_switches(
    space: Space,
    bounds: Bounds | None,
    *,
    may_settle: bool,
    is_compiling: bool = False,
    is_unsteady: bool = False,
) -> SwitchPlan:
    """Plan which switches are tried: those that the bounds allow a gain, one value for each knob.

    Args:
        bounds: What a change of the input, or of the step, can gain at most; None if that is not known.
        may_settle: Whether a trial goes over all data, so that those can be measured that fill a cache first.
        is_compiling: Whether something is compiled again and again: batches of one shape come first.
        is_unsteady: Whether slow steps recur: XLA, which compiles for each shape unseen, is tried without.
    """
    found: list[Switch] = []
    not_tried: list[Switch] = []
    irrelevant_knobs: dict[bool, list[str]] = {False: [], True: []}
    for knob in space.knobs:
        wished = next((value for value in knob.heuristic_values if not same_scalar(value, knob.baseline)), None)
        traits = traits_of(knob)
        fixes_shapes = is_compiling and traits.shapes == "fixed" and knob.baseline is False
        leaves_xla = is_unsteady and traits.shapes == "compiled" and knob.baseline is True
        is_due = fixes_shapes or leaves_xla
        wished = fixes_shapes if is_due else wished
        if wished is None or knob.is_inert(space.baseline):
            continue
        if bounds is not None and not is_due and not bounds.may_gain(on_step=traits.on_step):
            irrelevant_knobs[traits.on_step].append(knob.path)
            continue
        values = space.with_heuristic(space.baseline, knob.path, wished)
        if space.why_infeasible(values) is None:
            settles = space.settles(values) and not may_settle
            (not_tried if settles else found).append(_switch(space, (knob,), values))
    # to be gained for certain with free data, for changes of the input to be tried first
    input_first = bounds is not None and bounds.free_data is not None and bounds.free_data.low > 1.1
    # stable: then as an expert would turn them; what is compiled again and again comes first
    found.sort(key=lambda switch: (not _is_about_shapes(switch), switch.on_step is input_first))
    return SwitchPlan(
        tried=tuple(found),
        irrelevant_knobs={side: tuple(paths) for side, paths in irrelevant_knobs.items()},
        not_tried=tuple(not_tried),
    )


def _is_about_shapes(switch: Switch) -> bool:
    shapes = traits_of(switch.knobs[0]).shapes
    return shapes == "fixed" or (shapes == "compiled" and switch.knobs[0].baseline is True)


def explained(steadiness: CheckResult, measured: Sequence[Gain]) -> CheckResult:
    """Return what was found of slow steps, with the reason where they are gone without XLA."""
    about_shapes = (one for one in measured if _is_about_shapes(one.switch))
    gains = [one.gain for one in about_shapes if traits_of(one.switch.knobs[0]).shapes == "compiled"]
    if not any(gain is not None and gain.low > 1.2 for gain in gains):
        return steadiness
    issues = [
        replace(
            one,
            sentence=f"{one.sentence} XLA compiles the step anew for each shape: without it they are gone.",
            limit=Limit.COMPILING,
        )
        for one in steadiness.issues
    ]
    return replace(steadiness, issues=tuple(issues))


def together(space: Space, measured: Sequence[Gain]) -> Switch | None:
    """Return all changes that leave the training the same and were measured to help; None of fewer than two."""
    winners = [
        one.switch
        for one in measured
        if one.gain and one.gain.low > CANNOT_MATTER and one.switch.label is Label.SAME_TRAINING
    ]
    values: Values = space.baseline
    for switch in winners:
        values = {**values, **switch.changes}
    if len(winners) < 2 or space.why_infeasible(values) is not None:
        return None
    return _switch(space, tuple(knob for switch in winners for knob in switch.knobs), values)


def _switch(space: Space, knobs: tuple[Knob, ...], values: Values) -> Switch:
    changes = space.changes(values)
    labels = [space.label_of(path, value) for path, value in changes.items()]
    changing = (label for label in labels if label is not Label.SAME_TRAINING)
    return Switch(knobs=knobs, values=values, changes=changes, label=next(changing, Label.SAME_TRAINING))


class SwitchTrials:
    """Switches that are tried, and what their trials have shown so far.

    Attributes:
        speeds: ln speed of the trials of each switch, by its place; None is today's config.
        endings: How the last trial ended of those that gave no numbers.
    """

    def __init__(self, switches: Sequence[Switch]) -> None:
        self.switches = list(switches)
        self.speeds: dict[int | None, list[float]] = {None: []}
        self.endings: dict[int | None, str] = {}

    def in_turn(self) -> list[int | None]:
        """Return the order of trials, a palindrome: a steady drift cancels out."""
        there: list[int | None] = [None, *range(len(self.switches))]
        return [*there, None, *reversed(there)] if self.switches else []

    def note(self, place: int | None, record: TrialRecord) -> None:
        """Take note of a trial of a switch."""
        if record.comparable:
            self.speeds.setdefault(place, []).append(math.log(record.comparable.speed))
        else:
            self.endings[place] = record.detail or record.ending.value

    def gains(self) -> list[Gain]:
        """Return what each switch gains, with an interval of 95 % from the pooled spread of all trials."""
        variance, df = pooled_variance(list(self.speeds.values()))
        prior_df = 3.0  # of ln speed between trials of one point: the prior of a study's first trials
        variance = (df * variance + prior_df * 0.025**2) / (df + prior_df)
        quantile = student_t_quantile(0.975, df + prior_df)
        baseline, found = self.speeds[None], []
        for place, switch in enumerate(self.switches):
            speeds, ending = self.speeds.get(place, []), self.endings.get(place, "")
            if not speeds or not baseline or ending:
                why_not = ending or "no trial of it gave numbers"
                found.append(Gain(switch=switch, gain=None, why_not=why_not))
                continue
            mean = fmean(speeds) - fmean(baseline)
            half = quantile * math.sqrt(variance * (1.0 / len(speeds) + 1.0 / len(baseline)))
            low, high = math.exp(mean - half), math.exp(mean + half)
            found.append(Gain(switch=switch, gain=Ratio(ratio=math.exp(mean), low=low, high=high)))
        return found


def judge_switches(plan: SwitchPlan, measured: Sequence[Gain], bounds: Bounds | None, why_not: str = "") -> CheckResult:
    """Judge what the switches gain: one issue for each that helps, and one for those that were not tried.

    Args:
        bounds: What those that were not tried can gain at most; None if that is not known.
        why_not: Reason for which none was tried; empty if some were.
    """
    issues, told = [], []
    for one in measured:
        change = _change(one.switch)
        if one.gain is None:
            told.append(f"{change} gave no numbers ({one.why_not})")
            continue
        told.append(f"{change} {ratio_text(one.gain)} as fast")
        if one.gain.low > CANNOT_MATTER:
            issues.append(_helps(one.switch, one.gain))
    if plan.not_tried:
        issues.append(_not_tried(plan.not_tried, bounds))
    for on_step, paths in plan.irrelevant_knobs.items():
        if paths:
            side = "the step cannot matter now" if on_step else "the input cannot matter now"
            told.append(f"{', '.join(paths)} left alone, as {side}")
    if not told:
        why_not = why_not or "no knob of this config has another value worth trying"
        return CheckResult(check="switches", issues=tuple(issues), why_not=why_not)
    return CheckResult(check="switches", issues=tuple(issues), sentence=f"{'; '.join(told)}.")


def _helps(switch: Switch, gain: Ratio) -> Issue:
    return Issue(
        check="switches",
        severity=Severity.WARNING,
        sentence=f"{_change(switch)} is {ratio_text(gain)} as fast.",
        place=", ".join(knob.path for knob in switch.knobs),
        bound=gain,
        limit=Limit.STEP if switch.on_step else Limit.LOADING,
        recommendations=(_recommendation(switch, gain, GainBasis.MEASURED),),
    )


def _not_tried(switches: Sequence[Switch], bounds: Bounds | None) -> Issue:
    advice = []
    for switch in switches:
        bound = None if bounds is None else bound_of(switch, bounds)
        advice.append(_recommendation(switch, bound, GainBasis.BOUNDED if bound else GainBasis.NOT_TRIED))
    sentence = f"{len(switches)} more may help, and a few short trials do not show it: a search does."
    return Issue(check="switches", severity=Severity.NOTE, sentence=sentence, recommendations=tuple(advice))


_THREADS = ("threads", "torch_threads", "intra_op_threads", "inter_op_threads", "loader_threads", "thread_variable")
_AHEAD = (
    *("prefetch", "prefetch_switch", "prefetch_factor", "persistent_workers", "pipeline_buffer"),
    *("pin_memory", "prefetch_to_gpu"),
)
_BOUND_MARGIN = 1.1  # the loader alone is measured in rounds of a second


def bound_of(switch: Switch, bounds: Bounds) -> Ratio | None:
    """Return what a switch gains at most by the part of the training that it acts on; None where that is not known.

    So many times the workers load at most so many times as fast; what only loads ahead makes neither loading nor the
    step faster than it is alone; threads serve both.
    """
    knob = switch.knobs[0]
    if knob.kind in _THREADS:
        return None
    whole = bounds.free_step if switch.on_step else bounds.free_data
    loading = bounds.speeds.get(_LOAD)
    if whole is None or loading is None or switch.on_step:
        return whole
    faster, before, after = math.inf, number_of(knob.baseline), number_of(switch.changes[knob.path])
    if knob.kind in _AHEAD:
        faster = 1.0
    elif traits_of(knob).counts == "workers" and is_number(before) and is_number(after) and after > 0:  # type: ignore[operator]
        faster = float(after) / max(1.0, float(before))  # type: ignore[arg-type]
    most = max(1.0, _BOUND_MARGIN * min(faster * loading, bounds.speeds[_REPLAY]) / bounds.speeds[_TRAIN])
    return Ratio(ratio=min(whole.ratio, most), low=min(whole.low, most), high=min(whole.high, most))


def _recommendation(switch: Switch, gain: Ratio | None, evidence: GainBasis) -> Recommendation:
    meanings = [meaning for knob in switch.knobs if (meaning := traits_of(knob).meaning)]
    sentence: str = _change(switch)
    if meanings:
        sentence = f"{sentence} ({'; '.join(meanings)})"
    cost = "each sample may teach less" if switch.label is Label.BATCH and evidence is GainBasis.MEASURED else ""
    label = switch.label.value
    return Recommendation(
        sentence=sentence, values=switch.changes, gain=gain, evidence=evidence, label=label, cost=cost
    )


def _change(switch: Switch) -> str:
    return ", ".join(f"{path}: {written(value)}" for path, value in switch.changes.items())


# Check of what is in force in the trainer's process: threads, precision, eager mode, devices, against the config.


def judge_in_force(events: Sequence[TraineeEvent], space: Space, machine: Machine) -> CheckResult:
    """Judge whether the trainer's process works as the config says.

    Args:
        events: Events of a trial that was taken through phases: it reports its settings when these begin.
        space: The search space; its knobs are those that are compared.
    """
    reported = [event.settings for event in events if event.kind == "in_force" and event.settings]
    if not reported:
        why_not = "no framework in the trainer's process has told its settings"
        return CheckResult(check="in-force", why_not=why_not)
    settings = reported[-1]
    issues = []
    gpus = [settings[name] for name in ("tensorflow.gpus", "torch.gpus") if name in settings]
    if machine.gpus and gpus and not any(gpus):
        name = machine.gpus[0].name
        unused = f"{name} is there, and the trainer's framework uses no GPU: it trains on the CPU."
        issues.append(issue("in-force", unused, severity=Severity.ERROR, limit=Limit.STEP))
    for knob in space.knobs:
        for there in _differences(knob, settings):
            sentence = f"{knob.path}: {written(knob.baseline)} is not in force: {there}."
            limit = Limit.HOST if knob.kind == "graph_mode" else None
            issues.append(issue("in-force", sentence, place=knob.path, limit=limit))
    told = ", ".join(f"{name} {written(value)}" for name, value in settings.items())
    return CheckResult(check="in-force", issues=tuple(issues), sentence=f"{told}.")


def _differences(knob: Knob, settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yield what a framework says of a knob, where it is not today's value."""
    value = knob.baseline
    for name in traits_of(knob).reported_as:
        there = settings.get(name)
        if isinstance(value, int) and value > 0 and there is not None and there != value:
            yield f"{name} is {written(there)}"
    policy, half = settings.get("keras.precision"), ("mixed_float16", "mixed_bfloat16")
    if knob.kind == "precision" and isinstance(value, str) and policy is not None:
        # A trainer may cast by itself; the other way round nobody does by accident.
        if value == "float32" and policy in half:
            yield f"Keras' policy is {written(policy)}"
        elif value in half and policy != value:
            yield f"Keras' policy is {written(policy)}; a trainer may cast by itself"
    if knob.kind == "graph_mode" and value is True and settings.get("tensorflow.runs_eagerly") is True:
        yield "TensorFlow runs functions eagerly, op by op"
