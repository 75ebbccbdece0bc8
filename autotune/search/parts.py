"""Parts that one search is assembled from."""

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.clock import Clock
from autotune.problem.problem import Problem
from autotune.process.launch import Runner
from autotune.process.lifeline import Lifeline
from autotune.sampler.acquisition import WORTH_THE_REST
from autotune.sampler.other_samplers import OURS, SamplerChoice
from autotune.search.schedule import Budget
from autotune.search.warm_start import WarmStart
from autotune.study.record import Study
from autotune.trial.instruments import Instruments


@dataclass(frozen=True, kw_only=True)
class SearchParts:
    """Parts of one search: what it is about, and what it works with.

    Attributes:
        name: Name of the search as this process would have begun it; the names of its trials' folders begin with it.
        seed: Makes the choices of the sampler and the order of the confirmation repeatable.
        problem: What is tuned, where, and on what.
        study: The record; held by this search alone.
        runner: Makes the trials.
        budget: The wall.
        clock: Source of time.
        sampler: Name of the sampler, as in the config, or a sampler of Optuna.
        validate_s: Longest training of a validation trial; None if the answer is not validated.
        race_s: Time for the race of the answer; 0 for none, None for one where the answer calls for it.
        worth_the_rest: Gain in ln score that exploring on has to promise; 0 uses the budget in any case.
        lifeline: Says that the daemon that started this search is gone, or why it is to end; None if nobody does.
        warm_start: Points of other studies that it begins with.
        instruments: Returns those that watch one trial; None for this machine's, GPUs left out.
    """

    name: str
    seed: int
    problem: Problem
    study: Study
    runner: Runner
    budget: Budget
    clock: Clock
    sampler: SamplerChoice = OURS
    validate_s: float | None = None
    race_s: float | None = 0.0
    worth_the_rest: float = WORTH_THE_REST
    lifeline: Lifeline | None = None
    warm_start: WarmStart = field(default_factory=WarmStart)
    instruments: Callable[[], Instruments] | None = None

    @property
    def search(self) -> str:
        """Name of the search that the trials belong to: one that others have begun, where this one joined it."""
        member = self.study.member
        return member.search if member is not None else self.name

    def trial_name(self, number: int) -> str:
        """Return the name of a trial of this process, which its folder gets too."""
        return f"{self.name}-{number:03d}"

    def new_instruments(self) -> Instruments:
        """Return the instruments of one trial, not yet opened."""
        return self.instruments() if self.instruments else Instruments.of_machine(self.clock, None)
