"""Parts that one search is assembled from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from autotune.clock import Clock
from autotune.events import EventBus
from autotune.options import SearchOptions
from autotune.search.neighbours import Neighbours
from autotune.search.problem import Problem
from autotune.search.schedule import Budget
from autotune.search.warm_start import WarmStart
from autotune.study.record import StudyRecord
from autotune.trial.children import Lifeline
from autotune.trial.instruments import Instruments
from autotune.trial.launch import Runner


@dataclass(frozen=True, kw_only=True)
class SearchParts:
    """Parts of one search: what it is about, and what it works with.

    Attributes:
        name: Name of the search as this process would have begun it; the names of its trials' folders begin with it.
        options: What the user asked for; of a worker without a race.
        events: Takes all that happens.
        confirms: Whether time is kept for the confirmation; False for a benchmark of the exploring alone.
        lifeline: Says that the daemon that started this search is gone, or why it is to end; None if nobody does.
        warm_start: Points of other studies that it begins with.
        neighbours: Those who train on this machine's other GPUs.
        instruments: Returns those that watch one trial; None for this machine's, GPUs left out.
    """

    name: str
    options: SearchOptions
    problem: Problem
    study: StudyRecord
    runner: Runner
    budget: Budget
    clock: Clock
    events: EventBus = field(default_factory=EventBus)
    confirms: bool = True
    lifeline: Lifeline | None = None
    warm_start: WarmStart = field(default_factory=WarmStart)
    neighbours: Neighbours = field(default_factory=Neighbours)
    instruments: Callable[[], Instruments] | None = None

    @property
    def search(self) -> str:
        """Name of the search that the trials belong to: one that others have begun, where this one joined it."""
        member = self.study.members.own
        return member.search if member is not None else self.name

    @property
    def machine(self) -> str:
        """Name of this machine, as its trials have it."""
        member = self.study.members.own
        return member.machine if member is not None else self.problem.machine.name

    def trial_name(self, number: int) -> str:
        """Return the name of a trial of this process, which its folder gets too."""
        return f"{self.name}-{number:03d}"

    def new_instruments(self) -> Instruments:
        """Return the instruments of one trial, not yet opened."""
        return self.instruments() if self.instruments else Instruments.of_machine(self.clock, None)


class Outcome(Enum):
    """What a stage of a search came to, as far as the next stage depends on it."""

    DONE = auto()
    MEASURED = auto()  # pairs were made and can be judged
    FAR_SLOWER = auto()  # the first pairs show that the finalist is no gain
    FAILED = auto()  # a point failed in its pairs
    TIME_FREED = auto()  # nothing is to be confirmed, and the time kept for it is there again
    ENDED = auto()  # nothing can be confirmed any more
    HELD = auto()  # the answer stands
    BROKE = auto()  # it broke in a longer training
    UNCONFIRMED = auto()  # it is not shown to be better, and exploring had ended early for it
