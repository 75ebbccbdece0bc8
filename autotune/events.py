"""What a search tells whoever watches, while it goes on. The storage is the truth, these are a view of it."""

from dataclasses import dataclass

from autotune.records import Purpose, RunRecord, Values
from autotune.results import Verdict


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """The search knows its study and its space, and is about to start the first process."""

    search: str
    study: str
    config: str
    today: Values
    points: int
    runs_found: int
    budget_s: float
    measures: str


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run is being started."""

    number: int
    purpose: Purpose
    changes: Values
    pair: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A run is going on."""

    number: int
    elapsed_s: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """A run has ended and is in the record."""

    run: RunRecord
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
class SearchEnded:
    """The last event of a search."""

    verdict: Verdict | None
    runs: int
    elapsed_s: float


Event = SearchStarted | RunStarted | RunProgress | RunEnded | IncumbentChanged | PhaseChanged | SearchEnded
