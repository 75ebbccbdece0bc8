"""Validation of the winner, in virtual time: what breaks only after minutes is found, and is not the answer."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autotune.clock import VirtualClock
from autotune.errors import ConfigError
from autotune.events import Event, TrialStarted
from autotune.measure.window import WindowGoal
from autotune.records import Ending, Purpose, Validation, Verdict
from autotune.search.answer import Study
from autotune.search.gpus import complete
from autotune.search.open import tune
from autotune.search.problem import Problem, open_problem
from autotune.search.validation import judge_validation
from autotune.trial.execution import Execution, TrialSpec, execute
from autotune.trial.instruments import Instruments
from autotune.trial.stop_rule import StopLimits
from scripts.bench.simulated_runner import SimulatedHostProbe, SimulatedRunner, Training
from tests.search.simulated import Search, Searched, Trainer, plain

BUDGET_S = 600.0
VALIDATE_S = 60.0

Change = Callable[[Training], Training]
Judge = Callable[[Training, Training], Validation]


def falling(speed: float = 0.001) -> Callable[[int], float]:
    """Return a loss that falls to a third."""
    return lambda step: 1.0 + 2.0 / (1.0 + speed * step)


def whole(config: Mapping[str, Any]) -> Training:
    """Train with everything that a training has: epochs, evaluations, checkpoints, a loss that falls."""
    return replace(plain(config), epoch=200, pauses={300: "eval", 400: "checkpoint"}, loss=falling())


WINNER = whole({"data": {"batch_size": 32, "num_workers": 1}})
TODAY = replace(WINNER, step_s=1.5 * WINNER.step_s)


def with_large_batches(change: Change) -> Trainer:
    """Return a trainer whose larger batches are trained otherwise."""
    return lambda config: change(whole(config)) if config["data"]["batch_size"] == 32 else whole(config)


def not_learning(training: Training) -> Training:
    """Train with a loss that stays where it is."""
    return replace(training, loss=3.0)


def slowing_down(training: Training) -> Training:
    """Train fast for a few seconds only."""
    return replace(training, epoch=60, epoch_gap_s=60 * training.step_s * 4)


BREAKS: Mapping[str, tuple[Change, str]] = {
    "crashes at a checkpoint": (
        lambda training: replace(training, steps=401, exit_code=1, stderr="OSError: [Errno 28] No space left"),
        "No space left",
    ),
    "hangs in an evaluation": (lambda training: replace(training, steps=300, hangs=True), "no step in its last"),
    "hangs after all of them": (
        lambda training: replace(training, epoch=20, pauses={30: "eval", 40: "checkpoint"}, steps=100, hangs=True),
        "no step in its last",
    ),
    "ends early by itself": (lambda training: replace(training, steps=120), "it finished after 3,840 samples"),
    "does not learn": (not_learning, "its loss went to 1.00 of its initial value"),
    "learns from garbage": (
        lambda training: replace(training, loss=lambda step: 1680.0 * falling()(step)),
        "with today's config",
    ),
    "memory creeps": (lambda training: replace(training, memory_growth_bytes_per_s=1e7), "memory grows by 5"),
    "slows down": (slowing_down, "in a longer training"),
}


@pytest.fixture
def judge(problem: Problem) -> Judge:
    """Validate a training, and one of today's config, whose speedup was confirmed as 1.5x."""
    clock, names = VirtualClock(), itertools.count()

    def trained(training: Training) -> Execution:
        runner = SimulatedRunner(clock, lambda _text: training)
        spec = TrialSpec(values=problem.space.baseline, purpose=Purpose.VALIDATE)
        return execute(
            problem.trainer,
            complete(
                problem,
                spec,
                name=f"run-{next(names)}",
                limits=StopLimits(
                    goal=WindowGoal(min_s=1.0, min_steps=10, target_s=2.0), settles=False, validate_s=VALIDATE_S
                ),
            ),
            runner=runner,
            instruments=Instruments(SimulatedHostProbe(runner)),
            clock=clock,
        )

    def judged(training: Training, today: Training) -> Validation:
        found = judge_validation(trained(training), trained(today), speedup=1.5, sd=0.03, machine=problem.machine)
        assert found is not None
        return found

    return judged


@pytest.mark.parametrize("breaks", BREAKS)
def test_what_breaks_is_told_unless_today_s_config_does_it_as_well(judge: Judge, breaks: str) -> None:
    """A trainer whose every training ends like that is no reason against a point."""
    change, said = BREAKS[breaks]
    assert judge(WINNER, TODAY).broke == ()
    assert said in "; ".join(judge(change(WINNER), TODAY).broke)
    assert judge(change(WINNER), change(TODAY)).broke == ()


