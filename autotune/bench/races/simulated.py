"""Simulated races: trainings whose losses fall by a power of their samples, with the noise of real ones."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.measure.loss_curves import loss_curve
from autotune.records import Ending, Purpose, RaceArm, RaceLeg, TraineeEvent, TrialRecord, Validity
from autotune.results import Race
from autotune.study.race_judgement import judge_race

WINNER, TODAY = "winner", "today"
_SPEED_SD = 0.08  # of ln speed between trials, as measured


@dataclass(frozen=True, kw_only=True)
class Family:
    """Kind of training.

    Attributes:
        exponent: Power of the samples by which the loss falls.
        rest: Loss that is left in the end; it begins with 4.
        batch_noise: Standard deviation of the loss of one batch of today's size, relative to the loss.
        seed_noise: Standard deviation of the ln of what a sample is worth, between trainings of one config.
        every: Steps from one reported loss to the next.
        begun: Part of the training that is behind it, in samples over those of a race.
    """

    exponent: float = 0.5
    rest: float = 0.3
    batch_noise: float = 0.1
    seed_noise: float = 0.05
    every: int = 1
    begun: float = 0.02


FAMILIES: Mapping[str, Family] = {
    "plain": Family(),
    "no seed noise": Family(seed_noise=0.0),
    "unlike seeds": Family(seed_noise=0.3),
    "noisy batches": Family(batch_noise=0.6),
    "steep": Family(exponent=1.2, rest=0.05),
    "slow": Family(exponent=0.15),
    "late in training": Family(begun=20.0),
    "a loss each 100 steps": Family(every=100),
}


def simulated_race(
    family: Family, *, learning_speed: float, speed: float, rounds: int, trains_s: float, seed: int
) -> Race | None:
    """Race a config against today's.

    Args:
        family: Kind of training.
        learning_speed: What the other learns in a time over what today's does.
        speed: Its samples per second over today's; each is worth what is left.
        rounds: Number of rounds.
        trains_s: Length of each training.
        seed: Makes it repeatable.
    """
    rng = random.Random(seed)
    steps_per_s = 40.0 * math.exp(rng.uniform(-1.0, 1.0))
    trials: list[TrialRecord] = []
    for pair in range(rounds):
        for arm in (RaceArm.BASELINE, RaceArm.WINNER):
            is_winner = arm is RaceArm.WINNER
            events = _events(
                family,
                steps_per_s=steps_per_s * math.exp(_SPEED_SD * rng.gauss(0.0, 1.0)),
                batch=8.0 * (speed if is_winner else 1.0),
                worth=learning_speed / speed if is_winner else 1.0,
                trains_s=trains_s,
                usual_samples=8.0 * steps_per_s * trains_s,
                rng=rng,
            )
            trials.append(_trial(len(trials), arm, pair, events, trains_s))
    return judge_race(trials, WINNER)


def _events(
    family: Family,
    *,
    steps_per_s: float,
    batch: float,
    worth: float,
    trains_s: float,
    usual_samples: float,
    rng: random.Random,
) -> list[TraineeEvent]:
    each = worth * math.exp(family.seed_noise * rng.gauss(0.0, 1.0))
    noise = family.batch_noise * math.sqrt(8.0 / batch)
    before = family.begun * usual_samples
    unit = max(before, 0.02 * usual_samples)
    events = []
    for step in range(int(trains_s * steps_per_s) + 1):
        level = family.rest + (4.0 - family.rest) * ((before + each * batch * step) / unit + 1.0) ** -family.exponent
        # Losses of batches are skewed: a median would depend on the size of the batch.
        loss = level * math.exp(noise * rng.gauss(0.0, 1.0) - noise**2 / 2.0) if step % family.every == 0 else None
        events.append(TraineeEvent(kind="step", t_s=step / steps_per_s, stream="1.0", samples=batch, loss=loss))
    return events


def _trial(number: int, arm: RaceArm, pair: int, events: list[TraineeEvent], trains_s: float) -> TrialRecord:
    curve, first = loss_curve(events, trains_s)
    return TrialRecord(
        number=number,
        search="race",
        point=WINNER if arm is RaceArm.WINNER else TODAY,
        values={},
        purpose=Purpose.RACE,
        ending=Ending.STOPPED,
        validity=Validity.GOOD,
        ended_utc="2026-01-01T00:00:00+00:00",
        duration_s=trains_s,
        race=RaceLeg(arm=arm, pair=pair, trained_s=trains_s, curve=curve, first_loss=first),
    )


def each_family(race: Callable[[Family, int], Race | None], times: int) -> dict[str, list[Race]]:
    """Race in each family so many times; return those that were judged."""
    return {
        name: [found for seed in range(times) if (found := race(family, seed)) is not None]
        for name, family in FAMILIES.items()
    }
