"""Claims on trials that go on: the attribute of an Optuna trial that says who makes it, and its lease."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from autotune.clock import Clock, SystemClock
from autotune.records import Scalar, Values
from autotune.space.knob import is_number, same_scalar
from autotune.study.storage.storage import StoredTrial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

CLAIM = "claim"
"""Attribute that holds a claim."""

RENEWAL_S = 10.0
"""Time between the signs of life of who makes a trial."""

LEASE_S = 60.0
"""Time without a sign of life after which a trial counts as interrupted."""

IsGone = Callable[[Mapping[str, Any]], bool]
"""Returns whether the owner of a claim is known to have ended."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner of the claims of one process.

    Attributes:
        is_gone: Returns whether the owner of another claim is known to have ended.
        ends_s: Time after which it waits for nothing, on that clock.
    """

    about: Mapping[str, Scalar]
    is_gone: IsGone
    clock: Clock
    ends_s: float = math.inf


NOBODY = Owner(about={}, is_gone=lambda _claim: False, clock=SystemClock())
"""Owner of whoever only reads."""


@dataclass(kw_only=True)
class Claim:
    """Claim on a trial that has begun.

    Attributes:
        number: Number that the trial has in the study; for want of an answer from the storage, the next one that is
            free here.
        uuid: Name of the trial, whatever its number becomes.
        is_made: Whether the storage has its trial, as far as it has answered; None while it was not asked.
    """

    number: int
    values: Values
    distributions: Distributions
    about: Mapping[str, Scalar]
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: datetime = field(default_factory=datetime.now)
    renewals: int = 0
    is_made: bool | None = None

    def attribute(self) -> dict[str, Any]:
        return {"uuid": self.uuid, **self.about, "n": self.renewals}

    def running_trial(self) -> FrozenTrial:
        """Return the Optuna trial that goes on under this claim."""
        from optuna.trial import FrozenTrial, TrialState

        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=self.started,
            datetime_complete=None,
            params=dict(self.values),
            distributions=dict(self.distributions),
            user_attrs={CLAIM: self.attribute()},
            system_attrs={},
            intermediate_values={},
        )


def uuid_of(trial: StoredTrial) -> str | None:
    """Return the name of a trial; None for one of early studies, or none of ours."""
    claim = trial.user_attrs.get(CLAIM) if isinstance(trial.user_attrs, Mapping) else None
    found = claim.get("uuid") if isinstance(claim, Mapping) else None
    return found if isinstance(found, str) else None


class LeaseWatch:
    """Watch over the claims of others.

    A claim has lapsed when its owner is known to be gone, or has given no sign of life for `LEASE_S` on this machine's
    own monotonic clock: the clocks of machines differ. Time in which the storage was away does not count, as nobody
    could write a sign of life, or read it.
    """

    def __init__(self, clock: Clock, is_gone: IsGone) -> None:
        self._clock = clock
        self._is_gone = is_gone
        self._seen: dict[tuple[str, int | str], tuple[Any, float]] = {}
        self._counts_from_s = -math.inf

    def pause(self) -> None:
        """Let nothing lapse for its silence, until `resume`: the storage is away."""
        self._counts_from_s = math.inf

    def resume(self) -> None:
        """Let all that is silent lapse after `LEASE_S` from now on: the storage answers again."""
        self._counts_from_s = self._clock.now_s()

    def has_lapsed(self, study: str, number: int | str, claim: object) -> bool:
        """Return whether nobody makes a trial any more.

        Args:
            study: Name of its Optuna study; or of a list of what else is renewed.
            claim: Its claim as it was read, whatever that is; None where it has none.
        """
        if isinstance(claim, Mapping) and self._is_gone(claim):
            return True
        sign = claim.get("n") if isinstance(claim, Mapping) else None
        now_s = self._clock.now_s()
        seen, since_s = self._seen.setdefault((study, number), (sign, now_s))
        if seen != sign:
            self._seen[study, number] = (sign, now_s)
            return False
        return now_s - max(since_s, self._counts_from_s) >= LEASE_S


# Parameters of a study's Optuna trials: knobs by their dotted keys, with the values that the user's config holds.


Distributions = Mapping[str, "BaseDistribution"]
"""Distribution of each parameter, by the dotted key of its knob."""


def distribution_of(choices: Sequence[Scalar]) -> BaseDistribution:
    """Return the distribution of a knob with these choices: the range of numbers, else the list."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = [choice for choice in choices if isinstance(choice, int | float) and is_number(choice)]
    if len(numbers) < len(choices):
        return CategoricalDistribution(tuple(choices))
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(min(numbers), max(numbers))  # type: ignore[arg-type]
    return FloatDistribution(float(min(numbers)), float(max(numbers)))


def united(known: Distributions, wanted: Distributions) -> Distributions | None:
    """Return the distributions with which a study that knows some parameters takes trials of others.

    Returns:
        Those of the trials, lists of categories as the study has them; None if it cannot take them.
    """
    from optuna.distributions import CategoricalDistribution

    found: dict[str, BaseDistribution] = {}
    for path, distribution in wanted.items():
        there = known.get(path, distribution)
        if type(there) is not type(distribution):
            return None
        if isinstance(there, CategoricalDistribution) and isinstance(distribution, CategoricalDistribution):
            if not all(any(same_scalar(choice, one) for one in there.choices) for choice in distribution.choices):
                return None
            distribution = there
        found[path] = distribution
    return found