def test_another_error_or_a_sooner_one_is_held_against_the_winner(judge: Judge) -> None:
    """Though today's config does not end well either, which is said."""
    today = replace(TODAY, steps=400, exit_code=1, stderr="ValueError: no more data")
    assert judge(today, today).broke == ()
    for change in ({"steps": 80}, {"stderr": "ValueError: no such layer"}):
        found = judge(replace(today, **change), today)  # type: ignore[arg-type]
        assert "crashed after" in found.broke[0]
        assert "today's config itself crashed" in found.remarks[0]


FREED = {"freed_bytes": 1 << 30, "memory_growth_bytes_per_s": 1e7}


def test_memory_that_is_freed_at_first_and_grows_then_grows(judge: Judge) -> None:
    """Held against the winner, unless today's config does the same; its rate is that of what goes on, on record too."""
    freed = replace(WINNER, **FREED)  # type: ignore[arg-type]
    today = replace(TODAY, **FREED)  # type: ignore[arg-type]
    assert "memory grows by" in "; ".join(judge(freed, TODAY).broke)
    found = judge(freed, today)
    assert found.broke == ()
    assert found.memory_growth_bytes_per_s == pytest.approx(1e7, rel=0.1)
    assert msgspec.convert(asdict(found), Validation) == found


def validated(search: Search, trainer: Trainer, **options: Any) -> Searched:
    """Search with this trainer, and validate the answer."""
    return search(trainer, **{"budget_s": BUDGET_S, "validate_s": VALIDATE_S, **options})


def test_the_winner_is_trained_through_an_epoch_an_evaluation_and_a_checkpoint(search: Search) -> None:
    """So is today's config, before it; the training ends soon after, and the answer says what was seen."""
    searched = validated(search, whole)
    answer, (baseline, winner) = searched.answer, searched.of(Purpose.VALIDATE)
    assert answer.verdict is Verdict.BETTER
    assert (baseline.values, winner.values) == (answer.baseline and answer.baseline.values, answer.best.values)
    assert winner.ending is Ending.STOPPED
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
    shown = searched.answer.candidate or searched.answer.best
    assert (shown.values["data.batch_size"], shown.values["data.num_workers"]) == (8, 2)
    assert any(trial.values["data.batch_size"] == 32 for trial in searched.of(Purpose.CONFIRM))


def test_what_breaks_makes_way_for_the_next_best_and_is_left_alone_by_the_next_search(search: Search) -> None:
    """The larger batch is faster and was confirmed; the second worker is what remains."""
    trainer = with_large_batches(not_learning)
    first = validated(search, trainer, budget_s=1200.0)
    answer = first.answer
    assert answer.broken, first.said()
    assert {point.changes["data.batch_size"] for point in answer.broken} == {32}
    assert answer.broken[0].speedup.low > 1.5
    assert answer.verdict is Verdict.BETTER
    assert (answer.best.values["data.batch_size"], answer.best.values["data.num_workers"]) == (8, 2)
    assert not answer.validation.broke
    broken = {trial.point for trial in first.trials if trial.validation and trial.validation.broke}
    later = search(trainer, budget_s=60.0)
    assert broken
    assert broken.isdisjoint(trial.point for trial in later.trials)


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
    assert any("not validated, although requested" in caution for caution in result.cautions)


def test_what_was_confirmed_beside_it_is_the_answer_where_there_is_no_time_for_another(search: Search) -> None:
    """What leaves the batch as it is ran in the same pairs; what broke is named, and that this one is not validated."""
    change, said = BREAKS["crashes at a checkpoint"]
    searched = validated(search, with_large_batches(change), budget_s=420.0, validate_s=75.0)
    answer = searched.answer
    assert answer.verdict is Verdict.BETTER
    assert answer.best.values["data.batch_size"] == 8
    assert said in answer.broken[0].validation.broke[0]
    assert any("not validated" in caution for caution in answer.cautions)


@pytest.mark.parametrize(
    ("budget_s", "validate_s", "said"),
    [(479.0, 120.0, "too little of a budget of 7m59s"), (479.0, 19.0, "the minimum is 20s")],
)
@pytest.mark.usefixtures("problem")
def test_a_budget_too_short_for_it_is_refused(budget_s: float, validate_s: float, said: str) -> None:
    """Both trainings may take half of it."""
    with pytest.raises(ConfigError, match=said):
        tune("config.yaml", budget_s=budget_s, validate_s=validate_s)
