"""Anytime curve: the answers of one method on one scenario over time, and the figures computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.records import Values

OURS = "autotune"
"""Name of our search among the methods."""

ORACLE = "oracle"
"""Name of the method that knows the best points and only has to compare them."""

CLOSE = 0.05
"""Regret up to which a config counts as found."""


class Setting(StrEnum):
    """Kind of trials that the other methods make."""

    SHIPPED = "as shipped"  # a fresh process and a minute for each trial
    SAME_RUNNER = "same runner"  # warm processes, and trials as long as ours: only the search differs
    SAME_SEARCH = "everything equal but the sampler"  # feasibility, repeats and confirmation are ours, too


@dataclass(frozen=True, kw_only=True)
class AnytimeCurve:
    """Answers that a method would have given at any time.

    The regret of a config is the fraction of the best possible speed that it leaves unused, by the true speeds: ``1 -
    speed / best speed``, in 0..1.

    Attributes:
        method: Name of the method.
        setting: Kind of its trials; None where that makes no difference.
        budget_s: Time that it could use.
        used_s: Time that it used.
        trials: Number of its trials.
        regrets: (time, regret of the answer from then on), the first at 0 s: the baseline.
        answer: Its final answer.
    """

    method: str
    setting: Setting | None
    budget_s: float
    used_s: float
    trials: int
    regrets: Sequence[tuple[float, float]]
    answer: Values

    def regret_at(self, time_s: float) -> float:
        """Return the regret of the answer at that time."""
        return next(regret for since_s, regret in reversed(self.regrets) if since_s <= time_s)

    def close_s(self) -> float | None:
        """Time from which its answer is within `CLOSE` of the best for good; None if the final one is not."""
        found_s: float | None = None
        for since_s, regret in self.regrets:
            if regret > CLOSE:
                found_s = None
            elif found_s is None:
                found_s = since_s
        return found_s


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Final statement of one of our searches, with the truth.

    Attributes:
        better: True if it said so.
        low: Lower end of the 95 % interval of the speedup over the baseline.
        high: Upper end of that interval.
        true_ratio: True speedup.
    """

    better: bool
    low: float
    high: float
    true_ratio: float

    @property
    def holds(self) -> bool:
        """True if the interval holds the truth."""
        return self.low <= self.true_ratio <= self.high


@dataclass(frozen=True, kw_only=True)
class HeadToHead:
    """Results of all methods on one scenario.

    Attributes:
        seed: Number of the scenario.
        family: Kind of its bottleneck.
        machine: Name of its machine.
        best: The best point.
        curves: One for each method, setting and (for our search) budget.
        confirmations: Those of our searches.
        cpu_s: CPU time of the simulation.
    """

    seed: int
    family: str
    machine: str
    best: Values
    curves: Sequence[AnytimeCurve]
    confirmations: Sequence[Confirmation]
    cpu_s: float

    @property
    def baseline_is_close(self) -> bool:
        """True if there is nothing to find: the baseline is within `CLOSE` of the best."""
        return self.curves[0].regrets[0][1] <= CLOSE


@dataclass(frozen=True, kw_only=True)
class NullTrial:
    """Search in a scenario whose knobs have no effect.

    Attributes:
        seed: Number of the scenario.
        confirmation: Its statement; None if it confirmed nothing.
        cpu_s: CPU time of the simulation.
    """

    seed: int
    confirmation: Confirmation | None
    cpu_s: float
