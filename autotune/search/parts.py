"""Parts of one search."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    """Parts of one search.

    Attributes:
        name: This process's part; prefix of its trials' folders.
        confirms: Whether time is kept for the confirmation; False in benchmarks of exploring.
        neighbours: Processes on this machine's other GPUs.
        instruments: Creates those of one trial; None for this machine's, without GPUs.
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
        """Name of the search, perhaps started by another process."""
        member = self.study.members.own
        return member.search if member is not None else self.name

    @property
    def machine(self) -> str:
        member = self.study.members.own
        return member.machine if member is not None else self.problem.machine.name

    def trial_name(self, number: int) -> str:
        return f"{self.name}-{number:03d}"

    def new_instruments(self) -> Instruments:
        return self.instruments() if self.instruments else Instruments.of_machine(self.clock, None)
