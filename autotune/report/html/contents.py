"""Contents of a report, gathered from a study and its folders before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.records import TrialRecord
from autotune.results import SearchResult, Side, Verdict


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommendation of a diagnosis.

    Attributes:
        sentence: What it recommends.
        values: The values, as text.
        gain: What it gains, in words; empty where that was not tried.
    """

    sentence: str
    values: str
    gain: str


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Part of a step of today's config, as a profile found it.

    Attributes:
        name: Name of the phase.
        mean_ms: Its mean time; None where it was not measured.
    """

    name: str
    mean_ms: float | None


@dataclass(frozen=True, kw_only=True)
class ConfirmingPair:
    """Complete pair of the confirmation.

    Attributes:
        today: Speed of today's config, in samples a second.
        other: That of what it is compared with.
        is_left_out: Whether something had slowed down one of the two, so that the answer does without this pair.
    """

    today: float
    other: float
    is_left_out: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyContents:
    """Contents of the report of one study.

    Attributes:
        config: The config, as it was named.
        study: Name of the study.
        trials: All its trials, oldest first.
        result: Answer of the last search; None where no trial gave numbers.
        why_no_result: Reason for that, as a clause.
        state: How the last search stands, as a sentence; empty where it came to its end.
        elapsed_s: Time that the last search took; None where that is not known.
        measures: What the score measures, in words.
        pairs: Complete pairs of the confirmation.
        step_times_s: Times of steps of today's config, and of what it is compared with; empty where none are kept.
        diff: Change to the config; None where there is none to make.
        commands: Commands that go on from here, by what they do.
        conditions: What the numbers hold for: name and text of each.
        advice: Recommendations of a diagnosis; None where none is at hand.
        verdict_of_diagnosis: Its sentence; empty without one.
        step_parts: Parts of a step, from the profile in a diagnosis' folder; empty without one.
        machines: Name of each machine for people, by that in the record; no two have the same.
        remedies: What to do about each kind of failure, by the ending's name.
    """

    config: str
    study: str
    trials: Sequence[TrialRecord]
    result: SearchResult | None
    why_no_result: str = ""
    state: str = ""
    elapsed_s: float | None = None
    measures: str = ""
    pairs: Sequence[ConfirmingPair] = ()
    step_times_s: tuple[Sequence[float], Sequence[float]] = ((), ())
    diff: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    conditions: Sequence[tuple[str, str]] = ()
    advice: Sequence[Advice] | None = None
    verdict_of_diagnosis: str = ""
    step_parts: Sequence[StepPart] = ()
    machines: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Side | None:
        """What stands beside today's config: the best, else what was tried and not found better."""
        if self.result is None:
            return None
        return self.result.candidate if self.result.verdict is Verdict.NO_CHANGE else self.result.best

    @property
    def name_of_shown(self) -> str:
        """Name of that, as a heading."""
        return "tried" if self.result is not None and self.result.verdict is Verdict.NO_CHANGE else "best"
