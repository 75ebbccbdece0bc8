"""Events that a search emits while it goes on. The storage is the truth, events are a view of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.records import GpuRole, Purpose, Ratio, Scalar, TrialRecord, Values, Verdict


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """Start of a search: study and space are known, and the first process is about to start."""

    search: str
    study: str
    config: str
    baseline: Values
    points: int
    trials_found: int
    budget_s: float
    measures: str


@dataclass(frozen=True, kw_only=True)
class TrialStarted:
    """Start of a trial."""

    number: int
    purpose: Purpose
    changes: Values
    pair: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """Progress of a trial that is going on; with the latest utilization of the GPUs of data and model, if known."""

    number: int
    elapsed_s: float
    steps: int
    utilization: Mapping[GpuRole, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    """End of a trial, which is in the record now."""

    trial: TrialRecord
    changes: Values
    speedup: float | None
    stderr_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class IncumbentChanged:
    """Change of the incumbent: a better point is known."""

    values: Values
    changes: Values
    speedup: float


@dataclass(frozen=True, kw_only=True)
class PhaseChanged:
    """Change from exploring to confirming, with the reason."""

    phase: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence for the user, said once."""

    text: str


@dataclass(frozen=True, kw_only=True)
class KnobsRated:
    """What each knob does by itself, by a model of all trials of a search; told once, before its end.

    Attributes:
        around: The answer, or today's values where nothing is better.
        effects: For each knob the values that were tried, with the speed over that of `around` if it alone is changed.
    """

    around: Values
    effects: Mapping[str, Sequence[tuple[Scalar, Ratio]]]


@dataclass(frozen=True, kw_only=True)
class SearchEnded:
    """End of a search; its last event.

    Attributes:
        speedup: Speed of its answer, or of what was tried, over today's, by pairs; None where there is none.
        changes: What that changes.
    """

    verdict: Verdict | None
    trials: int
    elapsed_s: float
    speedup: float | None = None
    changes: Values = field(default_factory=dict)


Event = (
    SearchStarted
    | TrialStarted
    | TrialProgress
    | TrialEnded
    | IncumbentChanged
    | PhaseChanged
    | Remark
    | KnobsRated
    | SearchEnded
)
