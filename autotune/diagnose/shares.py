"""Where the time of a training goes: share, place and best change of each cause. Pure.

Shares are of the training time after the start and add up to 1: time outside of steps, slow steps, compilation, and of
usual steps waiting for data, the fixed cost, and the remainder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from autotune.diagnose.findings import (
    MOST_SHARE,
    NO_LIMIT,
    CheckResult,
    GainBasis,
    Issue,
    Limit,
    Recommendation,
    Severity,
    TimeShare,
)
from autotune.diagnose.step_checks import TimedStep
from autotune.diagnose.switches import THREADS
from autotune.measure.phases import Bounds, PhasedTrial
from autotune.records import Ratio, TrialPhase
from autotune.space.catalog import known_knob
from autotune.space.knob import number_of

INPUT = frozenset((Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING))
_STEP = frozenset((Limit.HOST, Limit.STEP))
_SLOW = {
    Limit.STALLS: "slow steps",
    Limit.DRIFT: "steps that get slower",
    Limit.OUTSIDE: "evaluation, checkpoints",
    Limit.COMPILING: "compiling",
}
_REMEDIES = {
    Limit.READING: "Read more files in parallel, use fewer and larger files, or copy them to a local disk.",
    Limit.PREPARING: "Prepare samples once and cache them in memory or in files, or do less work per sample.",
    Limit.OVERLAP: "Load ahead of the step, with loader workers or prefetching.",
}
"""Remedies for causes that no key of the config acts on."""

_ABOUT_KEYS = ("in-force", "switches")  # checks whose places are keys, not code
_WAITS = 1.05  # smallest certain gain by waits alone, without phases
_VAGUE = 2.0  # ratio of a bound's ends that makes it useless
_LEAST = 0.01  # smallest share of a row
_NOISE = 1.1  # ratio of speeds between trials
_MINOR = 0.3  # smallest gain, in ln, relative to that without its cause, of a change to name first
_SEEN = 0.8  # of the time that slow steps add to the mean step, if a trial in phases includes them
_WAITING = 0.7  # smallest waiting share of steps that are slow because of waiting


def side_of(limit: Limit) -> frozenset[Limit]:
    """Return the limits that share changes and places with this one."""
    return next((side for side in (INPUT, _STEP) if limit in side), frozenset({limit}))


def of_phases(bounds: Bounds, trial: PhasedTrial, steps: Sequence[TimedStep], *found: CheckResult) -> Bounds:
    """Return the bounds from phases, scaled to the whole training.

    Phases exclude the time outside of steps, and slow steps unless their own mean step includes them. Free data also
    remove recurring costs, and slow steps and a slow rank that wait for data; their shares are separate.

    Args:
        steps: Steps of the trial in which slow steps were found.
    """
    shares: dict[str, float] = {}
    for one in (one for result in found for one in result.issues if one.limit is not Limit.HOST and one.bound):
        if one.check != "ranks" or one.numbers["is_input"]:
            shares[one.check] = shares.get(one.check, 0.0) + one.numbers["time_fraction"]
    slow, waits = shares.get("steadiness", 0.0), False
    if slow and _has_slow_steps(trial, steps):
        (issue,) = (one for result in found if result.check == "steadiness" for one in result.issues)
        if issue.limit is not Limit.DRIFT:
            slow, waits = 0.0, _waits(issue)
    unseen = min(MOST_SHARE, shares.get("outside-steps", 0.0) + slow)
    repeated = shares.get("recurring-costs", 0.0) + shares.get("ranks", 0.0) + (shares["steadiness"] if waits else 0.0)
    return bounds.within(1.0 - unseen).less(repeated)


def without_input(steadiness: CheckResult, trial: PhasedTrial, steps: Sequence[TimedStep]) -> CheckResult:
    """Drop the issue of slow steps that are part of the input's time, if phases had them too."""
    is_input = any(one.numbers.get("is_input") for one in steadiness.issues)
    return replace(steadiness, issues=()) if is_input and _has_slow_steps(trial, steps) else steadiness


def _has_slow_steps(trial: PhasedTrial, steps: Sequence[TimedStep]) -> bool:
    phased_s = [
        one.batch / one.speeds[TrialPhase.TRAIN] for one in trial.rounds if one.batch and TrialPhase.TRAIN in one.speeds
    ]
    usual_s, mean_s = (function([step.duration_s for step in steps]) for function in (median, fmean))
    return bool(phased_s) and fmean(phased_s) - usual_s > _SEEN * (mean_s - usual_s)


