"""Validation of the winner, in virtual time: what breaks only after minutes is found, and is not the answer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.events import Event, TrialStarted
from autotune.records import Ending, Purpose, Verdict
from autotune.search.answer import Study
from autotune.search.open import tune
from autotune.search.problem import open_problem
from autotune.testing.simulated_runner import Training
from tests.search.simulated import CONFIG, Search, Searched, plain

BUDGET_S = 600.0
VALIDATE_S = 60.0

Change = Callable[[Training], Training]


def falling(speed: float = 0.001) -> Callable[[int], float]:
    """Return a loss that falls to a third."""
    return lambda step: 1.0 + 2.0 / (1.0 + speed * step)


def whole(config: Mapping[str, Any]) -> Training:
    """Train with everything that a training has: epochs, evaluations, checkpoints, a loss that falls."""
    return replace(plain(config), epoch=200, pauses={300: "eval", 400: "checkpoint"}, loss=falling())


def with_large_batches(change: Change) -> Callable[[Mapping[str, Any]], Training]:
    """Return a trainer whose larger batches are trained otherwise."""
    return lambda config: change(whole(config)) if config["data"]["batch_size"] == 32 else whole(config)


def slowing_down(training: Training) -> Training:
    """Train fast for a few seconds only."""
    return replace(training, epoch=60, epoch_gap_s=60 * training.step_s * 4)


BREAKS: Mapping[str, tuple[Change, str]] = {
    "crashes at a checkpoint": (
        lambda training: replace(training, steps=401, exit_code=1, stderr="OSError: [Errno 28] No space left"),
        "No space left",
    ),
    "hangs in an evaluation": (lambda training: replace(training, steps=300, hangs=True), "no step came in its last"),
    "hangs after all of them": (
        lambda training: replace(training, epoch=20, pauses={30: "eval", 40: "checkpoint"}, steps=100, hangs=True),
        "no step came in its last",
    ),
    "ends early by itself": (lambda training: replace(training, steps=120), "it ended by itself after 3,840 samples"),
    "does not learn": (lambda training: replace(training, loss=3.0), "its loss went to 1.00 of where it began"),
    "memory creeps": (lambda training: replace(training, memory_growth_bytes_per_s=1e7), "memory grows by 5"),
    "slows down": (slowing_down, "in a longer training"),
}


def validated(search: Search, trainer: Callable[[Mapping[str, Any]], Training], **options: Any) -> Searched:
    """Search with this trainer, and validate the answer."""
    return search(trainer, **{"budget_s": BUDGET_S, "validate_s": VALIDATE_S, **options})


def test_the_winner_is_trained_through_an_epoch_an_evaluation_and_a_checkpoint(search: Search) -> None:
    """So is today's config, before it; the training ends soon after, and the answer says what was seen."""
    searched = validated(search, whole)
    answer, (baseline, winner) = searched.answer, searched.of(Purpose.VALIDATE)
    assert answer.verdict is Verdict.BETTER
    assert answer.best is not None
    assert (baseline.values, winner.values) == (answer.baseline and answer.baseline.values, answer.best.values)
    assert winner.ending is Ending.STOPPED
    assert answer.validation is not None
    assert answer.validation.epoch_ends >= 1
    assert answer.validation.evaluations == answer.validation.checkpoints == 1
    assert answer.validation.trained_s < VALIDATE_S
    assert answer.validation.broke == ()
    assert answer.validation.loss_ratio == pytest.approx(1.0, abs=0.1)
    assert answer.validation.speed_ratio == pytest.approx(answer.speedup and answer.speedup.ratio, rel=0.2)
    assert answer.validation.overall_ratio == pytest.approx(answer.validation.speed_ratio, rel=0.2)


def test_what_is_fast_for_a_few_seconds_only_makes_way_before_it_is_validated(search: Search) -> None:
    """Its pairs look longer than the trials that chose it, and see that it is slower than today's config."""
    searched = validated(search, with_large_batches(slowing_down), budget_s=1200.0)
    answer = searched.answer
    shown = answer.candidate or answer.best
    assert shown is not None
    assert (shown.values["data.batch_size"], shown.values["data.num_workers"]) == (8, 2)
    assert any(trial.values["data.batch_size"] == 32 for trial in searched.of(Purpose.CONFIRM))


