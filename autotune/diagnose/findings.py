"""Findings of a diagnosis: issues, recommendations and verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.records import CODE, DataFinding, Ratio, Values


class Severity(StrEnum):
    """Severity of an issue."""

    ERROR = "error"  # training fails, or doesn't follow the config
    WARNING = "warning"  # costs speed, or may
    NOTE = "note"  # for information


class GainBasis(StrEnum):
    """Evidence of a gain."""

    MEASURED = "measured"  # interleaved trials with and without the change
    BOUNDED = "bounded"  # an upper bound, from trials that remove another cost
    NOT_TRIED = "not tried"


class Limit(StrEnum):
    """Part of a training that limits its speed."""

    READING = "reading"  # the loader waits for its files
    PREPARING = "preparing"  # the loader computes
    OVERLAP = "no overlap"  # loader and step take turns
    LOADING = "loading"  # the loader; which part is unknown
    HOST = "host"  # cost of a step independent of the batch size: launches, Python
    STEP = "step"  # the arithmetic of the step itself
    OUTSIDE = "outside steps"  # validation, checkpoints and the like
    COMPILING = "compiling"  # repeated tracing or compilation
    STALLS = "stalls"  # some steps far slower than the others
    DRIFT = "drift"  # steps that get slower
    STRAGGLER = "straggler"  # a rank that the others wait for
    NEIGHBOUR = "neighbour"  # another process on the machine
    THROTTLING = "throttling"  # the GPU's clocks are throttled
    MEMORY = "memory"  # memory is full, or the machine swaps
    NOT_SEEN = "not seen"


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Change to the config, or to the code if ``values`` is empty.

    Attributes:
        sentence: What to do; shown to users.
        values: New values by key path.
        gain: Speed ratio with over without the change; an upper bound if bounded; None if not tried.
        evidence: Evidence of the gain: ``measured``, ``bounded`` or ``not tried``.
        label: Effect on training: ``same training``, ``batch`` or ``precision``; empty if it depends on the config.
        data: Comparison of the data of its trials.
        cost: Other costs, e.g. memory; empty for none.
    """

    sentence: str
    values: Values = field(default_factory=dict)
    gain: Ratio | None = None
    evidence: GainBasis = GainBasis.NOT_TRIED
    label: str = "same training"
    data: DataFinding | None = None
    cost: str = ""

    @property
    def name(self) -> tuple[object, ...]:
        """Key for deduplication."""
        return (*self.values.items(), self.label) if self.values else (self.sentence,)

    def may_gain(self, least: float) -> bool:
        return self.gain is not None and self.gain.ratio >= least

    def rank(self, place: int = 0) -> tuple[bool, bool, int, int, float]:
        """Return the sort key: the same training first, then measured changes by the lower end of their gain.

        The others by the rank of the cause (`place`), then bounded before not tried.
        """
        is_other = self.label not in ("", "same training")
        if self.evidence is GainBasis.MEASURED:
            return is_other, False, 0, 0, -(self.gain.low if self.gain else 0.0)
        gain = self.gain.ratio if self.gain else 0.0
        return is_other, True, place, list(GainBasis).index(self.evidence), -gain


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Problem found by a check.

    Attributes:
        check: Id of the check.
        severity: ``error``, ``warning`` or ``note``.
        sentence: What is wrong, with numbers; shown to users.
        place: File and line, key path, or device; empty if unknown.
        numbers: Measured values, by name with unit.
        bound: Speed ratio if this cost nothing.
        limit: Affected part of the training; None for other problems.
        recommendations: The best first.
        rule: Id of the matching rule or trap, or the kind of pause; None for other checks.
    """

    check: str
    severity: Severity = Severity.WARNING
    sentence: str
    place: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    bound: Ratio | None = None
    limit: Limit | None = None
    recommendations: tuple[Recommendation, ...] = ()
    rule: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Attributes:
        why_not: Reason that the check did not run or saw nothing; empty if it ran.
        sentence: Observation for users that is not a problem; may be empty.
    """

    check: str
    issues: tuple[Issue, ...] = ()
    why_not: str = ""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class DiagnosisVerdict:
    """Verdict of a diagnosis.

    Attributes:
        sentence: The limit, and the first thing to do.
        limit: None without trials.
        bound: Speed ratio if the limit cost nothing; None if unknown.
    """

    sentence: str
    limit: Limit | None = None
    bound: Ratio | None = None


