"""Checks of the steps of one trial: time outside of steps, slow steps, drift, and recurring costs."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from autotune.clock import format_duration
from autotune.diagnose.findings import (
    MOST_SHARE,
    CheckResult,
    Issue,
    Limit,
    Severity,
    capitalized,
    issue,
    milliseconds,
    percent,
)
from autotune.diagnose.place_checks import PAUSE, source_of
from autotune.diagnose.tables import RULES
from autotune.measure.phases import without
from autotune.measure.trend import Trend, trend
from autotune.measure.window import main_stream
from autotune.records import PAUSES, Ratio, TraineeEvent

# Time outside of steps: evaluations and checkpoints, as shares of the whole.


_PAUSES = {
    "eval": ("evaluation", "evaluate less often, on fewer samples, or in a separate process"),
    "checkpoint": ("checkpoint", "save less often, less data, or while training continues"),
}


def judge_outside_steps(events: Sequence[TraineeEvent]) -> CheckResult:
    """Judge the share of the time in evaluations and checkpoints."""
    pairs = _successive_steps(events)
    if len(pairs) < 4:
        return CheckResult(check="outside-steps", why_not="too few steps were seen")
    all_s = pairs[-1][1].t_s - pairs[0][0].t_s
    issues, parts = [], []
    for kind, spent_s in _pauses(pairs).items():
        (what, remedy), times = _PAUSES[kind], len(spent_s)
        each_s = median(spent_s[1:] or spent_s)  # the first one includes compilation
        share = min(MOST_SHARE, each_s * times / all_s)
        parts.append(f"{what} {percent(share)}")
        if share <= 0.05:
            continue
        # The last cycle is cut short: the true share is between the observed one and that with one pause more. Of a
        # single pause only half is certain.
        low, high = (share if times > 1 else 0.5 * share), min(MOST_SHARE, share * (times + 1) / times)
        each = milliseconds(each_s)
        seen = f"{times} of {each}" if times > 1 else f"one of {each}"
        sentence = f"The {what} takes {percent(share)} of the time (seen: {seen})."
        bound = Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
        numbers = {"time_fraction": share, "times": float(times), "each_s": each_s}
        advice = f"{capitalized(remedy)}."
        found = issue("outside-steps", sentence, advice, numbers=numbers, bound=bound, limit=Limit.OUTSIDE, rule=what)
        issues.append(found)
    sentence = f"Share of the time: {', '.join(parts)}." if parts else "No evaluation or checkpoint was seen."
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
    """Return the times of pauses by kind, in s, less a usual step."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    usual_s = median(after.t_s - before.t_s for before, after, _kinds in pairs)
    for before, after, between in pairs:
        # The step after a pause may refill the pipeline: a cost of the pause.
        kinds = between.intersection(PAUSES)
        for kind in kinds:
            found[kind].append(max(0.0, after.t_s - before.t_s - usual_s) / len(kinds))
    return found


# Steadiness: recurring slow steps, and drift.


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Step with its time since the end of the previous one, and its wait for data, None if not reported."""

    number: int
    end_s: float
    duration_s: float
    wait_s: float | None
    begins_epoch: bool


def timed_steps(events: Sequence[TraineeEvent]) -> list[TimedStep]:
    """Return the steps of a trial without warm-up, pauses and recurring costs."""
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
    return found[min(20, int(0.2 * len(found))) :]  # warm-up: tracing, compiling, filling caches


def slow_steps(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Return the steps that are far slower than the median."""
    usual_s = median([step.duration_s for step in steps] or [0.0])
    # at least 5 ms slower: smaller excesses are noise of the machine
    return [step for step in steps if step.duration_s > max(3.0 * usual_s, usual_s + 0.005)]


