"""Checks by samples of the main thread: before the first step, and in loops whose batches cannot be replayed."""

import linecache
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.clock import format_duration
from autotune.diagnose.findings import (
    MOST_SHARE,
    CheckResult,
    Issue,
    Limit,
    Severity,
    issue,
    milliseconds,
    percent,
)
from autotune.measure.phases import without
from autotune.records import TraineeEvent

# Time before the first step, by function of the trainer.


_IN_FRAMEWORK = "in the framework"
_LONG_S = 5.0  # smallest issue, in one place: about as long as importing a framework


def judge_start(events: Sequence[TraineeEvent], first_step_s: float, folder: str) -> CheckResult:
    """Judge the time from the start of the process to the end of the first step."""
    took_s: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.kind == "cost" and event.cost == "before" and event.place and event.duration_s:
            place, _, name = event.place.rpartition(" ")
            is_import = source_of(event.place).startswith(("import ", "from "))
            shown = place.removeprefix(f"{folder}/")
            own = shown if name == "<module>" else f"{shown} {name}"
            took_s["imports" if is_import else _IN_FRAMEWORK if event.text else own] += event.duration_s
    if not took_s:
        return CheckResult(check="start", why_not="the main thread was not sampled before the first step")
    largest = sorted(took_s.items(), key=lambda one: -one[1])
    parts = ", ".join(f"{format_duration(spent_s)} {_at(place)}" for place, spent_s in largest[:4] if spent_s > 0.1)
    sentence = f"The first step ends {format_duration(first_step_s)} after the start: {parts or 'no place takes long'}."
    place, spent_s = next((one for one in largest if one[0] not in ("imports", _IN_FRAMEWORK)), ("", 0.0))
    if spent_s < _LONG_S:
        return CheckResult(check="start", sentence=sentence)
    remedy = (
        "Run it once, in parallel, and save the result; for text, use `prepare` of autotune.tf.text (no TensorFlow)."
    )
    numbers = {"first_step_s": first_step_s, "longest_s": spent_s}
    where = place.partition(" ")[0]
    found = issue("start", sentence, remedy, severity=Severity.NOTE, place=where, numbers=numbers)
    return CheckResult(check="start", issues=(found,))


def _at(place: str) -> str:
    return f"at {place.replace(' ', ' in ')}" if ":" in place else place


# Input of loops whose batches cannot be replayed: lines of the loop outside of frameworks.


PAUSE = re.compile(r"\b((?:run_|do_)?(?:valid|eval|test|checkpoint|save)\w*)\(")
"""Calls of evaluations and checkpoints, by name."""

_NO_INPUT = re.compile(
    r"(?:^|_)(?:metrics?|accurac(?:y|ies)|auc|roc|f1|scores?|calibration|confusion|logs?|logging|plots?|reports?|"
    r"summary|summaries|monitor|visuali[sz]e)(?:_|$)"
)
"""Names of functions that a training can call less often."""

_BUSY = 0.5  # smallest CPU share of a line that computes instead of waiting
_WITHIN = 0.1  # smallest time in the framework over the time outside, for a line that launches operations
_LEAST_IN_THREADS = 0.3  # of one core
_LATE_S = 0.001  # mean wait for the lock; Python code releases it every 5 ms, numpy at once
_LEAST_OWN = 0.1  # smallest share of an issue: samples are 10 ms apart


