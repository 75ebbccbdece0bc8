"""Judgement of a race: what its losses may not be taken for."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.records import Ending, Learning, LossCurve, Purpose, Race, RaceArm, RaceLeg, TrialRecord, Validity
from autotune.space.knob import Label
from autotune.study.race_judgement import judge_race
from tests.study.storages import record

Loss = Callable[[float], float]
"""Loss after so many samples."""


def falling(worth: float, noise: float = 0.004) -> Loss:
    """A loss that falls as if each sample counted so many times."""
    return lambda samples: 0.5 + 3.0 / (1.0 + worth * samples / 500.0) ** 0.5 * (1.0 + noise * (samples % 7 - 3))


def leg(
    arm: RaceArm,
    pair: int,
    batch: float,
    rate: float,
    loss: Loss,
    *,
    first: float | None = 3.5,
    held_out: bool = False,
    stretch_s: int = 1,
    length_s: int = 60,
    **about: Any,
) -> TrialRecord:
    """A training of a minute with so many samples a second, its losses seen in stretches of that length."""
    ends_s = tuple(float(second) for second in range(stretch_s, length_s + 1, stretch_s))
    samples = tuple(rate * end_s + pair for end_s in ends_s)
    curve = LossCurve(ends_s=ends_s, losses=tuple(map(loss, samples)), samples=samples)
    race = RaceLeg(
        arm=arm,
        pair=pair,
        trained_s=float(length_s),
        curve=curve,
        first_loss=first,
        update_samples=batch,
        held_out=curve if held_out else None,
        evaluation_loss=curve.losses[-1] if held_out else None,
        **about,
    )
    return replace(record(), point=arm.value, purpose=Purpose.RACE, race=race)


def judged(
    *,
    batch: float = 8.0,
    rate: float = 100.0,
    worth: float = 1.0,
    first: float | None = 3.5,
    held_out: bool = True,
    changes: frozenset[Label] = frozenset({Label.BATCH}),
    noise: float = 0.004,
    epochs: tuple[float | None, float | None] = (None, None),
    resumed: bool = False,
) -> Race:
    """Judge four rounds of today's config, with batches of 8 and 100 samples a second, and of another."""
    trials = []
    for pair in range(4):
        today, other = ({"held_out": held_out, "resumed": resumed, "epoch_samples": size} for size in epochs)
        trials.append(leg(RaceArm.BASELINE, pair, 8.0, 100.0, falling(1.0, noise), **today))
        trials.append(leg(RaceArm.WINNER, pair, batch, rate, falling(worth, noise), first=first, **other))
    race = judge_race(trials, RaceArm.WINNER.value, changes=changes)
    assert race is not None
    return race


@pytest.mark.parametrize(
    ("batch", "first", "is_summed"),
    [
        (12.0, 5.25, True),
        (12.0, 3.5, False),
        (12.0, -5.25, False),
        (12.0, None, False),
        (4.0, 1.75, True),
        (11.3, 4.94, True),
        (11.1, 4.86, False),
    ],
)
def test_a_loss_that_grows_with_the_batch_is_not_compared(batch: float, first: float | None, is_summed: bool) -> None:
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
        (100.0, 3.0, True, Learning.UNKNOWN, "3.03x as fast with 1x the samples per second"),
        (150.0, 1.25, True, Learning.FASTER, ""),
        (150.0, 1.4, True, Learning.FASTER, ""),
        (100.0, 1.5, False, Learning.MEMORISES, "lower than a batch or cache can make it"),
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
    assert winner.at_equal_time.low > 0.0


def test_the_same_training_has_to_learn_alike_from_equally_many_samples() -> None:
    """What is called so and learns more of each sample is told as a caution."""
    changes = frozenset({Label.SAME_TRAINING})
    assert not judged(rate=150.0, changes=changes).cautions
    (caution,) = judged(rate=150.0, worth=2.0, changes=changes).cautions
    assert "its loss is lower after equally many samples" in caution
    (caution,) = judged(rate=150.0, worth=0.5, changes=changes).cautions
    assert "its loss is higher after equally many samples" in caution


