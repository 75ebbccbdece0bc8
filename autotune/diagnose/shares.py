"""Where the time of a training goes: the share of each cause, where it is, and what changes it. Pure.

Shares are of the same whole, the time of training once it is under way, and add up to 1: what is done outside of steps,
slow steps, what is compiled anew, and of usual steps waiting for data, their fixed cost, and what is left.
"""

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
    Limit.READING: "Read more at the same time, fewer and larger files, or keep them on a disk that is near.",
    Limit.PREPARING: "Prepare samples once and keep them, in memory or in files; or do less for each.",
    Limit.OVERLAP: "Load ahead of the step: by workers of the loader, or by prefetching.",
}
"""What helps where no key of the config does."""

_ABOUT_KEYS = ("in-force", "switches")  # their places are keys, and no time goes to a key
_WAITS = 1.05  # least gain by waiting alone, for loaders that nothing else is known of
_VAGUE = 2.0  # times the lower end of a bound that its upper end is, for it to say nothing
_LEAST = 0.01  # share of the time that is worth a row
_SEEN = 0.8  # of what slow steps add to the average one, where a trial has them, too
_WAITING = 0.7  # of slow steps, for these to be slow by that


def side_of(limit: Limit) -> frozenset[Limit]:
    """Return the limits that the same change, or the same place in the code, may be about."""
    return next((side for side in (INPUT, _STEP) if limit in side), frozenset({limit}))


def of_phases(bounds: Bounds, trial: PhasedTrial, steps: Sequence[TimedStep], *found: CheckResult) -> Bounds:
    """Return what phases showed as bounds of the whole training.

    They do not see what is done outside of steps, nor slow steps where their own were faster on average, without them.
    What is done anew, and slow steps that wait for data, free data take away, too: that is not what data cost.

    Args:
        steps: Those of the trial that slow steps were found in.
        found: What was found by looking at each step.
    """
    shares: dict[str, float] = {}
    for one in (one for result in found for one in result.issues if one.limit is not Limit.HOST and one.bound):
        shares[one.check] = shares.get(one.check, 0.0) + one.numbers["time_fraction"]
    slow, waits = shares.get("steadiness", 0.0), False
    durations_s = [step.duration_s for step in steps]
    phased_s = [
        one.batch / one.speeds[TrialPhase.TRAIN] for one in trial.rounds if one.batch and TrialPhase.TRAIN in one.speeds
    ]
    if slow and phased_s:
        usual_s, mean_s = median(durations_s), fmean(durations_s)
        issues = [one for result in found if result.check == "steadiness" for one in result.issues]
        are_seen = fmean(phased_s) - usual_s > _SEEN * (mean_s - usual_s) and issues[0].limit is not Limit.DRIFT
        waits = are_seen and issues[0].numbers.get("waiting_fraction", 0.0) >= _WAITING
        slow = 0.0 if are_seen else slow
    unseen = min(MOST_SHARE, shares.get("outside-steps", 0.0) + slow)
    anew = shares.get("recurring-costs", 0.0) + (shares["steadiness"] if waits else 0.0)
    return bounds.within(1.0 - unseen).less(anew)