def judge_own_loading(events: Sequence[TraineeEvent], steadiness: CheckResult, folder: str) -> CheckResult | None:
    """Judge the time of the loop outside of its framework; None if not sampled.

    The loop is one thread, so this time and the steps alternate. Other threads that compute in Python hold the lock
    that the loop needs. The time of slow steps (`steadiness`) is not counted again.
    """
    lines = _own_lines(events)
    steps_s = [event.t_s for event in events if event.kind == "step"]
    if not lines or len(steps_s) < 10:
        return None
    all_s = max(event.t_s for event in lines) - steps_s[0]
    thread = _thread_of(events, all_s, folder)
    if thread is not None and thread.holds_lock:
        return CheckResult(check="input", issues=(_holding_lock(thread),))
    place = (lines[0].place or "").removeprefix(f"{folder}/")
    line = place.rpartition(" ")[0]
    name = " and ".join(dict.fromkeys(map(_name_of, lines)))
    took_s, used_s, _ = (sum(times) for times in zip(*map(_loop_times, lines), strict=True))
    slow = sum(one.numbers["time_fraction"] for one in steadiness.issues if one.place in ("", line))
    share = min(MOST_SHARE, took_s / all_s - slow) if all_s > 0.0 else 0.0
    if share < _LEAST_OWN or PAUSE.search(f"{source_of(lines[0].place or '')} {_name_of(lines[0])}("):
        sentence = (
            f"The loop is outside of its framework for at most {percent(max(0.0, share))} of the time in one place."
        )
        return CheckResult(check="input", sentence=sentence)
    alone_s, _, within_s = _loop_times(lines[0])
    if within_s > _WITHIN * alone_s:
        return CheckResult(check="input", issues=(_between_operations(place, share),))
    busy = used_s / took_s
    # overlapped, a step would take as long as the longer of both: 0.3 as in `phased_checks._limit`
    overlaps = -math.log(max(share, 1.0 - share)) >= 0.3 * -math.log(1.0 - share)
    limit = Limit.OVERLAP if overlaps else Limit.PREPARING if busy >= _BUSY else Limit.READING
    how = f"computes for {percent(min(1.0, busy))} of it" if busy >= _BUSY else "mostly waits"
    sentence = (
        f"The loop spends {percent(share)} of the time outside of its framework, in {name} (mostly at {line}), and "
        f"{how}."
    )
    remedy = "Run it ahead of the step, in a thread or in loader workers."
    numbers = {"time_fraction": share, "busy_fraction": busy}
    if busy < _BUSY and thread is not None and thread.share >= _BUSY * share:
        sentence = (
            f"For {percent(share)} of the time the loop waits in {name} for a background thread, which computes for "
            f"{percent(thread.share)} of the time, mostly at {thread.line} in {thread.name}."
        )
        limit, line, numbers["thread_fraction"] = Limit.PREPARING, thread.line, thread.share
        remedy = "Prepare samples once and keep them, do less work per sample, or use more threads or processes."
    elif _is_metric(lines[0]):
        limit, remedy = Limit.OUTSIDE, "Do it less often, on less data, or in parallel with training."
    error = 2.0 * share / max(1.0, took_s / 0.5) ** 0.5  # each half a second counts as one sample
    about = issue(
        "input",
        sentence,
        remedy,
        place=line,
        numbers=numbers,
        bound=without(share, error),
        limit=limit,
    )
    return CheckResult(check="input", issues=(about,))


def without_loading(
    steadiness: CheckResult, events: Sequence[TraineeEvent], slow: Sequence[tuple[float, float]]
) -> CheckResult:
    """Drop the issue of slow steps if the loop's own loading causes them: `judge_own_loading` reports that.

    Args:
        slow: Start and end times of its slow steps, in s.
    """
    lines = _own_lines(events)
    if not lines or not steadiness.issues:
        return steadiness
    ends_s = [event.t_s for event in events if event.kind == "step"]
    all_s = max(event.t_s for event in lines) - ends_s[0] if ends_s else 0.0
    thread = _thread_of(events, all_s, "")
    if thread is not None and thread.holds_lock:  # the loop may wait for the lock at any line
        return replace(steadiness, issues=())
    functions = set(map(_function_of, lines))
    stays = [
        event for event in events if event.cost == "stay" and event.duration_s and _function_of(event) in functions
    ]
    within_s = sum(
        max(0.0, min(stay.t_s, end_s) - max(stay.t_s - (stay.duration_s or 0.0), begin_s))
        for begin_s, end_s in slow
        for stay in stays
    )
    usual_s = sum(_loop_times(line)[0] for line in lines) - within_s
    # work of some steps only, such as logging, takes no time of usual steps
    is_of_each = bool(ends_s) and usual_s > _LEAST_OWN * all_s
    is_slow_by_it = within_s > 0.5 * sum(end_s - begin_s for begin_s, end_s in slow)
    return replace(steadiness, issues=()) if is_of_each and is_slow_by_it else steadiness