@pytest.mark.parametrize(
    ("epoch", "resumed", "learning", "why"),
    [
        (None, False, Learning.UNKNOWN, "no end of an epoch was seen, and no held-out loss is reported"),
        (8573.0, False, Learning.UNKNOWN, "the data were seen 1.1 times"),
        (8575.0, False, Learning.FASTER, ""),
        (8575.0, True, Learning.UNKNOWN, "the checkpoint may have been trained on the same data"),
    ],
)
def test_a_training_loss_tells_learning_from_memorising_while_no_sample_comes_again(
    epoch: float | None, resumed: bool, learning: Learning, why: str
) -> None:
    """Of the 9,003 samples of a training one in twenty may come again; where that is not known, nothing is told."""
    winner = judged(rate=150.0, held_out=False, epochs=(epoch, epoch), resumed=resumed).winner
    assert (winner.learning, why in winner.why, winner.learning_speed is None) == (learning, True, bool(why))


@pytest.mark.parametrize(("batch", "worth", "learning"), [(4.0, 1.5, Learning.FASTER), (8.0, 1.5, Learning.UNKNOWN)])
def test_the_more_frequent_updates_of_a_smaller_batch_explain_that_a_sample_teaches_more(
    batch: float, worth: float, learning: Learning
) -> None:
    """Twice as many updates of as many samples: 1.5x of each sample and 1.5x the samples are 2.25x."""
    winner = judged(batch=batch, rate=150.0, worth=worth, held_out=False, epochs=(1e6, 1e6)).winner
    assert winner.learning is learning
    if learning is Learning.FASTER:
        assert winner.learning_speed == pytest.approx(2.25, rel=0.1)


@pytest.mark.parametrize(
    ("today", "other", "batch", "is_told"),
    [
        (10_000.0, 10_200.0, 8.0, False),
        (10_000.0, 10_201.0, 8.0, True),
        (10_000.0, 9_799.0, 8.0, True),
        (100.0, 112.0, 8.0, False),
        (100.0, 113.0, 8.0, True),
        (100.0, 124.0, 16.0, False),
        (100.0, 125.0, 16.0, True),
    ],
)
def test_an_epoch_of_another_size_is_told_as_a_caution(today: float, other: float, batch: float, is_told: bool) -> None:
    """Beyond 2 %, and beyond what the last batch of an epoch makes: one and a half of the larger batch."""
    cautions = judged(batch=batch, epochs=(today, other)).cautions
    assert cautions == ((f"an epoch has {other:,.0f} samples instead of {today:,.0f}",) if is_told else ())


@pytest.mark.parametrize(("stretch_s", "noise"), [(1, 0.02), (1, 0.004), (5, 0.02)])
def test_the_interval_depends_neither_on_the_unit_of_the_loss_nor_on_which_config_is_called_todays(
    stretch_s: int, noise: float
) -> None:
    """Also where one loss is noisier, or was seen too seldom to tell its own error."""

    def difference(*arms: RaceArm, unit: float = 1.0) -> tuple[float, ...]:
        plain, noisy = falling(1.0), falling(1.3, noise)
        trials = []
        for pair in range(3):
            trials.append(leg(arms[0], pair, 8.0, 100.0, lambda samples: unit * plain(samples)))
            trials.append(leg(arms[1], pair, 8.0, 100.0, lambda samples: unit * noisy(samples), stretch_s=stretch_s))
        race = judge_race(trials, RaceArm.WINNER.value, changes=frozenset({Label.BATCH}))
        found = race.winner.at_equal_samples
        return found.low, found.high, found.today, found.other

    low, high, today, other = difference(RaceArm.BASELINE, RaceArm.WINNER)
    assert low < other - today < high
    swapped = difference(RaceArm.WINNER, RaceArm.BASELINE)
    assert swapped == pytest.approx((-high, -low, other, today))
    scaled = difference(RaceArm.BASELINE, RaceArm.WINNER, unit=10.0)
    assert scaled == pytest.approx((10.0 * low, 10.0 * high, 10.0 * today, 10.0 * other))