def judge_steadiness(steps: Sequence[TimedStep], events: Sequence[TraineeEvent] = (), folder: str = "") -> CheckResult:
    """Judge whether slow steps recur and cost much of the time."""
    if len(steps) < 30:
        return CheckResult(check="steadiness", why_not=f"{len(steps)} steps are too few")
    if (slower := _drift(steps)) is not None:
        return CheckResult(check="steadiness", issues=(slower,))  # else its last steps would all count as slow
    usual_s, slow = median(step.duration_s for step in steps), slow_steps(steps)
    each_s = [step.duration_s - usual_s for step in slow]
    excess_s, all_s = sum(each_s), steps[-1].end_s - (steps[0].end_s - steps[0].duration_s)  # pauses included
    share = excess_s / all_s
    # slow steps at most 3 steps apart are one event, e.g. load of another process
    times = slow[:1] + [step for before, step in pairwise(slow) if step.number - before.number > 3]
    count = len(times)
    # at least 5 % of the time, 2.5 % without the longest one, and three events
    if share < 0.05 or excess_s - max(each_s) < 0.025 * all_s or count < 3:
        return CheckResult(check="steadiness")
    when = _recurrence(times)
    # Irregular events: two standard errors of a Poisson count.
    bound = without(share, 2.0 * share / count**0.5)
    if when is not None:  # regular events: the last cycle is cut short
        low, high = share * count / (count + 1), min(MOST_SHARE, share * (count + 1) / count)
        bound = Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high))
    waits_s = [step.wait_s for step in slow if step.wait_s is not None]
    are_known = len(waits_s) == len(slow)
    waiting = {"waiting_fraction": min(1.0, sum(waits_s) / excess_s)} if are_known else {}
    wait = are_known and sum(waits_s) >= 0.7 * excess_s
    # a loader hands over batches in cycles of as many as it has workers; what recurs more rarely, it does in between
    distance = (times[-1].number - times[0].number) / (count - 1)
    is_input = wait and when != _AT_EPOCHS and (when is None or distance <= _MOST_WORKERS)
    where = ""
    if when == _AT_EPOCHS:
        where = ", when iterators, shuffle buffers, workers and callbacks start again"
    elif are_known:
        busy = ", and do not wait for data: look for other work in the training loop"
        where = ", and wait for data" if wait else busy
    sentence = (
        f"{len(slow)} of {len(steps)} steps take {milliseconds(usual_s + fmean(each_s))} on average instead of "
        f"{milliseconds(usual_s)}: {percent(share)} of the time. They occur {when or 'irregularly'}{where}."
    )
    place, fraction = _line_of(slow, events)
    is_known = fraction >= 0.5
    pause = PAUSE.search(_words_at(place)) if is_known else None
    line, _, name = place.removeprefix(f"{folder}/").rpartition(" ")
    if is_known:
        sentence += f" {percent(min(1.0, fraction))} of that time the loop is at {line} in {name}."
    if pause:
        sentence += f" That is {pause[1]}."
    is_named = is_known and (when != _AT_EPOCHS or pause is not None)  # else it is the loop itself, not the cause
    remedy = "Run that line less often, on less data, or in parallel with training." if is_named else ""
    if wait and is_named:
        remedy = "Load more batches ahead of the step: by workers of the loader, or by prefetching."
    if when == _AT_EPOCHS and not is_named:
        remedy = "Keep buffers, pools and workers between epochs, or fill them while training continues."
    found = issue(
        "steadiness",
        sentence,
        remedy,
        numbers={
            "slow_steps": float(len(slow)),
            "steps": float(len(steps)),
            "slow_step_s": usual_s + fmean(each_s),
            "usual_step_s": usual_s,
            "time_fraction": share,
            "line_fraction": min(1.0, fraction),
            "is_input": float(is_input),
            **waiting,
        },
        bound=bound,
        limit=Limit.OUTSIDE if pause else Limit.STALLS,
        place=line if is_named else "",
    )
    return CheckResult(check="steadiness", issues=(found,))


