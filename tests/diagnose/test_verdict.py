"""Tests of the verdict, and of the condition for continuous integration."""

from dataclasses import replace

import pytest

from autotune.commands.diagnose_run import fixing
from autotune.diagnose.findings import (
    CheckResult,
    Diagnosis,
    DiagnosisVerdict,
    GainBasis,
    Issue,
    Limit,
    Recommendation,
    Severity,
    TimeShare,
)
from autotune.diagnose.shares import time_shares
from autotune.diagnose.verdict import parse_fail_on, static_verdict, verdict_of
from autotune.measure.phases import Bounds
from autotune.records import Ratio


def issue(limit: Limit | None, low: float = 1.0, **changes: object) -> Issue:
    """Return an issue that costs at least so much."""
    bound = Ratio(ratio=low * 1.1, low=low, high=low * 1.2) if low > 1.0 else None
    fields = {"check": "input", "severity": Severity.WARNING, "sentence": f"{limit} it is.", "bound": bound}
    return Issue(limit=limit, **{**fields, **changes})  # type: ignore[arg-type]


def result(*issues: Issue) -> CheckResult:
    """Return the result of a check that found these."""
    return CheckResult(check="input", issues=issues)


def measured(ratio: float) -> Recommendation:
    """Return a measured recommendation."""
    gain = Ratio(ratio=ratio, low=ratio - 0.05, high=ratio + 0.05)
    return Recommendation(sentence="do it", values={"a": 1}, gain=gain, evidence=GainBasis.MEASURED)


NOTE = issue(Limit.NEIGHBOUR, severity=Severity.NOTE)


@pytest.mark.parametrize(
    ("issues", "limit"),
    [
        ([issue(Limit.STALLS, 1.1), issue(Limit.OUTSIDE, 1.5), issue(Limit.HOST, 1.2)], Limit.OUTSIDE),
        ([issue(Limit.NEIGHBOUR), issue(Limit.READING, 5.0)], Limit.READING),
        ([issue(Limit.NEIGHBOUR), issue(Limit.THROTTLING)], Limit.THROTTLING),
        ([issue(Limit.MEMORY)], Limit.MEMORY),
        ([issue(Limit.MEMORY), issue(Limit.HOST, 1.5)], Limit.HOST),
        ([issue(Limit.STALLS, 1.04), NOTE], Limit.STEP),  # what is uncertain or only good to know is no verdict
    ],
)
def test_the_limit_that_costs_most_is_the_verdict(issues: list[Issue], limit: Limit) -> None:
    """What makes its number doubtful is told behind it, or alone."""
    verdict = verdict_of([result(one) for one in issues])
    assert verdict.limit is limit
    assert verdict.sentence.startswith("No worthwhile change") is (limit is Limit.STEP)


def test_what_makes_a_limit_doubtful_is_told_behind_it() -> None:
    """A neighbour on the machine."""
    verdict = verdict_of([result(issue(Limit.NEIGHBOUR), issue(Limit.READING, 5.0))])
    assert verdict.sentence == "Input-bound: reading it is. The numbers are doubtful: neighbour it is."


def test_what_takes_most_of_the_time_comes_before_a_larger_bound() -> None:
    """Free data take away what is done anew, too: what the shares say is left of the input is what it costs."""
    found = result(issue(Limit.PREPARING, 4.0), issue(Limit.COMPILING, 2.0))
    shares = [
        TimeShare(cause="", limit=limit, fraction=part)
        for limit, part in ((Limit.COMPILING, 0.5), (Limit.PREPARING, 0.2))
    ]
    assert verdict_of([found]).limit is Limit.PREPARING
    assert verdict_of([found], shares=shares).limit is Limit.COMPILING


def test_a_bound_is_at_most_that_of_the_time_it_takes() -> None:
    """The fixed cost of a step was measured without the slow steps that take a third of the training."""
    stalls, fixed = issue(Limit.STALLS, 1.5), issue(Limit.HOST, 3.0)
    shares = [
        TimeShare(cause="fixed cost of steps", limit=Limit.HOST, fraction=0.6),
        TimeShare(cause="slow steps", limit=Limit.STALLS, fraction=0.4),
    ]
    bound = verdict_of([result(stalls), result(fixed)], shares=shares).bound
    assert bound is not None
    assert (round(bound.low, 2), round(bound.ratio, 2), round(bound.high, 2)) == (2.5, 2.5, 2.5)


def test_a_limit_comes_before_a_change_that_goes_around_it() -> None:
    """A measured change is told behind the limit, though it gains more than the limit's bound says."""
    change = issue(Limit.STEP, 3.0, recommendations=(measured(3.0),))
    verdict = verdict_of([result(issue(Limit.HOST, 1.4)), result(change)])
    assert verdict.limit is Limit.HOST
    assert "do it, 3.0x" in verdict.sentence


def test_the_place_in_the_code_is_named() -> None:
    """A finding in the sources that is about the same side of training is where to look; another is not."""
    loader = issue(Limit.PREPARING, place="train.py:7", sentence="Python runs in the graph.")
    step = issue(Limit.HOST, place="train.py:90", sentence="The step runs op by op.")
    verdict = verdict_of([result(issue(Limit.READING, 2.0))], static=[result(step, loader)])
    assert "Look at train.py:7: python runs in the graph." in verdict.sentence
    assert "train.py:90" not in verdict.sentence