def _waits(slow: Issue) -> bool:
    return slow.numbers.get("waiting_fraction", 0.0) >= _WAITING


def by_waiting(bounds: Bounds, steps: Sequence[TimedStep]) -> Bounds:
    """Return the bounds with the gain of free data by the waits of usual steps, if phases don't show it.

    Some loaders cannot run in phases; and short epochs make the rounds so different that the interval is useless.
    """
    gain = bounds.free_data
    is_clear = gain is not None and (gain.low > 1.0 or gain.high < _VAGUE * gain.low)
    if is_clear or not steps or any(one.wait_s is None for one in steps):
        return bounds
    usual_s, all_s = median(one.duration_s for one in steps), sum(one.duration_s for one in steps)
    waits_s = sum(min(one.wait_s or 0.0, one.duration_s) for one in steps if one.duration_s <= 3.0 * usual_s)
    low, ratio, high = (1.0 / (1.0 - min(MOST_SHARE, times * waits_s / all_s)) for times in (0.9, 1.0, 1.1))
    if gain is None and low < _WAITS:
        return bounds
    return replace(bounds, free_data=Ratio(ratio=ratio, low=low, high=high))


def time_shares(measured: Sequence[CheckResult], bounds: Bounds, static: Sequence[CheckResult]) -> list[TimeShare]:
    """Return the shares of the causes, the largest first, and last the remainder."""
    found = [*measured, *static]
    issues = [one for result in measured for one in result.issues if one.limit and one.severity is not Severity.NOTE]
    causes: list[_Cause] = []
    left = 1.0
    for cause, limit, fraction, issue in (*_by_steps(issues), *_of_usual_steps(issues, bounds)):
        if fraction >= _LEAST and left > 0.0:
            causes.append((cause, limit, min(fraction, left), issue))
            left -= causes[-1][2]
    of_steps = left + sum(fraction for _, limit, fraction, _ in causes if limit in _STEP)
    shares = [_share(*one, found, of_steps) for one in causes]
    is_seen = any(result.check == "input" and not result.why_not for result in measured)
    rest = "steps" if is_seen else "steps and their data"
    shares.sort(key=lambda one: -one.fraction)
    last = _share(rest, Limit.STEP, left, None, found, of_steps)
    named = [one.change.name for one in shares if one.change]
    is_named = last.change is not None and last.change.name in named
    return [*shares, replace(last, change=None) if is_named else last]


_Cause = tuple[str, Limit, float, Issue | None]
"""Name, limit, share of the time, and issue of a cause."""


def _by_steps(issues: Sequence[Issue]) -> Iterator[_Cause]:
    """Yield the causes found by the checks of steps."""
    costs = [one for one in issues if one.check == "recurring-costs" and one.bound]
    restarts = [one for one in costs if one.limit is Limit.STALLS]
    # functions may be compiled in the same steps, each with their whole time: only the largest counts
    compiled = [one for one in costs if one.limit is Limit.COMPILING]
    most_compiled = max(compiled, key=lambda one: one.numbers["time_fraction"], default=None)
    for one in issues:
        assert one.limit is not None, "others are left out"
        fraction = one.numbers.get("time_fraction")
        if one.check == "ranks" and fraction:
            yield "waiting for one rank", one.limit, fraction, one
        elif one.check == "outside-steps" and fraction:
            yield one.rule or "pauses", one.limit, fraction, one
        elif one is most_compiled and fraction:
            yield "compiling", one.limit, fraction, one
        elif one in restarts and fraction:
            yield "starting workers", one.limit, fraction, one
        elif one.check == "steadiness" and fraction:
            # steps that wait for restarted workers are slow, and counted above
            known = sum(other.numbers["time_fraction"] for other in restarts) if one.limit is Limit.STALLS else 0.0
            yield _SLOW[one.limit], one.limit, fraction - known, one


def _of_usual_steps(issues: Sequence[Issue], bounds: Bounds) -> Iterator[_Cause]:
    """Yield waiting for data and the fixed cost of usual steps."""
    loading = next((one for one in issues if one.check == "input" and one.limit is not Limit.HOST), None)
    if loading is not None and loading.limit is not None and bounds.free_data is None:
        cause = "loading in the loop" if loading.limit in INPUT else "other work in the loop"
        yield cause, loading.limit, loading.numbers["time_fraction"], loading
    elif bounds.free_data is not None:
        limit = loading.limit if loading is not None else None
        yield "waiting for data", limit or Limit.LOADING, max(0.0, 1.0 - 1.0 / bounds.free_data.ratio), loading
    fixed = [one for one in issues if one.limit is Limit.HOST and one.bound]
    if fixed:
        most = max(fixed, key=lambda one: one.bound.ratio if one.bound else 0.0)
        assert most.bound is not None, "others are left out"
        yield "fixed cost of steps", Limit.HOST, 1.0 - 1.0 / most.bound.ratio, most


