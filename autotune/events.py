"""What a search tells whoever watches, while it goes on. The storage is the truth, these are a view of it."""

from dataclasses import dataclass

from autotune.records import Purpose, TrialRecord, Values
from autotune.results import Verdict


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """The search knows its study and its space, and is about to start the first process."""

    search: str
    study: str
    config: str
    today: Values
    points: int
    trials_found: int
    budget_s: float
    measures: str


@dataclass(frozen=True, kw_only=True)
class TrialStarted:
    """A trial is being started."""

    number: int
    purpose: Purpose
    changes: Values
    pair: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """A trial is going on."""

    number: int
    elapsed_s: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    """A trial has ended and is in the record."""

    trial: TrialRecord
    changes: Values
    speedup: float | None
    stderr_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class IncumbentChanged:
    """A better point is known."""

    values: Values
    changes: Values
    speedup: float


@dataclass(frozen=True, kw_only=True)
class PhaseChanged:
    """The search turns from exploring to confirming, with the reason."""

    phase: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence for the user, said once."""

    text: str


@dataclass(frozen=True, kw_only=True)
class SearchEnded:
    """The last event of a search."""

    verdict: Verdict | None
    trials: int
    elapsed_s: float


Event = (
    SearchStarted | TrialStarted | TrialProgress | TrialEnded | IncumbentChanged | PhaseChanged | Remark | SearchEnded
)
