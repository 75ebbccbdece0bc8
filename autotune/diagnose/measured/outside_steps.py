"""Check of the time outside of steps: evaluations, checkpoints and the like, as shares of the whole."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.messages.message import listed, said
from autotune.diagnose.wording import milliseconds, percent
from autotune.measure.window import PAUSES, main_stream
from autotune.records import TraineeEvent
from autotune.results import Ratio

CHECK = "outside-steps"

_MUCH = 0.05  # of the time
_LEAST_STEPS = 5
_MOST_SHARE = 0.99
_FIRST = 0.5  # of the time of the only one that was seen is certain: the first compiles what it needs
_NOUNS = {
    "eval": said("outside.evaluation", "evaluation"),
    "checkpoint": said("outside.checkpoint", "checkpoint"),
}
_REMEDIES = {
    "eval": said("outside.evaluate-less", "evaluate more seldom, on fewer samples, or in a process of its own"),
    "checkpoint": said("outside.save-less", "save more seldom, less, or while training goes on"),
}


def judge_outside_steps(events: Sequence[TraineeEvent]) -> CheckResult:
    """Judge how much of the time passes between steps, in what the trainer does besides.

    Args:
        events: All events of a trial that went on through an evaluation and a checkpoint where it came to these.
    """
    stream = main_stream(events)
    ends_s = [event.t_s for event in events if event.kind == "step" and event.stream == stream]
    if len(ends_s) < _LEAST_STEPS:
        return CheckResult(check=CHECK, why_not=said("outside.few-steps", "too few steps were seen"))
    pauses_s = _pauses(events, stream)
    all_s = ends_s[-1] - ends_s[0]
    shares = {kind: min(_MOST_SHARE, _typical_s(spent_s) / all_s) for kind, spent_s in pauses_s.items()}
    told = listed(
        ", ",
        (
            said("outside.share", "{what} {share}", what=_NOUNS[kind], share=percent(share))
            for kind, share in shares.items()
        ),
    )
    nothing = said("outside.none", "No evaluation and no checkpoint was seen.")
    return CheckResult(
        check=CHECK,
        issues=tuple(_issue(kind, share, pauses_s[kind]) for kind, share in shares.items() if share > _MUCH),
        sentence=said("outside.told", "Of the time seen: {shares}.", shares=told) if told else nothing,
    )


def _pauses(events: Sequence[TraineeEvent], stream: str | None) -> dict[str, list[float]]:
    """Return the time of each pause by its kind, a usual step taken off; one that no step came after does not count."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    steps = [event for event in events if event.kind == "step" and event.stream == stream]
    usual_s = median(after.t_s - before.t_s for before, after in pairwise(steps))
    before_s: float | None = None
    kinds: set[str] = set()
    for event in events:
        if event.kind in PAUSES and before_s is not None:
            kinds.add(event.kind)
        elif event.kind == "step" and event.stream == stream:
            # The step after a pause may have filled the pipeline anew: that is a cost of the pause.
            for kind in kinds if before_s is not None else ():
                found[kind].append(max(0.0, event.t_s - (before_s or 0.0) - usual_s) / len(kinds))
            before_s, kinds = event.t_s, set()
    return found


def _typical_s(spent_s: Sequence[float]) -> float:
    """Return the time of all pauses of a kind, if the first, which may compile, were as the others."""
    return median(spent_s) * len(spent_s)


def _issue(kind: str, share: float, spent_s: Sequence[float]) -> Issue:
    times = len(spent_s)
    # What recurs takes at least the share that was seen since the start, as the latest cycle was cut short, and at most
    # that of one time more.
    low, high = (share if times > 1 else _FIRST * share), min(_MOST_SHARE, share * (times + 1) / times)
    each = milliseconds(median(spent_s))
    one = said("outside.one", "one of {time}", time=each)
    often = said("outside.times", "{times} of {time}", times=times, time=each) if times > 1 else one
    return Issue(
        check=CHECK,
        severity=Severity.WARNING,
        sentence=said(
            "outside.takes",
            "The {what} takes {share} of the time ({often} was seen): {remedy}.",
            what=_NOUNS[kind],
            share=percent(share),
            often=often,
            remedy=_REMEDIES[kind],
        ),
        numbers={"time_fraction": share, "times": float(times), "each_s": median(spent_s)},
        bound=Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high)),
        limit=Limit.OUTSIDE,
    )