@pytest.mark.parametrize(("with_samples", "is_compared"), [(1, False), (2, True), (3, True)])
def test_two_rounds_with_known_samples_are_compared_after_equally_many(with_samples: int, is_compared: bool) -> None:
    """One round tells nothing of how much such trainings differ."""
    trials = []
    for pair in range(3):
        for arm, rate in ((RaceArm.BASELINE, 100.0), (RaceArm.WINNER, 150.0)):
            trial = leg(arm, pair, 8.0, rate, falling(1.0))
            assert trial.race.curve is not None
            if pair >= with_samples:
                trial = replace(trial, race=replace(trial.race, curve=replace(trial.race.curve, samples=())))
            trials.append(trial)
    race = judge_race(trials, RaceArm.WINNER.value, changes=frozenset({Label.BATCH}))
    assert (race.winner.at_equal_samples is not None) is is_compared


@pytest.mark.parametrize(
    ("rise", "is_bearable"), [(0.2, True), (-0.2, True), (0.1, True), (0.05, True), (0.01, False), (0.0, False)]
)
def test_a_race_that_tells_nothing_says_how_long_one_would_have_to_be_that_does(rise: float, is_bearable: bool) -> None:
    """So many that the interval, which narrows with their root, leaves out zero: two more at least, up to a day."""
    trials = []
    for pair, spread in enumerate((0.3, -0.3, 0.2, -0.2)):
        loss = falling(1.0)
        losses = (loss, lambda samples, loss=loss, by=rise + spread: loss(samples) + by)
        for arm, one in zip((RaceArm.BASELINE, RaceArm.WINNER), losses, strict=True):
            trials.append(leg(arm, pair, 8.0, 100.0, one, held_out=True))
    race = judge_race(trials, RaceArm.WINNER.value, changes=frozenset({Label.BATCH}))
    interval = race.winner.held_out
    assert (race.winner.learning, interval is None) == (Learning.UNKNOWN, False)
    mean, half = (interval.low + interval.high) / 2.0, (interval.high - interval.low) / 2.0
    assert mean == pytest.approx(rise, abs=1e-9)
    assert race.winner.needed_s == (2 * 60.0 * max(6, math.ceil(4 * (half / mean) ** 2)) if is_bearable else None)


def trainings(worth: float = 1.0, arm: RaceArm = RaceArm.WINNER) -> list[TrialRecord]:
    """Three rounds of today's config and of another."""
    arms = ((RaceArm.BASELINE, 1.0), (arm, worth))
    return [leg(side, pair, 8.0, 100.0, falling(one), held_out=True) for pair in range(3) for side, one in arms]


def judge(trials: list[TrialRecord]) -> Race:
    """Judge trainings of which there are enough."""
    race = judge_race(trials, RaceArm.WINNER.value, changes=frozenset({Label.BATCH}))
    assert race is not None
    return race


@pytest.mark.parametrize(
    ("arm", "ending", "is_slower", "why"),
    [
        (RaceArm.BASELINE, Ending.DIVERGED, False, "the loss of today's config is not a number"),
        (RaceArm.WINNER, Ending.DIVERGED, True, ""),
        (RaceArm.BASELINE, Ending.CRASHED, False, "the training with today's config ended early: crashed"),
        (RaceArm.WINNER, Ending.CRASHED, False, "the training with these values ended early: crashed"),
        (RaceArm.WINNER, Ending.HUNG, False, "the training with these values ended early: hung"),
        (RaceArm.WINNER, Ending.COMPLETED, True, ""),
    ],
)
def test_a_training_that_ended_badly_is_not_compared(arm: RaceArm, ending: Ending, is_slower: bool, why: str) -> None:
    """One that diverged where today's config does not learns more slowly, whatever its losses were before."""
    trials = trainings(worth=0.5)
    trials[arm is RaceArm.WINNER] = replace(trials[arm is RaceArm.WINNER], ending=ending)
    race = judge(trials)
    assert race.why_unknown == why
    assert (race.winner.learning is Learning.SLOWER) is is_slower
    assert race.winner.diverged is (ending is Ending.DIVERGED and arm is RaceArm.WINNER)


