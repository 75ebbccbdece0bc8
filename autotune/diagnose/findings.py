"""Findings of a diagnosis: issues, with what is wrong and where, and recommendations, with what they gain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.records import CODE, DataFinding, Ratio, Values


class Severity(StrEnum):
    """Weight of an issue."""

    ERROR = "error"  # training fails, or does not do what the config says
    WARNING = "warning"  # it costs speed, or may
    NOTE = "note"  # good to know


class GainBasis(StrEnum):
    """Ground on which a gain is told."""

    MEASURED = "measured"  # trials with the change and without it, in turn
    BOUNDED = "bounded"  # at most so much, from trials that take something else away
    NOT_TRIED = "not tried"


class Limit(StrEnum):
    """Part of a training that its speed is limited by."""

    READING = "reading"  # the loader waits for its files
    PREPARING = "preparing"  # the loader computes
    OVERLAP = "no overlap"  # loader and step take turns
    LOADING = "loading"  # the loader, and which part of it is not known
    HOST = "host"  # what a step takes whatever its batch: launches, Python
    STEP = "step"  # the arithmetic of the step itself
    OUTSIDE = "outside steps"  # validation, checkpoints and the like
    COMPILING = "compiling"  # functions that are traced or compiled again and again
    STALLS = "stalls"  # steps that are far slower than the others
    DRIFT = "drift"  # each step is slower than the one before
    STRAGGLER = "straggler"  # one rank of several that the others wait for
    NEIGHBOUR = "neighbour"  # somebody else on the machine
    THROTTLING = "throttling"  # the GPU's clocks are held down
    MEMORY = "memory"  # it is full, or the machine swaps
    NOT_SEEN = "not seen"


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Change to the config, or to the code where ``values`` are empty.

    Attributes:
        sentence: What to do, for people.
        values: Values to write into the config, by key path.
        gain: Speed with the change over that without; an upper bound where it is bounded; None where it is not tried.
        evidence: Ground of the gain.
        label: What it means for training: ``same training``, ``batch`` or ``precision``; empty where that depends on
            the values of the config.
        data: What the samples of its trials show of its data; None where these were not compared.
        cost: What it costs besides, e.g. memory; empty for nothing.
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
        """Identity: recommendations with equal names are the same change."""
        return (*self.values.items(), self.label) if self.values else (self.sentence,)

    def is_worth(self, least: float) -> bool:
        """Return whether it may gain so much."""
        return self.gain is not None and self.gain.ratio >= least

    def rank(self, place: int = 0) -> tuple[bool, bool, int, int, float]:
        """Return what it is sorted by: measured ones by the lower end of their gain, then the others.

        Of these that comes first which leaves the training the same, then what acts on the cause that takes most of the
        time, then what is bounded.

        Args:
            place: That of its cause among those that take time.
        """
        if self.evidence is GainBasis.MEASURED:
            return False, False, 0, 0, -(self.gain.low if self.gain else 0.0)
        is_other = self.label not in ("", "same training")
        gain = self.gain.ratio if self.gain else 0.0
        return True, is_other, place, list(GainBasis).index(self.evidence), -gain


@dataclass(frozen=True, kw_only=True)
class Issue:
    """Something that a check found.

    Attributes:
        check: Id of the check, see `autotune.diagnose.tables.CHECKS`.
        severity: Weight of it.
        sentence: What is wrong, with its numbers, for people.
        place: File and line, key path, or device; empty where there is none.
        numbers: What was measured, by name with unit.
        bound: Speed if this cost nothing, over that of today; None where that is not known.
        limit: Part of the training that it is about; None where it is about something else.
        recommendations: What to do, the best first.
        rule: Id of the rule that found it, where the check goes by a table of rules, or the kind of pause; None for the
            other checks.
    """

    check: str
    severity: Severity
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
        check: Its id.
        issues: What it found; empty means that all is well.
        why_not: Reason for which it was not made or saw nothing; empty where it was made.
        sentence: What it saw, for people, where that is worth telling though all is well.
    """

    check: str
    issues: tuple[Issue, ...] = ()
    why_not: str = ""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class DiagnosisVerdict:
    """Verdict of a diagnosis.

    Attributes:
        sentence: What limits the training, and what to do first.
        limit: Part of the training that limits its speed; None where no trial was made.
        bound: Speed if that cost nothing, over that of today; None where that is not known.
    """

    sentence: str
    limit: Limit | None = None
    bound: Ratio | None = None


