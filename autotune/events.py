"""Events of a running search: a view of its storage."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.records import GpuRole, Purpose, Ratio, Scalar, TrialRecord, Values, Verdict


@dataclass(frozen=True, kw_only=True)
class SearchStarted:
    """Start of a search, before its first process."""

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
    """Progress of a running trial, with the latest utilization by GPU role."""

    number: int
    elapsed_s: float
    steps: int
    utilization: Mapping[GpuRole, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    """End of a trial, already recorded."""

    trial: TrialRecord
    changes: Values
    speedup: float | None
    stderr_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class IncumbentChanged:
    """New best point, of all or of those that leave the training unchanged."""

    values: Values
    changes: Values
    speedup: float
    same_training: bool = False


@dataclass(frozen=True, kw_only=True)
class PhaseChanged:
    """Change of the search phase, with the reason."""

    phase: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Remark:
    """Sentence for the user, shown once."""

    text: str


@dataclass(frozen=True, kw_only=True)
class KnobsRated:
    """Main effects of the knobs by a model of all trials, published before the search ends.

    Attributes:
        around: The answer, or the baseline if nothing is better.
        effects: Tried values of each knob, with the speed relative to `around` if only that knob changes.
    """

    around: Values
    effects: Mapping[str, Sequence[tuple[Scalar, Ratio]]]


@dataclass(frozen=True, kw_only=True)
class SearchEnded:
    """End of a search, with the confirmed speedup of the answer or candidate."""

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

OnEvent = Callable[[Event], None]

OnRemark = Callable[[str], None]
"""Callback for sentences to the user, usually `EventBus.remark`."""


def no_remark(text: str) -> None:
    """Drop a remark."""


class EventBus:
    """Bus for the events of one search, which all consumers see in the same order.

    Exceptions of consumers reach the publisher.
    """

    def __init__(self, consumers: Iterable[OnEvent] = ()) -> None:
        self._consumers = list(consumers)
        self._pending: deque[Event] = deque()
        self._is_delivering = False

    def subscribe(self, consumer: OnEvent) -> None:
        self._consumers.append(consumer)

    def publish(self, event: Event) -> None:
        self._pending.append(event)
        self.flush()

    def flush(self) -> None:
        """Deliver pending events."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._pending:
                event = self._pending.popleft()
                for consumer in self._consumers:
                    consumer(event)
        finally:
            self._is_delivering = False

    def remark(self, text: str) -> None:
        self.publish(Remark(text=text))

    def change_phase(self, phase: str, why: str) -> None:
        self.publish(PhaseChanged(phase=phase, why=why))