@pytest.mark.parametrize("breaks", [name for name in BREAKS if name != "slows down"])
def test_what_breaks_makes_way_for_the_next_best(search: Search, breaks: str) -> None:
    """The larger batch is faster and was confirmed; the second worker is what remains."""
    change, said = BREAKS[breaks]
    searched = validated(search, with_large_batches(change), budget_s=1200.0)
    answer = searched.answer
    assert answer.broken, searched.said()
    assert said in "; ".join(answer.broken[0].validation.broke)
    assert {point.changes["data.batch_size"] for point in answer.broken} == {32}
    assert answer.broken[0].speedup is not None
    assert answer.broken[0].speedup.low > 1.5
    assert answer.verdict is Verdict.BETTER
    assert answer.best is not None
    assert answer.best.values["data.batch_size"] == 8
    assert answer.best.values["data.num_workers"] == 2
    assert answer.validation is not None
    assert not answer.validation.broke


@pytest.mark.parametrize("breaks", BREAKS)
def test_what_today_s_config_does_as_well_is_not_held_against_the_winner(search: Search, breaks: str) -> None:
    """A trainer whose every training ends like that: said, and no reason against the point."""
    change, _ = BREAKS[breaks]
    answer = validated(search, lambda config: change(whole(config)), budget_s=1200.0).answer
    assert answer.verdict is Verdict.BETTER
    assert answer.validation is not None
    assert answer.validation.broke == ()


def test_another_error_or_a_sooner_one_is_held_against_the_winner(search: Search) -> None:
    """Though today's config does not end well either, which is said."""

    def crashing(config: Mapping[str, Any]) -> Training:
        large = config["data"]["batch_size"] == 32
        return replace(whole(config), steps=80 if large else 400, exit_code=1, stderr="ValueError: no more data")

    (broken, *_) = validated(search, crashing).answer.broken
    assert broken.changes["data.batch_size"] == 32
    assert "crashed after" in broken.validation.broke[0]
    assert "today's config itself crashed" in broken.validation.remarks[0]


def test_an_answer_whose_validation_is_missing_says_so_from_the_record(search: Search) -> None:
    """As after a kill in the middle of it: whoever reads the record has to know that it was asked for."""

    def killed(event: Event) -> None:
        if isinstance(event, TrialStarted) and event.purpose is Purpose.VALIDATE:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        validated(search, whole, told=killed)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    result = Study.of(problem).answer()
    assert result.verdict is Verdict.BETTER
    assert result.validation is None
    assert any("not validated, though that was asked for" in caution for caution in result.cautions)


def test_what_was_confirmed_beside_it_is_the_answer_where_there_is_no_time_for_another(search: Search) -> None:
    """What leaves the batch as it is ran in the same pairs; what broke is named, and that this one is not validated."""
    change, said = BREAKS["crashes at a checkpoint"]
    searched = validated(search, with_large_batches(change), budget_s=420.0, validate_s=75.0)
    answer = searched.answer
    assert answer.verdict is Verdict.BETTER
    assert answer.best is not None
    assert answer.best.values["data.batch_size"] == 8
    assert said in answer.broken[0].validation.broke[0]
    assert any("not validated" in caution for caution in answer.cautions)


def test_the_next_search_leaves_a_point_that_broke_alone(search: Search) -> None:
    """It is in the record."""
    change, _ = BREAKS["does not learn"]
    trainer = with_large_batches(change)
    first = validated(search, trainer, budget_s=1200.0)
    broken = {trial.point for trial in first.trials if trial.validation and trial.validation.broke}
    later = search(trainer, budget_s=BUDGET_S)
    assert broken
    assert broken.isdisjoint(trial.point for trial in later.trials)


@pytest.mark.parametrize(
    ("budget_s", "validate_s", "said"),
    [(479.0, 120.0, "too little of a budget of 7m59s"), (479.0, 19.0, "it takes 20s at least")],
)
def test_a_budget_too_short_for_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float, validate_s: float, said: str
) -> None:
    """Both trainings may take half of it."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    with pytest.raises(ConfigError, match=said):
        tune("config.yaml", budget_s=budget_s, validate_s=validate_s)