def _share(
    cause: str,
    limit: Limit,
    fraction: float,
    issue: Issue | None,
    found: Sequence[CheckResult],
    of_steps: float,
) -> TimeShare:
    """Return a share with its place and the best change.

    Args:
        issue: None for the remainder.
        of_steps: Share of the time in the step as a whole.
    """
    if fraction < _LEAST:
        return TimeShare(cause=cause, limit=limit, fraction=fraction)
    located = issue_with_place(limit, issue, found)
    own = issue.recommendations if issue else ()
    is_mechanism = limit is Limit.STALLS  # a buffer that is refilled; else Python in a graph
    is_mechanism |= located is not None and located.check == "recurring-costs" and not own
    if located is not None and located is not issue and is_mechanism:
        own = located.recommendations
    others = [advice for one in _related(limit, found) for advice in one.recommendations if not _is_of_threads(advice)]
    # Launch costs are lower bounds: a change that avoids them may save more of the step.
    is_least = limit in _STEP and (issue is None or issue.check == "recurring-costs")
    most = of_steps if is_least else _largest(fraction, issue)
    # a measured change that gains more than this cause takes acts on another one
    others = [one for one in others if one.evidence is not GainBasis.MEASURED or _is_within(one, most)]
    measured = [one for one in others if one.evidence is GainBasis.MEASURED]
    change = next(iter(sorted([*own, *(measured if own else others)], key=Recommendation.rank)), None)
    if limit in _REMEDIES and (change is None or _is_minor(change, fraction)):
        change = Recommendation(sentence=_REMEDIES[limit])
    if change is not None:
        change = _bounded(change, most)
    return TimeShare(cause=cause, limit=limit, fraction=fraction, place=located.place if located else "", change=change)


def _is_minor(advice: Recommendation, fraction: float) -> bool:
    """Return whether an untried change is bounded by much less than a share of the time."""
    if advice.evidence is GainBasis.MEASURED or advice.gain is None:
        return False
    return math.log(advice.gain.high) < _MINOR * -math.log(max(1.0 - MOST_SHARE, 1.0 - fraction))


def _is_within(advice: Recommendation, fraction: float) -> bool:
    """Return whether the certain gain of a change is possible by a share of the time, within the noise of trials."""
    return advice.gain is None or (1.0 - fraction) * advice.gain.low <= _NOISE


def _is_of_threads(advice: Recommendation) -> bool:
    """Return whether a change is only about threads."""
    rows = [known_knob(path, number_of(value)) for path, value in advice.values.items()]
    return bool(rows) and all(row is not None and row.kind in THREADS for row in rows)


def issue_with_place(limit: Limit, issue: Issue | None, found: Sequence[CheckResult]) -> Issue | None:
    """Return the issue with the place of a limit; None if there is none.

    Its own `issue` is preferred, then related ones: code before config, with a remedy before without.
    """
    about = [*([issue] if issue else []), *_related(limit, found)]
    about = [one for one in about if one.place and one.check not in _ABOUT_KEYS]
    return min(about, key=lambda one: (one.check == "configuration", not one.recommendations), default=None)


def _related(limit: Limit, found: Sequence[CheckResult]) -> list[Issue]:
    related = [one for result in found for one in result.issues if one.limit in side_of(limit)]
    return sorted(related, key=lambda one: one.limit is not limit)


def _largest(fraction: float, issue: Issue | None) -> float:
    """Return the upper end of the interval of a share of the time."""
    if issue is None or issue.bound is None:
        return fraction
    return fraction + 1.0 / issue.bound.ratio - 1.0 / issue.bound.high


def _bounded(advice: Recommendation, fraction: float) -> Recommendation:
    """Return an untried change with the bound of its gain."""
    if advice.evidence is GainBasis.MEASURED:
        return advice
    most = 1.0 / max(1e-3, 1.0 - fraction)
    high = min(most, advice.gain.high if advice.gain else most)
    if high > NO_LIMIT:
        return replace(advice, gain=None, evidence=GainBasis.NOT_TRIED)  # too large to be useful
    return replace(advice, gain=Ratio(ratio=high, low=1.0, high=high), evidence=GainBasis.BOUNDED)