def _drift(steps: Sequence[TimedStep]) -> Issue | None:
    """Return the issue of a certain slowdown of steps, if any."""
    blocks = np.array_split(np.arange(len(steps)), 20)
    durations_s, ends_s = (np.array([getattr(step, name) for step in steps]) for name in ("duration_s", "end_s"))
    times_s = np.array([float(np.median(ends_s[block])) for block in blocks])
    blocks_s = np.array([float(np.median(durations_s[block])) for block in blocks])
    found, length_s = trend(times_s, np.log(blocks_s)), float(times_s[-1] - times_s[0])
    # excludes a single change of speed, e.g. by another process
    if found.concordance < 0.6 or math.expm1(found.low * length_s) < 0.2:
        return None
    first_s, last_s = float(np.median(blocks_s[:3])), float(np.median(blocks_s[-3:]))
    waits = [step.wait_s / step.duration_s for step in steps if step.wait_s is not None]
    waiting = " Most of a step is waiting for data." if len(waits) == len(steps) and median(waits) > 0.5 else ""
    sentence = (
        f"Steps slow down from {milliseconds(first_s)} to {milliseconds(last_s)} within {len(steps)} steps and "
        f"{format_duration(length_s)}: {_slower_text(found)}.{waiting}"
    )
    remedy = (
        "Look for something that grows with each step, often with memory: operations added to a graph in the loop, "
        "losses kept with their graph, a list or log that is scanned. Otherwise check for thermal throttling and a "
        "full disk."
    )
    ratio = max(1.0, float(durations_s.mean()) / first_s)
    low, high = (max(1.0, ratio * math.exp((end - found.slope) * length_s / 2.0)) for end in (found.low, found.high))
    bound = Ratio(ratio=ratio, low=low, high=high)
    numbers = {
        "first_step_s": first_s,
        "last_step_s": last_s,
        "slower_per_minute": math.expm1(60.0 * found.slope),
        "slower_per_minute_low": math.expm1(60.0 * found.low),
        "slower_per_minute_high": math.expm1(60.0 * found.high),
        "time_fraction": 1.0 - 1.0 / bound.ratio,
    }
    return issue("steadiness", sentence, remedy, numbers=numbers, bound=bound, limit=Limit.DRIFT)


def _slower_text(found: Trend) -> str:
    slopes = found.slope, found.low, found.high
    if 60.0 * found.slope < math.log(2.0):
        rate, low, high = (percent(math.expm1(60.0 * slope)) for slope in slopes)
        return f"{rate} slower every minute ({low} to {high})"
    rate, high, low = (format_duration(math.log(2.0) / slope) for slope in slopes)
    return f"twice as long every {rate} ({low} to {high})"


def _line_of(slow: Sequence[TimedStep], events: Sequence[TraineeEvent]) -> tuple[str, float]:
    """Return the line that the loop is at for most of the time of slow steps, and its share of their time.

    Of lines that call each other, the innermost one with half of the time counts. An empty place has the share 0.
    """
    stays_s: defaultdict[str, float] = defaultdict(float)
    whole_s: defaultdict[str, float] = defaultdict(float)
    depths: dict[str, int] = {}
    for event in events:
        if event.kind == "cost" and event.cost == "stay" and event.place and event.duration_s:
            begin_s = event.t_s - event.duration_s
            for step in slow:
                within_s = min(event.t_s, step.end_s) - max(begin_s, step.end_s - step.duration_s)
                stays_s[event.place] += max(0.0, within_s)
            whole_s[event.place] += event.duration_s
            depths[event.place] = event.times or 0
    all_s = sum(step.duration_s for step in slow)
    # excludes lines that the loop is always at, e.g. the call of the whole training
    specific = [place for place, stay_s in stays_s.items() if stay_s >= 0.5 * whole_s[place]]
    most = [place for place in specific if stays_s[place] >= 0.5 * all_s]
    place = max(
        most,
        # name the evaluation itself, not the functions that it calls
        key=lambda place: (PAUSE.search(_words_at(place)) is not None, depths[place], stays_s[place]),
        default=max(specific, key=stays_s.__getitem__, default=""),
    )
    return place, stays_s[place] / all_s


