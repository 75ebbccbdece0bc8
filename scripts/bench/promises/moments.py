"""Moments of a search: before each trial, what is promised, and how good the answer of that moment truly is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.errors import TrialError
from autotune.events import Event, PhaseChanged, TrialStarted
from autotune.records import Purpose
from autotune.search.schedule import Budget
from autotune.search.state import REALIZED, SearchState
from scripts.bench.peers.harness import Harness, SimulatedTrainer

APART = 10
"""Trials between two moments that ask what is promised to users, and that count in tables of promises."""

_EXPLORING = frozenset({Purpose.EXPLORE, Purpose.REPEAT})


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Moment of a search that explores.

    Attributes:
        trials: Number of trials so far.
        elapsed_s: Time since the search began.
        ln_speed: True ln speed of the answer, the point that is believed to be best.
        tried_share: Share of the points of the space that were tried.
        rest: Gain in ln score that exploring on promises; None at the end of it.
        ahead: Gain in ln score that the model promises for what users are told of, `REALIZED` of which they are told;
            None where it was not asked for, or is not told yet.
    """

    trials: int
    elapsed_s: float
    ln_speed: float
    tried_share: float
    rest: float | None
    ahead: float | None


def watched_search(
    harness: Harness,
    one: SimulatedTrainer,
    budget: Budget,
    consumers: Sequence[Callable[[Event], None]],
    *,
    promised_to_users: Callable[[SearchState], float | None],
) -> list[Moment]:
    """Run our tuner, which explores to the end of its budget whatever is promised.

    Args:
        harness: The machine of the trainer.
        one: The trainer.
        budget: The budget.
        consumers: Told everything that happens.
        promised_to_users: Asks what users are told to gain, e.g. 0.02.

    Returns:
        A moment before each trial that explores, and the end of exploring; none if no trial gave numbers.
    """
    moments: list[Moment] = []

    def add(rest: float | None, ahead: float | None) -> None:
        better = tuner.state.better()
        values = better[0].observation.values if better else harness.problem.space.baseline
        moments.append(
            Moment(
                trials=len(tuner.state.trials),
                elapsed_s=budget.elapsed_s(),
                ln_speed=math.log(one.speed(values)),
                tried_share=tuner.state.tried_share,
                rest=rest,
                ahead=ahead,
            )
        )

    def note(event: Event) -> None:
        if isinstance(event, TrialStarted) and event.purpose in _EXPLORING:
            is_asked = len(tuner.state.trials) % APART == 0
            told = promised_to_users(tuner.state) if is_asked else None
            add(tuner.promised, None if told is None else math.log1p(told) / REALIZED)
        elif (
            isinstance(event, PhaseChanged) and event.phase != "exploring" and moments and moments[-1].rest is not None
        ):
            add(None, None)  # before the confirmation

    with harness.tuner(budget, [*consumers, note], worth_the_rest=0.0) as tuner:
        try:
            tuner.run()
        except TrialError:
            return []
        if tuner.ended_by is not None:
            raise tuner.ended_by
    return moments