def test_what_was_not_seen_is_a_verdict() -> None:
    """The reason stands in it, whatever else was found."""
    verdict = verdict_of([result(issue(Limit.READING, 2.0))], "it crashed")
    assert (verdict.limit, verdict.sentence) == (Limit.NOT_SEEN, "Not seen: it crashed")


def test_a_static_verdict_counts() -> None:
    """Errors first, then warnings; nothing found says what it takes to know more."""
    error, warning = issue(None, severity=Severity.ERROR, sentence="No data."), issue(None, sentence="Slow.")
    assert static_verdict([result(warning, error)]).sentence == "1 error, the first: No data."
    assert static_verdict([result(warning, warning)]).sentence == "No error; 2 warnings, the first: Slow."
    placed = issue(None, sentence="Slow.", place="train.py:3")
    assert static_verdict([result(placed)]).sentence == "No error; 1 warning, the first: Slow. (train.py:3)"
    assert "takes trials" in static_verdict([result()]).sentence


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("gain>=1.2", True),
        ("gain > 1.5", False),
        ("bound<2", True),
        ("errors==0", True),
        ("warnings>0", True),
        ("errors>0", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    """A quantity is compared as it says."""
    verdict = DiagnosisVerdict(sentence="", limit=Limit.HOST, bound=Ratio(ratio=1.5, low=1.4, high=1.6))
    diagnosis = Diagnosis(verdict=verdict, results=(result(issue(Limit.HOST, 1.4, recommendations=(measured(1.3),))),))
    assert parse_fail_on(text).holds(diagnosis) is holds
    nothing = Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=())
    assert not parse_fail_on("gain>=0").holds(nothing), "what is not known is neither large nor small"


@pytest.mark.parametrize("text", ["", "gain", "gain>", "speed>1", "gain>=x", "gain>=1; rm", "gain=>1", "__import__>1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    """The names that there are stand in the message."""
    with pytest.raises(ValueError, match="a name \\(gain, bound, errors, warnings\\)"):
        parse_fail_on(text)


def test_recommendations_are_ordered_by_their_certain_gain() -> None:
    """Measured ones by the lower end first, then those with a bound, then those that were not tried otherwise."""
    bounded = Recommendation(sentence="b", gain=Ratio(ratio=9.0, low=8.0, high=9.9), evidence=GainBasis.BOUNDED)
    untried, other = Recommendation(sentence="u"), replace(measured(1.2), values={"b": 2})
    known = Recommendation(sentence="k", values=other.values)
    found = issue(Limit.HOST, 1.4, recommendations=(untried, bounded, other, measured(1.4), known))
    ordered = Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=(result(found),)).recommendations
    assert [one.gain.ratio if one.gain else None for one in ordered] == [1.4, 1.2, 9.0, None]


def test_a_key_has_one_recommended_value() -> None:
    """A value that a rule suggests gives way to one of its key that is measured or has a bound, which both stay."""
    four = replace(measured(1.4), values={"prefetch": 4, "workers": 2})
    rule, other = Recommendation(sentence="Try prefetch: 2.", values={"prefetch": 2}), Recommendation(sentence="Cache.")
    bounded = replace(rule, gain=Ratio(ratio=9.0, low=8.0, high=9.9), evidence=GainBasis.BOUNDED)
    for unmeasured, kept in (
        ((rule, four), [four, other]),
        ((bounded, four), [four, bounded, other]),
        ((rule, bounded), [bounded, other]),
    ):
        found = issue(Limit.READING, 1.4, recommendations=(*unmeasured, other))
        listed = Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=(result(found),)).recommendations
        assert list(listed) == kept


def test_a_change_that_gains_more_than_a_cause_takes_is_not_its_remedy() -> None:
    """Workers with a larger batch at 2.1x cannot act on steps that take 3 % of the time."""
    loading = replace(issue(Limit.READING, 30.0), check="input", numbers={"time_fraction": 0.97})
    both = replace(measured(2.1), values={"workers": 2, "batch_size": 32})
    of_step = replace(issue(Limit.STEP, 2.1, recommendations=(both,)), check="switches")
    bounds = Bounds(free_data=None, free_step=None, speeds={}, counts_samples=True, cores={})
    share, rest = time_shares([result(loading), result(of_step)], bounds, ())
    assert (round(share.fraction, 2), round(rest.fraction, 2)) == (0.97, 0.03)
    assert rest.change is None


def test_the_fewest_changes_are_written_in() -> None:
    """Of two changes that are as good as each other, the one that changes less; only what leaves the training alike."""

    def change(ratio: float, values: dict[str, int], label: str = "same training") -> Recommendation:
        gain = Ratio(ratio=ratio, low=0.9 * ratio, high=1.1 * ratio)
        return Recommendation(sentence="", values=values, gain=gain, evidence=GainBasis.MEASURED, label=label)

    both, one, other = change(2.19, {"a": 1, "b": 1}), change(2.18, {"a": 1}), change(3.0, {"c": 1}, "batch")
    found = issue(Limit.STEP, 1.4, recommendations=(both, one, other))
    assert fixing(Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=(result(found),))) is one
    better = issue(Limit.STEP, 1.4, recommendations=(change(2.6, {"a": 1, "b": 1}), one))
    assert len(fixing(Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=(result(better),))).values) == 2  # type: ignore[union-attr]
    assert fixing(Diagnosis(verdict=DiagnosisVerdict(sentence=""), results=())) is None
