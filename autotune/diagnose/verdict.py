"""Verdict: one sentence that says what limits a training, and what to do first. Pure."""

from collections.abc import Sequence

from autotune.diagnose.findings import (
    CheckResult,
    Evidence,
    Issue,
    Limit,
    Recommendation,
    Severity,
    Verdict,
)
from autotune.diagnose.measured.input_limit import CHECK as INPUT
from autotune.diagnose.messages.message import Message, said, uncapitalized
from autotune.diagnose.wording import ratio_text

WORTH_DOING = 1.05
"""Lower end of a bound from which on something is worth doing."""

_SPOILS_ALL = (Limit.THROTTLING, Limit.NEIGHBOUR)
"""Limits that make all other numbers doubtful, and come first."""

_SIDES = (
    frozenset({Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING}),
    frozenset({Limit.HOST, Limit.STEP}),
)
"""Limits that the same place in the code may be the reason for."""

_NAMES = {
    **dict.fromkeys(
        (Limit.READING, Limit.PREPARING, Limit.OVERLAP, Limit.LOADING), said("verdict.name.input", "Input-bound")
    ),
    Limit.HOST: said("verdict.name.host", "Bound by the fixed cost of a step"),
    Limit.STEP: said("verdict.name.step", "Bound by the step"),
    Limit.OUTSIDE: said("verdict.name.outside", "Much time passes outside of steps"),
    Limit.STALLS: said("verdict.name.stalls", "Stalls"),
    Limit.NEIGHBOUR: said("verdict.name.neighbour", "Somebody else is on the machine"),
    Limit.THROTTLING: said("verdict.name.throttling", "The GPU is held down"),
    Limit.MEMORY: said("verdict.name.memory", "Memory is nearly full"),
}


def verdict_of(results: Sequence[CheckResult], why_not_seen: str = "", static: Sequence[CheckResult] = ()) -> Verdict:
    """Return the verdict that follows from the results of the measured checks.

    Args:
        results: The results of the measured checks.
        why_not_seen: Reason for which no trial gave numbers; empty if one did.
        static: Results of the static checks, for the place in the code that the limit may come from.
    """
    issues = [issue for result in results for issue in result.issues]
    if why_not_seen:
        return Verdict(sentence=said("verdict.not-seen", "Not seen: {why}", why=why_not_seen), limit=Limit.NOT_SEEN)
    main = _main(issues)
    best = _best([one for issue in issues for one in issue.recommendations])
    if main is None and (why := _why_no_input(results)):
        sentence = said("verdict.input-not-seen", "No limit was found, and the input was not seen: {why}.", why=why)
        return Verdict(sentence=sentence, limit=Limit.NOT_SEEN)
    if main is None:
        sentence = said(
            "verdict.nothing",
            "Nothing worth doing was found: the step itself is the limit, and no change that was tried helps.",
        )
        return Verdict(sentence=sentence, limit=Limit.STEP)
    assert main.limit is not None, "the main issue is about a limit"
    sentence = said("verdict.limit", "{name}: {sentence}", name=_NAMES[main.limit], sentence=main.sentence)
    if (place := _place(main.limit, static)) is not None:
        what = uncapitalized(place.sentence)
        sentence = said(
            "verdict.look-at", "{verdict} Look at {place}: {what}", verdict=sentence, place=place.place, what=what
        )
    if best is not None and best.gain is not None and best not in main.recommendations:
        sentence = said(
            "verdict.measured",
            "{verdict} Measured: {change}, {gain}.",
            verdict=sentence,
            change=best.sentence,
            gain=ratio_text(best.gain),
        )
    return Verdict(sentence=sentence, limit=main.limit, bound=main.bound)


def _why_no_input(results: Sequence[CheckResult]) -> str:
    """Return the reason for which it is not known whether the input is the limit; empty where that is known."""
    return next((result.why_not for result in results if result.check == INPUT and result.why_not), "")


def _place(limit: Limit, static: Sequence[CheckResult]) -> Issue | None:
    """Return the first place in the code that is about the same side of training as a limit; None without one."""
    side = next((side for side in _SIDES if limit in side), frozenset({limit}))
    return next((one for result in static for one in result.issues if one.limit in side and one.place), None)


def static_verdict(results: Sequence[CheckResult]) -> Verdict:
    """Return the verdict of checks that made no trial."""
    issues = [issue for result in results for issue in result.issues]
    errors = [issue for issue in issues if issue.severity is Severity.ERROR]
    warnings = [issue for issue in issues if issue.severity is Severity.WARNING]
    if errors:
        return Verdict(
            sentence=said(
                "verdict.errors", "{errors}, the first: {first}", errors=_errors(len(errors)), first=errors[0].sentence
            )
        )
    if warnings:
        return Verdict(
            sentence=said(
                "verdict.warnings",
                "No error; {warnings}, the first: {first}",
                warnings=_warnings(len(warnings)),
                first=warnings[0].sentence,
            )
        )
    return Verdict(
        sentence=said(
            "verdict.nothing-wrong", "Nothing was found that is wrong; what limits the speed is seen only by trials."
        )
    )


def _errors(count: int) -> Message:
    return said("count.errors", "{count} error{s}", count=count, s="s" * (count != 1))


def _warnings(count: int) -> Message:
    return said("count.warnings", "{count} warning{s}", count=count, s="s" * (count != 1))


def _main(issues: Sequence[Issue]) -> Issue | None:
    """Return the issue that the verdict is about: what spoils all numbers, else what costs most; None if nothing does.

    A limit comes before a measured change, which is one way around it. Memory that is full, or fills, does not slow
    training down, and may end it: that is the verdict where nothing slows it down.
    """
    telling = [issue for issue in issues if issue.limit is not None and issue.severity is not Severity.NOTE]
    spoiling = [issue for issue in telling if issue.limit in _SPOILS_ALL]
    if spoiling:
        return min(spoiling, key=lambda issue: _SPOILS_ALL.index(issue.limit or Limit.NEIGHBOUR))
    worth = [issue for issue in telling if issue.bound is not None and issue.bound.low > WORTH_DOING]
    limits = [issue for issue in worth if not any(one.evidence is Evidence.MEASURED for one in issue.recommendations)]
    memory = [issue for issue in telling if issue.limit is Limit.MEMORY]
    return max(limits or memory or worth, key=lambda issue: issue.bound.ratio if issue.bound else 0.0, default=None)


def _best(recommendations: Sequence[Recommendation]) -> Recommendation | None:
    """Return the measured recommendation with the largest certain gain; None if none was measured."""
    measured = [one for one in recommendations if one.evidence is Evidence.MEASURED and one.gain]
    return max(measured, key=lambda one: one.gain.low if one.gain else 0.0, default=None)
