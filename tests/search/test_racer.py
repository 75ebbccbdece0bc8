"""Races in virtual time: whether the faster config also learns faster, planned from the start and told at the end."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.events import TrialEnded
from autotune.records import Learning, Purpose, RaceArm, Verdict
from scripts.bench.simulated_runner import Training
from tests.search.simulated import CONFIG, Search, Searched, Trainer, plain, searches_in

BUDGET_S = 1200.0
RACE_S = 240.0
WITH_RATE = CONFIG.replace("data:\n", "seed: 7\nlearning_rate: 0.1\ndata:\n", 1)


def learning(
    worth: Callable[[Mapping[str, Any]], float],
    *,
    unseen: Callable[[Mapping[str, Any]], float] | None = None,
    noise: float = 0.02,
) -> Trainer:
    """Return a trainer whose loss falls with its samples, each worth so much; batches of it differ at random.

    With `unseen` it evaluates, and each sample is worth that much to its held-out loss.
    """
    rng = random.Random(0)

    def level(batch: int, step: int, each: float) -> float:
        return 0.5 + 3.0 / (1.0 + each * batch * step / 500.0) ** 0.5 + rng.gauss(0.0, noise)

    def trainer(config: Mapping[str, Any]) -> Training:
        batch = config["data"]["batch_size"]
        training = replace(plain(config), loss=lambda step: level(batch, step, worth(config)))
        if unseen is None:
            return training
        pauses = dict.fromkeys(range(60, 60_000, 60), "eval")
        return replace(training, pauses=pauses, held_out=lambda step: level(batch, step, unseen(config)))

    return trainer


def half_as_much(config: Mapping[str, Any]) -> float:
    """A sample of a four times larger batch is worth a quarter: nothing is gained, since steps are slower."""
    return 0.25 if config["data"]["batch_size"] == 32 else 1.0


def as_much(_config: Mapping[str, Any]) -> float:
    """Every sample is worth the same."""
    return 1.0


def raced(search: Search, trainer: Trainer, **options: Any) -> Searched:
    """Search, and race the answer if that is called for."""
    searched = search(trainer, **{"budget_s": BUDGET_S, "race_s": None, **options})
    assert searched.answer.verdict is Verdict.BETTER, searched.said()
    return searched


def test_a_faster_batch_that_learns_less_from_each_sample_is_not_called_better_at_learning(search: Search) -> None:
    """The race says so, with the losses after equal time; nothing is applied without a yes."""
    answer = raced(search, learning(half_as_much)).answer
    assert answer.best.values["data.batch_size"] == 32
    assert answer.race.winner.learning is Learning.SLOWER
    losses = answer.race.winner.at_equal_time
    assert losses.low > 0.0
    assert losses.other > losses.today
    assert answer.race.winner.learning_speed is not None
    assert answer.race.winner.learning_speed < 0.9
    assert answer.may_learn_more_slowly


@pytest.fixture(scope="module")
def faster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    """Race of a faster batch of which each sample is worth as much."""
    with searches_in(tmp_path_factory.mktemp("faster")) as search:
        yield raced(search, learning(as_much, unseen=as_much))


def test_a_faster_batch_that_learns_as_much_from_each_sample_learns_faster(faster: Searched) -> None:
    """By about as much as it is faster; the held-out loss shows it."""
    answer = faster.answer
    assert answer.race.winner.learning is Learning.FASTER
    assert answer.race.winner.learning_speed == pytest.approx(answer.speedup.ratio, rel=0.25)
    assert not answer.may_learn_more_slowly


def test_a_training_loss_that_leaves_the_held_out_loss_behind_is_memorised(search: Search) -> None:
    """As of augmentation frozen by a cache, along with a larger batch; it is never applied without a yes."""

    def sixfold(config: Mapping[str, Any]) -> float:
        return 6.0 if config["data"]["batch_size"] == 32 else 1.0

    answer = raced(search, learning(sixfold, unseen=half_as_much)).answer
    assert answer.race.winner.learning is Learning.MEMORISES
    assert answer.race.winner.learning_speed is None
    assert answer.race.winner.held_out is not None
    assert any("augmentation frozen by a cache" in said for said in answer.cautions)
    assert answer.may_learn_more_slowly


def test_the_trainings_take_turns_for_equal_time_within_a_fifth_of_the_budget(faster: Searched) -> None:
    """Rounds in opposite order; all end before the budget does."""
    legs = [trial.race for trial in faster.of(Purpose.RACE)]
    turns = [RaceArm.BASELINE, RaceArm.WINNER, RaceArm.WINNER, RaceArm.BASELINE]
    assert [leg.arm for leg in legs if leg] == [*turns, *turns]
    assert len({leg.trained_s for leg in legs if leg}) == 1
    took_s = sum(trial.duration_s for trial in faster.of(Purpose.RACE))
    assert 0.5 * RACE_S < took_s <= RACE_S
    assert faster.took_s <= BUDGET_S


def test_the_learning_rate_is_scaled_with_the_batch_and_proposed_where_that_learns_better(search: Search) -> None:
    """With the square root of the batch, the optimizer not being known; each round has a seed of its own."""

    def worth(config: Mapping[str, Any]) -> float:
        return 1.0 if config["data"]["batch_size"] == 8 or config["learning_rate"] > 0.15 else 0.2

    searched = raced(search, learning(worth, unseen=worth), config=WITH_RATE)
    race = searched.answer.race
    assert race.winner.learning is Learning.SLOWER
    assert race.scaled.learning is Learning.FASTER
    assert race.proposed_rate == ("learning_rate", 0.2)
    told = [event.changes for event in searched.events if isinstance(event, TrialEnded)]
    rates = {changes.get("learning_rate") for changes in told if changes.get("data.batch_size") == 32}
    assert rates == {None, 0.2}, "which training is which is seen while they run"
    assert searched.answer.may_learn_more_slowly, "without the rate"
    seeds = {(leg.pair, leg.seed) for trial in searched.of(Purpose.RACE) if (leg := trial.race)}
    assert seeds == {(pair, 7 + pair) for pair in range(len(seeds))}


@pytest.mark.parametrize(
    ("options", "why"),
    [({"race_s": 0.0, "budget_s": 150.0}, "--no-race"), ({"budget_s": 150.0}, "a search of less than 15m")],
)
def test_an_answer_that_was_not_raced_says_why(search: Search, options: dict[str, Any], why: str) -> None:
    """And is not applied without a yes."""
    searched = raced(search, learning(as_much), **options)
    assert searched.of(Purpose.RACE) == []
    assert why in searched.answer.why_not_raced
    assert searched.answer.may_learn_more_slowly


def test_the_same_training_is_raced_only_if_that_was_asked_for(search: Search) -> None:
    """It comes out alike at equal samples, and nothing has to be accepted."""
    config = CONFIG.replace("data.batch_size: [8, 32]", "data.batch_size: [8]").replace(
        "        data.batch_size: [8]\n", ""
    )

    def workers(config: Mapping[str, Any]) -> Training:
        training = learning(as_much, unseen=as_much)(config)
        return replace(training, step_s=training.step_s / (1.5 if config["data"]["num_workers"] == 2 else 1.0))

    of_itself = raced(search, workers, config=config)
    assert of_itself.of(Purpose.RACE) == []
    assert (of_itself.answer.why_not_raced, of_itself.answer.may_learn_more_slowly) == ("", False)
    asked = raced(search, workers, config=config, race_s=RACE_S, fresh=True)
    assert asked.answer.race.winner.learning is Learning.FASTER
    assert asked.answer.race.cautions == ()