def by_waiting(bounds: Bounds, steps: Sequence[TimedStep]) -> Bounds:
    """Return the bounds with what free data gain by the time that usual steps wait, where phases do not tell it.

    Some loaders cannot be taken through phases. And short passes over the data make rounds of phases unlike: then their
    interval holds a loss and a gain of much.

    Args:
        bounds: Those of the whole training.
        steps: Those of a trial that was not taken through phases.
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
    """Return the causes that take time, the largest share first, and last what is left.

    Args:
        measured: Results of the measured checks.
        bounds: What the phases showed, as bounds of the whole training.
        static: Results of the static checks, for the places that causes may come from.
    """
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
    told = [one.change.name for one in shares if one.change]
    is_told = last.change is not None and last.change.name in told
    return [*shares, replace(last, change=None) if is_told else last]


_Cause = tuple[str, Limit, float, Issue | None]
"""What passes meanwhile, the part of training that it is, its share of the time, and the issue that tells it."""


def _by_steps(issues: Sequence[Issue]) -> Iterator[_Cause]:
    """Yield what was found by looking at each step."""
    costs = [one for one in issues if one.check == "recurring-costs" and one.bound]
    restarts = [one for one in costs if one.limit is Limit.STALLS]
    # several functions may be compiled in the same steps, and each is told with all that these take
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
            # a step that waits for the first batch of new workers is slow, and their start is told already
            known = sum(other.numbers["time_fraction"] for other in restarts) if one.limit is Limit.STALLS else 0.0
            yield _SLOW[one.limit], one.limit, fraction - known, one


def _of_usual_steps(issues: Sequence[Issue], bounds: Bounds) -> Iterator[_Cause]:
    """Yield waiting for data and the fixed cost of steps, what was found by looking at single steps taken off."""
    loading = next((one for one in issues if one.check == "input" and one.limit is not Limit.HOST), None)
    if loading is not None and loading.limit is not None and bounds.free_data is None:
        yield "loading in the loop", loading.limit, loading.numbers["time_fraction"], loading
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
    """Return a share with the place that it comes from, and the best change of what is its cause.

    Args:
        issue: What tells it; None for what is left.
        found: What else may be about the same side of training.
        of_steps: Share of the time that all of the step takes.
    """
    if fraction < _LEAST:
        return TimeShare(cause=cause, limit=limit, fraction=fraction)
    located = issue_with_place(limit, issue, found)
    own = issue.recommendations if issue else ()
    if not own and located is not None and located.check == "recurring-costs":
        own = located.recommendations  # Python that runs in turns: more workers wait for each other, too
    others = [advice for one in _alike(limit, found) for advice in one.recommendations if not _is_of_threads(advice)]
    measured = [one for one in others if one.evidence is GainBasis.MEASURED]
    change = next(iter(sorted([*own, *(measured if own else others)], key=Recommendation.rank)), None)
    if change is None and limit in _REMEDIES:
        change = Recommendation(sentence=_REMEDIES[limit])
    # Launches are counted with the least that they take: what avoids them, as what is left, may save more of the step.
    is_least = limit in _STEP and (issue is None or issue.check == "recurring-costs")
    if change is not None:
        change = _bounded(change, of_steps if is_least else fraction)
    return TimeShare(cause=cause, limit=limit, fraction=fraction, place=located.place if located else "", change=change)


def _is_of_threads(advice: Recommendation) -> bool:
    """Return whether a change is one of threads alone: these serve loading and the step, and act on neither."""
    rows = [known_knob(path, number_of(value)) for path, value in advice.values.items()]
    return bool(rows) and all(row is not None and row.kind in THREADS for row in rows)


def issue_with_place(limit: Limit, issue: Issue | None, found: Sequence[CheckResult]) -> Issue | None:
    """Return the issue that says in which line the time of a limit passes; None where none does.

    That is the issue of the limit itself, or else another about the same side of training: one with a remedy before one
    without, and a line of the code before one of the config.

    Args:
        issue: What tells the limit; None for what is left.
        found: What else may be about the same side of training.
    """
    about = [*([issue] if issue else []), *_alike(limit, found)]
    about = [one for one in about if one.place and one.check not in _ABOUT_KEYS]
    return min(about, key=lambda one: (one.check == "configuration", not one.recommendations), default=None)


def _alike(limit: Limit, found: Sequence[CheckResult]) -> list[Issue]:
    alike = [one for result in found for one in result.issues if one.limit in side_of(limit)]
    return sorted(alike, key=lambda one: one.limit is not limit)


def _bounded(advice: Recommendation, fraction: float) -> Recommendation:
    """Return a change with what it gains at most, where it was not tried: no more than if its cause took no time."""
    if advice.evidence is GainBasis.MEASURED:
        return advice
    most = 1.0 / max(1e-3, 1.0 - fraction)
    known = advice.gain.high if advice.gain else most
    high = min(most, known)
    if high > NO_LIMIT:
        return replace(advice, gain=None, evidence=GainBasis.NOT_TRIED)  # such a bound says nothing
    return replace(advice, gain=Ratio(ratio=high, low=1.0, high=high), evidence=GainBasis.BOUNDED)
