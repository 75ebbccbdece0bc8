"""Judgement of a race: what its losses may not be taken for."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.records import Learning, LossCurve, Purpose, Race, RaceArm, RaceLeg, TrialRecord
from autotune.space.knob import Label
from autotune.study.race_judgement import judge_race
from tests.study.storages import record

Loss = Callable[[float], float]
"""Loss after so many samples."""


def falling(worth: float, noise: float = 0.004) -> Loss:
    """A loss that falls as if each sample counted so many times."""
    return lambda samples: 0.5 + 3.0 / (1.0 + worth * samples / 500.0) ** 0.5 * (1.0 + noise * (samples % 7 - 3))


def leg(arm: RaceArm, pair: int, batch: float, rate: float, loss: Loss, *, first: float, held_out: bool) -> TrialRecord:
    """A training of 60 s with so many samples a second."""
    ends_s = tuple(float(second) for second in range(1, 61))
    samples = tuple(rate * end_s + pair for end_s in ends_s)
    curve = LossCurve(ends_s=ends_s, losses=tuple(map(loss, samples)), samples=samples)
    race = RaceLeg(
        arm=arm,
        pair=pair,
        trained_s=60.0,
        curve=curve,
        first_loss=first,
        update_samples=batch,
        held_out=curve if held_out else None,
        evaluation_loss=curve.losses[-1] if held_out else None,
    )
    return replace(record(), point=arm.value, purpose=Purpose.RACE, race=race)


def judged(
    *,
    batch: float = 8.0,
    rate: float = 100.0,
    worth: float = 1.0,
    first: float = 3.5,
    held_out: bool = True,
    changes: frozenset[Label] = frozenset({Label.BATCH}),
) -> Race:
    """Judge four rounds of today's config, with batches of 8 and 100 samples a second, and of another."""
    trials = []
    for pair in range(4):
        trials.append(leg(RaceArm.BASELINE, pair, 8.0, 100.0, falling(1.0), first=3.5, held_out=held_out))
        trials.append(leg(RaceArm.WINNER, pair, batch, rate, falling(worth), first=first, held_out=held_out))
    race = judge_race(trials, RaceArm.WINNER.value, changes=changes)
    assert race is not None
    return race


@pytest.mark.parametrize(("batch", "first", "is_summed"), [(12.0, 5.25, True), (12.0, 3.5, False), (8.8, 3.85, False)])
def test_a_loss_that_grows_with_the_batch_is_not_compared(batch: float, first: float, is_summed: bool) -> None:
    """It seems to be a sum over the batch; where the batches are nearly alike, that cannot be told."""
    race = judged(batch=batch, first=first, rate=150.0)
    assert ("sum over the batch" in race.why_unknown) is is_summed
    assert (race.winner.learning is Learning.UNKNOWN) is is_summed


def test_what_is_as_fast_as_its_samples_explain_learns_faster() -> None:
    """2.5x the samples in the same time, each worth as much: 2.5x, and the whole interval is near it."""
    winner = judged(rate=250.0, batch=16.0).winner
    assert winner.learning is Learning.FASTER
    assert winner.learning_speed == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize(
    ("rate", "worth", "held_out", "learning", "why"),
    [
        (100.0, 3.0, True, Learning.UNKNOWN, "3.03x as fast, with 1x the samples per second"),
        (150.0, 1.25, True, Learning.FASTER, ""),
        (150.0, 1.4, True, Learning.FASTER, ""),
        (100.0, 1.5, False, Learning.MEMORISES, "which is lower than another batch or cache makes it"),
    ],
)
def test_what_no_batch_explains_is_not_told_as_learning_so_much_faster(
    rate: float, worth: float, held_out: bool, learning: Learning, why: str
) -> None:
    """Samples that teach more than a batch can make them: up to a third more may be luck, and has no number then."""
    winner = judged(rate=rate, worth=worth, held_out=held_out).winner
    assert (winner.learning, why in winner.why) == (learning, True)
    assert (winner.learning_speed is not None) is (worth == 1.25)


def test_a_change_that_learns_less_from_each_sample_is_slower() -> None:
    """As many samples a second, each worth half."""
    winner = judged(worth=0.5).winner
    assert winner.learning is Learning.SLOWER
    assert winner.learning_speed == pytest.approx(0.5, rel=0.1)
    assert winner.at_equal_time is not None
    assert winner.at_equal_time.low > 0.0


def test_the_same_training_has_to_learn_alike_from_equally_many_samples() -> None:
    """What is called so and learns more of each sample is told as a caution."""
    changes = frozenset({Label.SAME_TRAINING})
    assert not judged(rate=150.0, changes=changes).cautions
    (caution,) = judged(rate=150.0, worth=2.0, changes=changes).cautions
    assert "after equally many samples" in caution
