"""Claims on running trials: an attribute of the Optuna trial with its owner and lease."""

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
"""Attribute with the claim."""

RENEWAL_S = 10.0
"""Interval of the heartbeats of a running trial."""

LEASE_S = 60.0
"""Time without a heartbeat after which a trial counts as interrupted."""

IsGone = Callable[[Mapping[str, Any]], bool]
"""Returns whether the owner of a claim is known to have exited."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Owner of a process's claims; after `ends_s` on `clock` it waits for nothing."""

    about: Mapping[str, Scalar]
    is_gone: IsGone
    clock: Clock
    ends_s: float = math.inf


NO_OWNER = Owner(about={}, is_gone=lambda _claim: False, clock=SystemClock())
"""Owner for processes that only read."""


@dataclass(kw_only=True)
class Claim:
    """Claim on a running trial.

    Attributes:
        number: Number of the trial; until the storage answers, the next free one.
        is_written: None before the first attempt.
    """

    number: int
    values: Values
    distributions: Distributions
    about: Mapping[str, Scalar]
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: datetime = field(default_factory=datetime.now)
    renewals: int = 0
    is_written: bool | None = None

    def attribute(self) -> dict[str, Any]:
        return {"uuid": self.uuid, **self.about, "n": self.renewals}

    def running_trial(self) -> FrozenTrial:
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
    """Return the UUID of a trial, which foreign and early ones lack."""
    claim = trial.user_attrs.get(CLAIM) if isinstance(trial.user_attrs, Mapping) else None
    found = claim.get("uuid") if isinstance(claim, Mapping) else None
    return found if isinstance(found, str) else None


class LeaseWatch:
    """Watch over other processes' claims.

    A claim lapses if its owner is known to be gone, or sends no heartbeat for `LEASE_S` on this machine's clock, not
    counting time with an unreachable storage.
    """

    def __init__(self, clock: Clock, is_gone: IsGone) -> None:
        self._clock = clock
        self._is_gone = is_gone
        self._seen: dict[tuple[str, int | str], tuple[Any, float]] = {}
        self._counts_from_s = -math.inf

    def pause(self) -> None:
        """Stop expiry until `resume`."""
        self._counts_from_s = math.inf

    def resume(self) -> None:
        """Expire silent claims after `LEASE_S` from now."""
        self._counts_from_s = self._clock.now_s()

    def has_lapsed(self, study: str, number: int | str, claim: object) -> bool:
        """Return whether a trial is abandoned.

        Args:
            study: Name of a group of heartbeats, e.g. an Optuna study.
            claim: Its claim as read, unchecked.
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


# Parameters of Optuna trials: knobs by dotted key, with the config's values


Distributions = Mapping[str, "BaseDistribution"]
"""Distribution by dotted key."""


def distribution_of(choices: Sequence[Scalar]) -> BaseDistribution:
    """Return the distribution of a knob: a range of numbers, otherwise categories."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = [choice for choice in choices if isinstance(choice, int | float) and is_number(choice)]
    if len(numbers) < len(choices):
        return CategoricalDistribution(tuple(choices))
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(min(numbers), max(numbers))  # type: ignore[arg-type]
    return FloatDistribution(float(min(numbers)), float(max(numbers)))


def united(known: Distributions, wanted: Distributions) -> Distributions | None:
    """Return the distributions under which a study can store trials, with its own categories, if it can."""
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
