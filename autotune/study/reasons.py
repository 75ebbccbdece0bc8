"""Reason for the verdict of a search, as a sentence for the user."""

from dataclasses import dataclass

from autotune.score import LEAST_PAIRS, LEAST_SCORE_GAIN, LEAST_SPEED, Judgement

_FILLING = (
    "; caches take longer to fill than there was time, so trials were compared without the time they waited for data, "
    "and the interval holds whatever full caches will make of the two"
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence that a verdict rests on.

    Attributes:
        judgement: Result of the pairs; None if there were too few.
        pairs: Number of complete pairs.
        has_candidate: True if a point was confirmed, or looked better than the baseline.
        explored: True if any point but the baseline was tried.
        filling: True if the caches of the trials were still being filled.
        by_utilization: True if the objective is GPU utilization.
        broke: True if the point broke when it was validated.
        broke_before: True if some point of the study broke when it was validated: it is not tried again.
        hosts: Hosts of the machines that made the pairs.
    """

    judgement: Judgement | None
    pairs: int
    has_candidate: bool
    explored: bool
    filling: bool
    by_utilization: bool
    broke: bool = False
    broke_before: bool = False
    hosts: tuple[str, ...] = ()


def reason(evidence: Evidence) -> str:
    """Return the reason for the verdict, without a full stop."""
    if not evidence.has_candidate:
        return _nothing_better(evidence)
    if evidence.judgement is None:
        return _unconfirmed(evidence.pairs)
    return _judged(evidence.judgement, evidence)


def _nothing_better(evidence: Evidence) -> str:
    if not evidence.explored and evidence.broke_before:
        return "what looked better broke when it was validated, and is not tried again"
    if not evidence.explored:
        return "nothing but today's values was tried: there was no time, or nothing else promised a gain"
    if evidence.by_utilization:
        return "nothing that was tried keeps the GPU busier without being slower than today's values"
    return "nothing that was tried is faster than today's values, beyond what trials differ by"


def _unconfirmed(pairs: int) -> str:
    if pairs == 0:
        return "the best point was not confirmed against today's config: its pairs did not fit, or failed"
    return f"only {pairs} of at least {LEAST_PAIRS} confirming pairs could be measured"


def _left_out(judgement: Judgement) -> str:
    if not judgement.left_out:
        return ""
    return (
        f" ({judgement.left_out} of {judgement.pairs} pairs left out: something made a trial far slower than the "
        "others of its config)"
    )


def _judged(judgement: Judgement, evidence: Evidence) -> str:
    pairs = f"{judgement.pairs} interleaved pairs with today's config{_left_out(judgement)}"
    if len(evidence.hosts) > 1:
        pairs += f" on {len(evidence.hosts)} machines ({', '.join(evidence.hosts)})"
    if judgement.better:
        confirmed = f"confirmed by {pairs}" + (_FILLING if evidence.filling else "")
        return f"{confirmed}, but it broke in a longer training" if evidence.broke else confirmed
    if evidence.by_utilization and judgement.score.low > LEAST_SCORE_GAIN:
        return (
            f"{pairs} show a busier GPU, but not that training is no slower: the interval of its speed begins at "
            f"{judgement.speed.low:.2f}x, and {LEAST_SPEED}x is needed"
        )
    if evidence.filling:
        return (
            f"{pairs} do not show a gain that would stay: caches take longer to fill than there was time, and with "
            f"full ones it may be from {judgement.speed.low:.2f}x to {judgement.speed.high:.2f}x as fast"
        )
    return f"{pairs} do not show a gain; one of {judgement.smallest_gain:.0%} or more would probably have been seen"
