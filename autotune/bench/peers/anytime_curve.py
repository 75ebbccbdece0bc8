"""What a method made of its time on one scenario, and the figures that are read off that."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.records import Values

OURS = "autotune"
"""The name of our search among the methods."""

ORACLE = "oracle"
"""The name of the method that knows the best points and has but to tell them apart."""

CLOSE = 0.05
"""Regret up to which a config counts as found."""


class Setting(StrEnum):
    """What the other methods have to work with."""

    SHIPPED = "as shipped"  # a fresh process and a minute for each trial
    SAME_RUNNER = "same runner"  # warm processes, and runs as long as ours: only the search differs


@dataclass(frozen=True, kw_only=True)
class AnytimeCurve:
    """What a method answered at any time, if it had been asked.

    The regret of a config is the share of the best possible speed that it leaves unused, by the true speeds:
    ``1 - speed / best speed``, in 0..1.

    Attributes:
        method: Its name.
        setting: What it had to work with; None where that makes no difference.
        budget_s: How long it could search.
        used_s: How long it did.
        trials: How many trials it made.
        regrets: (since when, regret of the answer from then on), the first at 0 s: today's config.
        answer: What it answered in the end.
    """

    method: str
    setting: Setting | None
    budget_s: float
    used_s: float
    trials: int
    regrets: Sequence[tuple[float, float]]
    answer: Values

    def regret_at(self, time_s: float) -> float:
        """Regret of what it would have answered after that time."""
        return next(regret for since_s, regret in reversed(self.regrets) if since_s <= time_s)

    def close_s(self) -> float | None:
        """Since when its answer is within `CLOSE` of the best for good; None if it is not, in the end."""
        found_s: float | None = None
        for since_s, regret in self.regrets:
            if regret > CLOSE:
                found_s = None
            elif found_s is None:
                found_s = since_s
        return found_s


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What one of our searches said in the end, and how it is in truth.

    Attributes:
        better: Whether it said so.
        low: Lower end of the 95 % interval of the candidate's speed over today's.
        high: Upper end of it.
        true_ratio: What it is.
    """

    better: bool
    low: float
    high: float
    true_ratio: float

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low <= self.true_ratio <= self.high


@dataclass(frozen=True, kw_only=True)
class HeadToHead:
    """All methods on one scenario.

    Attributes:
        seed: Number of the scenario.
        family: What limits its trainer.
        machine: On which machine.
        best: The best point.
        courses: One for each method, setting and (for our search) budget.
        confirmations: Those of our searches.
        cpu_s: What it took to simulate all that.
    """

    seed: int
    family: str
    machine: str
    best: Values
    curves: Sequence[AnytimeCurve]
    confirmations: Sequence[Confirmation]
    cpu_s: float

    @property
    def today_is_close(self) -> bool:
        """Whether there is nothing to find: today's config is within `CLOSE` of the best."""
        return self.curves[0].regrets[0][1] <= CLOSE


@dataclass(frozen=True, kw_only=True)
class NullTrial:
    """Our search where every knob does nothing.

    Attributes:
        seed: Number of the scenario.
        confirmation: What it said; None if it confirmed nothing.
        cpu_s: What it took to simulate.
    """

    seed: int
    confirmation: Confirmation | None
    cpu_s: float