def _words_at(place: str) -> str:
    """Return the source line at a place, and its function as a call."""
    return f"{source_of(place)} {place.rpartition(' ')[2]}("


_MOST_WORKERS = 32
_AT_EPOCHS = "at the start of each epoch"


def _recurrence(slow: Sequence[TimedStep]) -> str | None:
    if sum(step.begins_epoch for step in slow) > 0.5 * len(slow):
        return _AT_EPOCHS
    steps = [after.number - before.number for before, after in pairwise(slow)]
    seconds = [after.end_s - before.end_s for before, after in pairwise(slow)]
    regular = 0.2  # largest coefficient of variation of the distances
    if pstdev(steps) < regular * fmean(steps):
        return f"every {fmean(steps):.0f} steps"
    if pstdev(seconds) < regular * fmean(seconds):
        return f"every {fmean(seconds):.1f} s"
    return None


# Recurring costs apart from arithmetic: repeated compilation, restarted workers, Python in a graph, launches.


_FEW_SHAPES = "pass tensors of few shapes (padded or bucketed) instead of Python numbers, and create the function once"
_LEAST_USUAL = 3  # steps without a recurring cost

_COSTS = {
    "trace": ("is traced again", _FEW_SHAPES, Limit.COMPILING),
    "compile": ("is compiled again", _FEW_SHAPES, Limit.COMPILING),
    "workers": ("restarts the loader's workers", "keep them: persistent_workers=True", Limit.STALLS),
}


def judge_costs(events: Sequence[TraineeEvent], folder: str, phased_events: Sequence[TraineeEvent] = ()) -> CheckResult:
    """Judge the recurring costs apart from arithmetic; `phased_events` count operations."""
    pairs = _successive_steps(events)
    pairs = pairs[min(20, int(0.2 * len(pairs))) :]  # excludes costs that occur once, at the start
    if len(pairs) < 10:
        return CheckResult(check="recurring-costs", why_not="too few steps were seen")
    begin_s, end_s = pairs[0][0].t_s, pairs[-1][1].t_s
    if end_s <= begin_s:
        return CheckResult(check="recurring-costs", why_not="all steps were reported at the same time")
    usual_s = median(after.t_s - before.t_s for before, after, _kinds in pairs)
    of_whole = min(1.0, usual_s * len(pairs) / (end_s - begin_s))  # time of usual steps
    issues: list[Issue] = []
    for (kind, place), counts in _costs_by_place(events).items():
        name = place.removeprefix(f"{folder}/")
        if kind == "cut":
            issues.append(_cut(name, counts[-1].text or ""))
        late = [one for one in counts if begin_s < one.t_s <= end_s]
        if not late:
            continue
        # Sums are cumulative: the first one may include costs before the first step.
        first = next((one for one in reversed(counts) if one.t_s <= begin_s), late[0])
        times = (late[-1].times or 0) - (first.times or 0)
        took_s = (late[-1].duration_s or 0.0) - (first.duration_s or 0.0)
        if kind == "python":
            share = took_s / (end_s - begin_s)
            if share > 0.2:  # of all calls, which may overlap if they release Python's lock
                issues.append(_python(name, times, took_s, share))
        elif kind in _COSTS and times >= 3:
            # The first use of a compiled function is slow, too, so the whole steps count.
            at = [one.t_s for one in late]
            spans = [
                (after.t_s - before.t_s, any(before.t_s < t <= after.t_s for t in at), kinds.isdisjoint(PAUSES))
                for before, after, kinds in pairs
            ]
            within = sum(has_cost for _, has_cost, _ in spans)
            # excludes pauses, which are slow anyway
            slow = [taken_s for taken_s, has_cost, is_step in spans if has_cost and is_step]
            usual = [taken_s for taken_s, has_cost, is_step in spans if is_step and not has_cost]
            is_least = len(usual) < _LEAST_USUAL  # a step without this cost is unknown
            each_s = fmean(slow) - median(usual) if slow and not is_least else 0.0
            # some are reported together with the previous one
            excess_s = max(took_s, max(times * len(slow) / max(1, within), len(slow)) * each_s)
            share = min(MOST_SHARE, excess_s / (end_s - begin_s))
            if share > 0.05:
                issues.append(_repeated(kind, name, times, len(pairs), share, late[-1].text, is_least=is_least))
    issues += _uncompiled(events, folder, begin_s, end_s)
    ends_s = [after.t_s for _before, after, _kinds in _successive_steps(phased_events)]
    for (kind, place), counts in _costs_by_place(phased_events).items():
        name = place.removeprefix(f"{folder}/")
        if kind == "eager":
            issues += _eager(name, counts, ends_s, usual_s, of_whole)
        elif kind == "launch":
            issues += _launches(name, counts[-1], usual_s, of_whole)
        elif kind == "wait":
            issues += _waits_for_gpu(name, counts[-1], usual_s, of_whole)
    return CheckResult(check="recurring-costs", issues=tuple(issues))