@dataclass(frozen=True, kw_only=True)
class _Thread:
    """Background threads: their share of the time, the mean wait for Python's lock, and the place with most time."""

    share: float
    late_s: float
    line: str
    name: str

    @property
    def holds_lock(self) -> bool:
        return self.share >= _LEAST_IN_THREADS and self.late_s >= _LATE_S


def _thread_of(events: Sequence[TraineeEvent], all_s: float, folder: str) -> _Thread | None:
    thread = next((one for one in reversed(events) if one.kind == "cost" and one.cost == "thread" and one.place), None)
    if thread is None or thread.place is None or all_s <= 0.0:
        return None
    late_s = 0.0
    with suppress(ValueError):  # the trainer may have written any text
        late_s = float(thread.text or "")
    line, _, name = thread.place.removeprefix(f"{folder}/").rpartition(" ")
    return _Thread(share=min(MOST_SHARE, (thread.duration_s or 0.0) / all_s), late_s=late_s, line=line, name=name)


def _holding_lock(thread: _Thread) -> Issue:
    sentence = (
        f"A background thread computes for {percent(thread.share)} of the time, mostly at {thread.line} in "
        f"{thread.name}, and holds Python's lock (GIL): the loop waits for it, {milliseconds(thread.late_s)} each time "
        "on average."
    )
    remedy = "Use processes, or numpy, which releases the lock; more threads do not help."
    numbers = {"time_fraction": thread.share, "lock_wait_s": thread.late_s}
    bound = without(thread.share, 0.2 * thread.share)
    return issue("input", sentence, remedy, place=thread.line, numbers=numbers, bound=bound, limit=Limit.PREPARING)


def _own_lines(events: Sequence[TraineeEvent]) -> list[TraineeEvent]:
    """Return the lines of the function, or of all metrics, with the most time outside of the framework."""
    latest = {event.place: event for event in events if event.kind == "cost" and event.cost == "loop" and event.place}
    by_function: defaultdict[str, list[TraineeEvent]] = defaultdict(list)
    for event in latest.values():
        by_function["" if _is_metric(event) else _function_of(event)].append(event)
    found = max(by_function.values(), key=lambda lines: sum(_loop_times(line)[0] for line in lines), default=[])
    return sorted(found, key=lambda line: -_loop_times(line)[0])


def _function_of(event: TraineeEvent) -> str:
    file, _, name = (event.place or "").rpartition(" ")
    return f"{file.rpartition(':')[0]} {name}"


def _name_of(event: TraineeEvent) -> str:
    return (event.place or "").rpartition(" ")[2]


def _is_metric(event: TraineeEvent) -> bool:
    return _NO_INPUT.search(_name_of(event)) is not None


def _loop_times(event: TraineeEvent) -> tuple[float, float, float]:
    """Return times of a line in s: outside of its framework, the CPU time thereof, and within it."""
    used_s = within_s = 0.0
    with suppress(ValueError):  # the trainer may have written any text
        used_s, within_s = map(float, (event.text or "").split())
    if not math.isfinite(used_s + within_s):
        used_s = within_s = 0.0
    return event.duration_s or 0.0, used_s, within_s


def _between_operations(place: str, share: float) -> Issue:
    line, _, name = place.rpartition(" ")
    sentence = (
        f"For {percent(share)} of the time the loop is at {line} in {name}, between the framework operations that it "
        "launches there."
    )
    remedy = "Use fewer operations: process whole batches at once, in one compiled function."
    numbers = {"time_fraction": share}
    bound = without(share, 0.3 * share)
    return issue("input", sentence, remedy, place=line, numbers=numbers, bound=bound, limit=Limit.HOST)


def source_of(place: str) -> str:
    """Return the source line at a place; empty if there is none."""
    file, _, line = place.rpartition(" ")[0].rpartition(":")
    if not line.isdecimal() or not Path(file).is_file():  # the trainer may have written any text
        return ""
    return linecache.getline(file, int(line)).strip()