@dataclass(frozen=True, kw_only=True)
class TimeShare:
    """Share of the time of a training, once it is under way, that one cause takes.

    Attributes:
        cause: What passes meanwhile, for people.
        limit: Part of the training that it is.
        fraction: Share of the time, 0 to 1.
        place: File and line, or device, that it comes from; empty where that is not known.
        change: What acts on this cause: measured, or bounded by this share; None where nothing is known.
    """

    cause: str
    limit: Limit
    fraction: float
    place: str = ""
    change: Recommendation | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Whole diagnosis.

    Attributes:
        verdict: One sentence: what limits the training, and what to do first.
        results: Results of the checks, in the order of `autotune.diagnose.tables.CHECKS`.
        shares: Where the time goes: the largest share first, and last what is left; they add up to 1. Empty without
            trials.
    """

    verdict: DiagnosisVerdict
    results: tuple[CheckResult, ...]
    shares: tuple[TimeShare, ...] = ()

    @property
    def issues(self) -> tuple[Issue, ...]:
        """All issues: the gravest first, of these what costs most, else in the order of the checks."""
        found = [issue for result in self.results for issue in result.issues]
        return tuple(sorted(found, key=lambda one: rank_of(one.severity, one.bound.low if one.bound else 0.0)))

    @property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """All recommendations: measured ones by the lower end of their gain, then the bounded ones, then the others.

        Of several that write the same values it is the first.
        """
        acting = [one.change for one in self.shares if one.change]  # bounded by the share of their cause
        named = [one.name for one in acting]
        others = [one for issue in self.issues for one in issue.recommendations if one.name not in named]
        unsorted = [*acting, *others]
        places = sorted(range(len(unsorted)), key=lambda place: unsorted[place].rank(min(place, len(acting))))
        found = [unsorted[place] for place in places]
        names = [one.name for one in found]
        return tuple(one for n, one in enumerate(found) if names[n] not in names[:n])

    @property
    def changes(self) -> dict[str, Recommendation]:
        """What leaves the training as it is, by the key that it writes: of several for one key the first.

        Changes that were not tried are among them only where a check calls for them, or they act on a cause that takes
        time worth having.
        """
        switches = [one for issue in self.issues if issue.check == "switches" for one in issue.recommendations]
        called_for = [one.change.values for one in self.shares if one.change and one.change.is_worth(LEAST_BOUND)]
        left_out = [one.values for one in switches if one.evidence is not GainBasis.MEASURED]
        same = [
            one
            for one in self.recommendations
            if one.label == "same training" and (one.values not in left_out or one.values in called_for)
        ]
        return {path: one for one in reversed(same) for path in one.values if not path.startswith(CODE)}


LEAST_BOUND = 1.1
"""What a change may gain at most, from which on it is proposed without having been tried."""


def rank_of(severity: str, bound: float) -> tuple[int, float]:
    """Return what issues are sorted by: the gravest first, of these what costs most; an unknown severity last."""
    known = [one.value for one in Severity]
    return known.index(severity) if severity in known else len(known), -bound


def issue(
    check: str,
    sentence: str,
    remedy: str = "",
    *,
    severity: Severity = Severity.WARNING,
    place: str = "",
    numbers: Mapping[str, float] | None = None,
    bound: Ratio | None = None,
    limit: Limit | None = None,
    values: Values | None = None,
    label: str = "same training",
    cost: str = "",
    rule: str | None = None,
) -> Issue:
    """Return an issue with one recommendation, or with none where there is no remedy.

    Args:
        values: Values that the remedy writes.
        label: What these mean for training.
    """
    advice = Recommendation(sentence=remedy, values=values or {}, label=label, cost=cost)
    return Issue(
        check=check,
        severity=severity,
        sentence=sentence,
        place=place,
        numbers=numbers or {},
        bound=bound,
        limit=limit,
        recommendations=(advice,) if remedy else (),
        rule=rule,
    )


MOST_SHARE = 0.99
"""Upper limit of any reported share of the time, so that 1 / (1 - share) stays finite."""


# Words and numbers of a diagnosis as people read them.


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval, e.g. ``2.6x (2.4 to 2.8)``."""
    digits = 2 if ratio.ratio < 2.0 else 1
    return f"{ratio.ratio:.{digits}f}x ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


NO_LIMIT = 20.0
"""Bound from which on something is said to be no limit any more: what then limits is something else."""


def bound_text(bound: Ratio) -> str:
    """Return what something would gain if it cost nothing: that of a large bound would be no gain anybody has."""
    return f"more than {NO_LIMIT:.0f}x" if bound.ratio > NO_LIMIT else ratio_text(bound)


def counted(count: int, noun: str) -> str:
    """Return a number of things, e.g. ``1 error`` or ``2 errors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def capitalized(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return f"{text[:1].upper()}{text[1:]}"


def percent(fraction: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100.0 * fraction:.0f} %"


def milliseconds(time_s: float) -> str:
    """Return a short time with three digits at most, e.g. ``4.2 ms``."""
    time_ms = 1e3 * time_s
    return f"{time_ms:.1f} ms" if time_ms < 10.0 else f"{time_ms:.0f} ms" if time_ms < 1e4 else f"{time_s:.1f} s"