def _costs_by_place(events: Sequence[TraineeEvent]) -> dict[tuple[str, str], list[TraineeEvent]]:
    found: dict[tuple[str, str], list[TraineeEvent]] = {}
    for event in events:
        if event.kind == "cost" and event.cost and event.place:
            found.setdefault((event.cost, event.place), []).append(event)
    return found


def _python(place: str, times: int, took_s: float, share: float) -> Issue:
    sentence = (
        f"{place} is Python that TensorFlow calls {times} times: {milliseconds(took_s / times)} each, "
        f"{percent(share)} of the time in total. The calls compete for Python's lock (GIL)."
    )
    remedy = next(rule.remedy for rule in RULES if rule.id == "python-in-graph")  # the same text: deduplicated
    numbers = {"time_fraction": share, "times": float(times), "each_s": took_s / times}
    return _cost(place, sentence, remedy, numbers=numbers, limit=Limit.PREPARING)


def _uncompiled(events: Sequence[TraineeEvent], folder: str, begin_s: float, end_s: float) -> Iterator[Issue]:
    """Yield JAX gradients outside of compiled functions if Python is busy: the main thread only launches."""
    costs = [one for one in events if one.kind == "cost" and begin_s <= one.t_s <= end_s]
    gradients = [one for one in costs if one.cost == "gradient" and one.place]
    main = [one for one in costs if one.cost == "main"]
    if len(gradients) < 3 or len(main) < 2:
        return
    busy_s = (main[-1].duration_s or 0.0) - (main[0].duration_s or 0.0)
    share = min(MOST_SHARE, busy_s / (main[-1].t_s - main[0].t_s))
    if share > 0.2:  # a compiled step leaves Python mostly idle
        place = (gradients[-1].place or "").removeprefix(f"{folder}/")
        sentence = (
            f"{place} computes the gradient op by op, outside of a compiled function: Python is busy "
            f"for {percent(share)} of the time."
        )
        remedy = "Decorate the function that computes and applies the gradients with @jax.jit."
        numbers = {"time_fraction": share}
        yield _cost(place, sentence, remedy, numbers=numbers, bound=without(share, 0.1 * share), limit=Limit.HOST)