@dataclass(frozen=True, kw_only=True)
class TimeShare:
    """Share of the training time after the start that one cause takes.

    Attributes:
        cause: Name of the cause; shown to users.
        limit: Part of the training.
        fraction: Share of the time, 0 to 1.
        place: File and line, or device; empty if unknown.
        change: Change that acts on this cause, measured or bounded by this share.
    """

    cause: str
    limit: Limit
    fraction: float
    place: str = ""
    change: Recommendation | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Complete diagnosis.

    Attributes:
        verdict: The limit of the training, and the first thing to do.
        results: Results of the checks, in the order of `autotune.diagnose.tables.CHECKS`.
        shares: Shares of the time, which add up to 1: the largest first, the remainder last. Empty without trials.
    """

    verdict: DiagnosisVerdict
    results: tuple[CheckResult, ...]
    shares: tuple[TimeShare, ...] = ()

    @property
    def issues(self) -> tuple[Issue, ...]:
        """All issues, by severity, then by certain cost."""
        found = [issue for result in self.results for issue in result.issues]
        return tuple(sorted(found, key=lambda one: rank_of(one.severity, one.bound.low if one.bound else 0.0)))

    @property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """All recommendations in the order of `Recommendation.rank`, without duplicates.

        An untried value of unknown gain gives way to a value of the same key that may gain, unless it fixes an error.
        """
        acting = [one.change for one in self.shares if one.change]  # bounded by the share of their cause
        named = [one.name for one in acting]
        others = [one for issue in self.issues for one in issue.recommendations if one.name not in named]
        unsorted = [*acting, *others]
        places = sorted(range(len(unsorted)), key=lambda place: unsorted[place].rank(min(place, len(acting))))
        found = [unsorted[place] for place in places]
        names = [one.name for one in found]
        known = [one.values.keys() for one in found if one.may_gain(LEAST_BOUND)]
        needed = [
            one.name for issue in self.issues if issue.severity is Severity.ERROR for one in issue.recommendations
        ]

        def gives_way(one: Recommendation) -> bool:
            is_unknown = bool(one.values) and one.evidence is GainBasis.NOT_TRIED and one.name not in needed
            return is_unknown and any(one.values.keys() <= keys for keys in known)

        return tuple(one for n, one in enumerate(found) if names[n] not in names[:n] and not gives_way(one))

    @property
    def changes(self) -> dict[str, Recommendation]:
        """Changes that keep the training unchanged, by key; the first one for each key.

        Untried switches are included only if they act on a cause whose bound reaches `LEAST_BOUND`.
        """
        switches = [one for issue in self.issues if issue.check == "switches" for one in issue.recommendations]
        called_for = [one.change.values for one in self.shares if one.change and one.change.may_gain(LEAST_BOUND)]
        left_out = [one.values for one in switches if one.evidence is not GainBasis.MEASURED]
        same = [
            one
            for one in self.recommendations
            if one.label == "same training" and (one.values not in left_out or one.values in called_for)
        ]
        return {path: one for one in reversed(same) for path in one.values if not path.startswith(CODE)}


LEAST_BOUND = 1.1
"""Smallest bound of an untried change that is proposed."""


def rank_of(severity: str, bound: float) -> tuple[int, float]:
    """Return the sort key of issues; an unknown severity comes last."""
    known = [one.value for one in Severity]
    return known.index(severity) if severity in known else len(known), -bound


def issue(
    check: str,
    sentence: str,
    remedy: str = "",
    *,
    values: Values | None = None,
    label: str = "same training",
    cost: str = "",
    **about: Any,
) -> Issue:
    """Return an issue with these attributes and one recommendation, or none without a remedy."""
    advice = Recommendation(sentence=remedy, values=values or {}, label=label, cost=cost)
    return Issue(check=check, sentence=sentence, recommendations=(advice,) if remedy else (), **about)


MOST_SHARE = 0.99
"""Upper limit of any reported share of the time, so that 1 / (1 - share) stays finite."""


# Formatting of words and numbers.


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval, e.g. ``2.6x (2.4 to 2.8)``."""
    digits = 2 if ratio.ratio < 2.0 else 1
    return f"{ratio.ratio:.{digits}f}x ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


NO_LIMIT = 20.0
"""Largest bound that is reported as a number: beyond it another part of the training is the limit."""


def bound_text(bound: Ratio) -> str:
    """Return a bound with its interval, or ``more than 20x``."""
    return f"more than {NO_LIMIT:.0f}x" if bound.ratio > NO_LIMIT else ratio_text(bound)


def capitalized(text: str) -> str:
    """Return a text with a capital first letter."""
    return f"{text[:1].upper()}{text[1:]}"


def percent(fraction: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100.0 * fraction:.0f} %"


def milliseconds(time_s: float) -> str:
    """Return a time with at most four digits, in ms or from 10 s in s."""
    time_ms = 1e3 * time_s
    return f"{time_ms:.1f} ms" if time_ms < 10.0 else f"{time_ms:.0f} ms" if time_ms < 1e4 else f"{time_s:.1f} s"
