"""Simulated races: trainings whose losses fall by a power of their samples, with the noise of real ones.

Samples that come again teach less (an exponential decay over some passes, Muennighoff et al., "Scaling
data-constrained language models", 2023), and what is memorised of them leaves the training loss below the held-out one.
"""

import math
import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from autotune.measure.loss_curves import evaluation_curve, loss_curve
from autotune.records import Ending, Purpose, Race, RaceArm, RaceLeg, TraineeEvent, TrialRecord, Validity
from autotune.space.knob import Label
from autotune.study.race_judgement import judge_race

WINNER, TODAY = "winner", "today"
_SPEED_SD = 0.08  # of ln speed between trials, as measured
_TODAYS_BATCH = 8.0
_BEGINS, _AUGMENTED_PASSES, _BARE_PASSES = 4.0, 15.0, 4.0
_EVALUATION_NOISE = 0.01  # of the held-out loss, by the steps just before


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


@dataclass(frozen=True, kw_only=True)
class Config:
    """Config of a race.

    Attributes:
        speed: Its samples per second over those of today's.
        batch: Its batch over that of today's.
        worth: What a sample teaches, over that of today's.
        memory: Part of the loss of a sample that is gone when it has been seen often: little where each pass augments
            it anew.
        kept: Part of the data that it sees.
    """

    speed: float = 1.0
    batch: float = 1.0
    worth: float = 1.0
    memory: float = 0.1
    kept: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data of a race, and what is told of them.

    Attributes:
        passes: Passes over them that the faster of the two configs makes.
        tells_epochs: Whether the ends of epochs are reported.
        evaluations: Evaluations in a training.
    """

    passes: float = 0.75
    tells_epochs: bool = True
    evaluations: int = 0


def simulated_race(
    family: Family,
    other: Config,
    *,
    rounds: int,
    trains_s: float,
    seed: int,
    today: Config | None = None,
    data: Data | None = None,
    changes: AbstractSet[Label] = frozenset({Label.BATCH}),
) -> Race | None:
    """Race a config against today's.

    Args:
        family: Kind of training.
        other: The config.
        rounds: Number of rounds.
        trains_s: Length of each training.
        seed: Makes it repeatable.
        today: Today's config.
        data: The data; None for more than are seen in a race.
        changes: Labels of what the config changes.
    """
    rng = random.Random(seed)
    today, data = today or Config(), data or Data()
    steps_per_s = 40.0 * math.exp(rng.uniform(-1.0, 1.0))
    usual = _TODAYS_BATCH * steps_per_s * trains_s
    samples = usual * max(today.speed, other.speed) / data.passes
    trials: list[TrialRecord] = []
    for pair in range(rounds):
        for arm, config in ((RaceArm.BASELINE, today), (RaceArm.WINNER, other)):
            each = config.worth * math.exp(family.seed_noise * rng.gauss(0.0, 1.0))
            learned = _Learned(family=family, config=replace(config, worth=each), usual=usual, samples=samples)
            pace = math.exp(_SPEED_SD * rng.gauss(0.0, 1.0))
            events = _events(learned, pace * steps_per_s * config.speed / config.batch, trains_s, data, rng)
            epoch = samples * config.kept if data.tells_epochs else None
            trials.append(_trial(len(trials), arm, pair, events, trains_s, config, epoch))
    return judge_race(trials, WINNER, changes=changes)


def held_out_after(family: Family, config: Config, data: Data, *, fastest: float) -> float:
    """Return the held-out loss at the end of a training of a race, without noise.

    Args:
        family: Kind of training.
        config: The config.
        data: The data.
        fastest: Samples per second of the faster config, over those of today's.
    """
    learned = _Learned(family=family, config=config, usual=1.0, samples=fastest / data.passes)
    return learned.losses(config.speed)[1]


@dataclass(frozen=True, kw_only=True)
class _Learned:
    """Losses of a training by the samples that it has gone through.

    Attributes:
        family: Kind of training.
        config: The config.
        usual: Samples that today's config goes through in a race.
        samples: Samples of the data.
    """

    family: Family
    config: Config
    usual: float
    samples: float

    def losses(self, gone_through: float) -> tuple[float, float]:
        """Return the training loss and the held-out loss."""
        family, config = self.family, self.config
        samples = self.samples * config.kept
        again = max(0.0, gone_through / samples - 1.0)
        lasting = _AUGMENTED_PASSES if config.memory < 0.3 else _BARE_PASSES
        new = min(gone_through, samples) + samples * lasting * (1.0 - math.exp(-again / lasting))
        before = family.begun * self.usual
        unit = max(before, 0.02 * self.usual)
        gone = ((before + config.worth * new) / unit + 1.0) ** -family.exponent
        level = family.rest + (_BEGINS - family.rest) * gone
        memorised = config.memory * (1.0 - math.exp(-again / 3.0))
        return level * (1.0 - memorised), level * (1.0 + 0.5 * memorised)


def _events(
    learned: _Learned, steps_per_s: float, trains_s: float, data: Data, rng: random.Random
) -> list[TraineeEvent]:
    family, batch = learned.family, _TODAYS_BATCH * learned.config.batch
    noise = family.batch_noise / math.sqrt(learned.config.batch)
    steps = int(trains_s * steps_per_s)
    evaluated = {steps * place // data.evaluations for place in range(1, data.evaluations + 1)}
    events = []
    for step in range(steps + 1):
        training, held_out = learned.losses(batch * step)
        # Losses of batches are skewed: a median would depend on the size of the batch.
        loss = training * math.exp(noise * rng.gauss(0.0, 1.0) - noise**2 / 2.0) if step % family.every == 0 else None
        at_s = step / steps_per_s
        events.append(TraineeEvent(kind="step", t_s=at_s, stream="1.0", samples=batch, loss=loss))
        if step in evaluated:
            seen = held_out * (1.0 + _EVALUATION_NOISE * rng.gauss(0.0, 1.0))
            events.append(TraineeEvent(kind="eval", t_s=at_s, stream="1.0", loss=seen))
    return events


def _trial(
    number: int,
    arm: RaceArm,
    pair: int,
    events: list[TraineeEvent],
    trains_s: float,
    config: Config,
    epoch_samples: float | None,
) -> TrialRecord:
    curve, first = loss_curve(events, trains_s)
    evaluations = evaluation_curve(events, trains_s)
    leg = RaceLeg(
        arm=arm,
        pair=pair,
        trained_s=trains_s,
        curve=curve,
        first_loss=first,
        update_samples=_TODAYS_BATCH * config.batch,
        epoch_samples=epoch_samples,
        evaluation_loss=evaluations.losses[-1] if evaluations else None,
        held_out=evaluations,
    )
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
        race=leg,
    )


def each_family(race: Callable[[Family, int], Race | None], times: int) -> dict[str, list[Race]]:
    """Race in each family so many times; return those that were judged."""
    return {
        name: [found for seed in range(times) if (found := race(family, seed)) is not None]
        for name, family in FAMILIES.items()
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """Race of which it is known whether the other config learns faster, or memorises.

    Attributes:
        other: The other config.
        passes: Passes over the data that the faster config makes.
        changes: Labels of what it changes.
        today: Today's config.
        tells_epochs: Whether the ends of epochs are reported.
    """

    other: Config
    passes: float
    changes: AbstractSet[Label]
    today: Config = Config()
    tells_epochs: bool = True


_FROZEN = 0.9
_BATCH, _LOADER = frozenset({Label.BATCH}), frozenset({Label.SAME_TRAINING})
_BOTH = _BATCH | _LOADER
CASES: Mapping[str, Case] = {
    "frozen augmentation, another batch": Case(
        other=Config(speed=4.0, batch=4.0, worth=0.5, memory=_FROZEN), passes=20.0, changes=_BOTH
    ),
    "the same, hidden by the batch": Case(
        other=Config(speed=4.0, batch=4.0, worth=0.35, memory=0.5), passes=6.0, changes=_BOTH
    ),
    "the same, epochs not told": Case(
        other=Config(speed=4.0, batch=4.0, worth=0.35, memory=0.5), passes=6.0, changes=_BOTH, tells_epochs=False
    ),
    "cached after augmentation": Case(other=Config(speed=2.0, memory=_FROZEN), passes=10.0, changes=_LOADER),
    "a tenth dropped": Case(
        other=Config(speed=3.0, kept=0.9, memory=0.3), today=Config(memory=0.3), passes=12.0, changes=_LOADER
    ),
    "few batches again and again": Case(
        other=Config(speed=1.5, kept=0.02, memory=_FROZEN), passes=4.0, changes=_BOTH
    ),
    "small data, seen many times": Case(
        other=Config(speed=4.0, batch=4.0, worth=0.7, memory=_FROZEN), today=Config(memory=_FROZEN), passes=60.0,
        changes=_BATCH,
    ),
    "small data, the same batch": Case(
        other=Config(speed=3.0, memory=_FROZEN), today=Config(memory=_FROZEN), passes=60.0, changes=_LOADER
    ),
    "honest, within one pass": Case(other=Config(speed=4.0, batch=4.0, worth=0.5), passes=0.75, changes=_BOTH),
    "honest, eight passes": Case(other=Config(speed=4.0, batch=4.0, worth=0.6), passes=8.0, changes=_BOTH),
    "honest, the loader alone": Case(other=Config(speed=2.0), passes=0.75, changes=_LOADER),
}  # fmt: skip
"""Those that memorise, or may, and honest ones."""
