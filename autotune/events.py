"""Events that a search emits while it goes on. The storage is the truth, events are a view of it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Change of the incumbent: a better point is known.

    Attributes:
        same_training: Whether it is the best of those that leave the training unchanged, where others are tried, too.
    """

    values: Values
    changes: Values
    speedup: float
    same_training: bool = False


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

OnEvent = Callable[[Event], None]

OnRemark = Callable[[str], None]
"""Function that a part of a search gives its sentences for the user to; `EventBus.remark`, where there is a bus."""


def no_remark(text: str) -> None:
    """Drop a remark: for who works where nobody listens."""


class EventBus:
    """Bus for the events of one search: whatever is published is given to every consumer, in their order.

    An event that is published while another is being given out follows it, so that all consumers see the same order.

    Args:
        consumers: Called with each event; what one of them raises goes to whoever published it.
    """

    def __init__(self, consumers: Iterable[OnEvent] = ()) -> None:
        self._consumers = list(consumers)
        self._waiting: deque[Event] = deque()
        self._gives_out = False

    def subscribe(self, consumer: OnEvent) -> None:
        """Add a consumer, behind all others."""
        self._consumers.append(consumer)

    def publish(self, event: Event) -> None:
        """Give an event to all consumers."""
        self._waiting.append(event)
        self.give_out()

    def give_out(self) -> None:
        """Give out the events that wait, where a consumer's error has kept them back."""
        if self._gives_out:
            return
        self._gives_out = True
        try:
            while self._waiting:
                event = self._waiting.popleft()
                for consumer in self._consumers:
                    consumer(event)
        finally:
            self._gives_out = False

    def remark(self, text: str) -> None:
        """Publish a sentence for the user."""
        self.publish(Remark(text=text))

    def change_phase(self, phase: str, why: str) -> None:
        """Publish that a phase begins, or something of it changes, with the reason."""
        self.publish(PhaseChanged(phase=phase, why=why))