def test_a_training_that_was_disturbed_takes_no_part() -> None:
    """Nor does one of another point, or that was no race; and one round is none."""
    trials, others = trainings(), trainings(worth=0.2)
    other = [
        replace(others[0], validity=Validity.CONTAMINATED),
        replace(others[1], point="another"),
        replace(others[2], purpose=Purpose.EXPLORE),
    ]
    assert judge([*trials, *other]) == judge(trials)
    assert judge_race(trials[:3], RaceArm.WINNER.value, changes=frozenset()) is None


@pytest.mark.parametrize(("length_s", "equal_s"), [(60, 60.0), (49, 49.0), (47, 60.0)])
def test_trainings_are_compared_after_the_time_that_all_have_trained(length_s: int, equal_s: float) -> None:
    """One that is shorter by more than a fifth was cut short, and does not shorten that of the others."""
    trials = trainings()
    trials[-1] = leg(RaceArm.WINNER, 2, 8.0, 100.0, falling(1.0), length_s=length_s)
    assert judge(trials).trained_s == equal_s


def test_the_losses_of_the_last_evaluations_are_told_where_all_have_one() -> None:
    """As means over the rounds."""
    trials = trainings(worth=2.0)
    for trial, loss in zip(trials, (1.0, 4.0, 2.0, 5.0, 6.0, 9.0), strict=True):
        assert trial.race is not None
        trials[trials.index(trial)] = replace(trial, race=replace(trial.race, evaluation_loss=loss))
    assert judge(trials).winner.evaluation_losses == (3.0, 6.0)
    for place in (0, 1):
        assert trials[place].race is not None
        some = [*trials]
        some[place] = replace(trials[place], race=replace(trials[place].race, evaluation_loss=None))
        assert judge(some).winner.evaluation_losses is None


def test_a_round_without_losses_of_the_scaled_learning_rate_is_left_out() -> None:
    """The others tell; of today's config and of the winner all are needed."""
    scaled = [trial for trial in trainings(worth=2.0, arm=RaceArm.SCALED) if trial.point == RaceArm.SCALED.value]
    scaled = [replace(trial, point=RaceArm.WINNER.value) for trial in scaled]
    assert scaled[0].race is not None
    scaled[0] = replace(scaled[0], race=replace(scaled[0].race, curve=None))
    part = judge([*trainings(), *scaled])
    assert part.scaled.at_equal_samples is not None
    assert part.why_unknown == ""
    trials = trainings()
    assert trials[0].race is not None
    trials[0] = replace(trials[0], race=replace(trials[0].race, curve=None))
    assert judge(trials).why_unknown == "too few losses were reported in that time"


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("spread", "learning"), [(0.01, Learning.ALIKE), (0.2, Learning.UNKNOWN)])
def test_whether_configs_are_alike_does_not_depend_on_the_unit_of_the_loss(
    unit: float, spread: float, learning: Learning
) -> None:
    """They are where even the ends of the interval are less apart than the loss falls in a quarter of the time."""
    loss, trials = falling(1.0), []
    for pair, by in enumerate((spread, -spread, spread, -spread)):
        trials.append(leg(RaceArm.BASELINE, pair, 8.0, 100.0, lambda samples: unit * loss(samples), held_out=True))
        moved = lambda samples, by=by: unit * (loss(samples) + by)  # noqa: E731
        trials.append(leg(RaceArm.WINNER, pair, 8.0, 100.0, moved, held_out=True))
    assert judge(trials).winner.learning is learning