def _eager(
    place: str, counts: Sequence[TraineeEvent], steps_s: Sequence[float], step_s: float, of_whole: float
) -> Iterator[Issue]:
    """Yield the TensorFlow operations that Python launches in each step, if there are many.

    The window with the fewest counts: others include e.g. the start of an epoch.
    """
    seen = []
    for window in counts:
        steps = sum(window.t_s - (window.duration_s or 0.0) <= end_s <= window.t_s for end_s in steps_s)
        seen += [((window.times or 0) / steps, window)] if steps else []
    a_step, window = min(seen, key=lambda one: one[0], default=(0.0, counts[-1]))
    if a_step > 25:  # a compiled step has a few as well: its batch, its metrics
        sentence = f"{place}: Python launches {a_step:.0f} TensorFlow operations in each step, one by one."
        remedy = "Decorate the function that computes and applies the gradients with @tf.function."
        with suppress(ValueError):
            each_us, between_s = map(float, (window.text or "").split())
            share = max(a_step * 1e-6 * each_us / step_s, between_s / (window.duration_s or math.inf))
            yield _of_launches(place, sentence, remedy, a_step, min(MOST_SHARE, share), of_whole)


def _launches(place: str, counts: TraineeEvent, step_s: float, of_whole: float) -> Iterator[Issue]:
    """Yield the PyTorch operations of a step, if they are many and short."""
    count, launch_s = counts.times or 0, counts.duration_s or 0.0
    share = min(MOST_SHARE, launch_s / step_s)
    if count >= 200 and step_s / count < 50e-6 and share > 0.05:  # usual operations take longer
        sentence = (
            f"{place}: PyTorch runs {count} operations in each step, {1e6 * step_s / count:.0f} µs each on average; "
            f"launching them takes at least {percent(share)} of the step."
        )
        remedy = "Use fewer operations: process whole batches at once, use torch.compile, or use a larger batch."
        yield _of_launches(place, sentence, remedy, count, share, of_whole)


def _waits_for_gpu(place: str, counts: TraineeEvent, step_s: float, of_whole: float) -> Iterator[Issue]:
    """Yield the reads from the GPU in a step, each of which waits for all earlier work."""
    count, trip_s = counts.times or 0, counts.duration_s or 0.0
    share = min(MOST_SHARE, trip_s / step_s)
    if share > 0.05:
        sentence = (
            f"{place}: Python waits for the GPU {count} times in each step (.item(), .cpu(), a tensor as a "
            f"condition), and then the GPU for Python: at least {percent(share)} of the step."
        )
        remedy = "Keep results on the GPU, and read them every N steps."
        yield _of_launches(place, sentence, remedy, count, share, of_whole)


def _of_launches(place: str, sentence: str, remedy: str, count: float, of_step: float, of_whole: float) -> Issue:
    """Return the issue of launches that take at least the share `of_step` of usual steps."""
    share = of_step * of_whole
    numbers = {"operations_per_step": float(count), "step_fraction": of_step, "time_fraction": share}
    return _cost(place, sentence, remedy, numbers=numbers, bound=without(share, 0.3 * share), limit=Limit.HOST)


def _cost(place: str, sentence: str, remedy: str = "", **about: Any) -> Issue:
    return issue("recurring-costs", sentence, remedy, place=place.rpartition(" ")[0] or place, **about)


def _cut(place: str, why: str) -> Issue:
    sentence = f"torch.compile breaks the graph of {place}, with Python in between: {why}"
    return _cost(place, sentence, severity=Severity.NOTE, limit=Limit.HOST)


def _repeated(kind: str, place: str, times: int, steps: int, share: float, why: str | None, *, is_least: bool) -> Issue:
    what, remedy, limit = _COSTS[kind]
    reason = f" (the last time {why})" if why else ""
    takes = f"{'at least ' if is_least else ''}{percent(share)} of the time"
    sentence = f"{place} {what} {times} times in {steps} steps{reason}: {takes}."
    numbers = {"times": float(times), "time_fraction": share}
    bound = without(share, 2.0 * share / times**0.5)
    if is_least:
        bound = replace(bound, high=1.0 / (1.0 - MOST_SHARE))
    return _cost(place, sentence, f"{capitalized(remedy)}.", numbers=numbers, bound=bound, limit=limit)
