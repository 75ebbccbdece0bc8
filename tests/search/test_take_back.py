"""Promises of taking back: an answer has the changes that are worth it, says what each is, and both answers stand."""

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.events import Remark
from autotune.records import Ending, Purpose, TrialRecord, Values, Verdict
from autotune.search.worth import Ablation
from autotune.study.noise import Noise
from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine
from tests.runs import MakeTrial
from tests.search.simulated import Search

SPACE_OF_FIVE = """\
data:
    batch_size: 8
    workers: 1
    prefetch: 0
    threads: 0
    pin: false
autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [8, 16]
        data.workers: [1, 2]
        data.prefetch: [0, 2]
        data.threads: [0, 1, 2]
        data.pin: [false, true]
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 3}
"""


def one_matters(config: Mapping[str, Any]) -> Training:
    """Train so that only workers pay."""
    data = config["data"]
    return Training(samples=data["batch_size"], step_s=0.003 * data["batch_size"] / data["workers"], noise=0.05)


def test_what_does_nothing_is_taken_back_and_a_sure_answer_ends_the_search(search: Search) -> None:
    """Of five knobs one matters: the answer has that one, is sure of it, and says how to search on."""
    searched = search(one_matters, config=SPACE_OF_FIVE, budget_s=900)
    assert searched.answer.verdict is Verdict.BETTER
    changes = {change.path: change for change in searched.answer.changes}
    assert "data.workers" in changes
    assert len(changes) <= 2
    worth = changes["data.workers"].worth
    assert worth.low > 1.0
    said = [event.text for event in searched.events if isinstance(event, Remark)]
    assert searched.took_s < 600
    assert any(text.startswith("Confirmed after ") and "--exhaust" in text for text in said)


def test_an_answer_that_changes_the_training_has_another_beside_it(search: Search) -> None:
    """Confirmed in the same pairs, with the same certainty; `apply` writes it, and with `--all` the whole."""

    def trainer(config: Mapping[str, Any]) -> Training:
        data = config["data"]
        step_s = (0.02 + 0.001 * data["batch_size"]) / (1.5 if data["num_workers"] == 2 else 1.0)
        return Training(samples=data["batch_size"], step_s=step_s, noise=0.03)

    answer = search(trainer, budget_s=600).answer
    assert answer.best.values["data.batch_size"] == 32
    assert answer.same_training[0].values["data.batch_size"] == 8
    assert answer.same_training_confirmed.low > 1.02

    config = Path("config.yaml")
    before = config.read_bytes()
    for options, side in (((), answer.same_training[0]), (("--all",), answer.best)):
        config.write_bytes(before)
        assert CommandLine(Path.cwd())("apply", "--config", "config.yaml", *options).returncode == 0
        data = yaml.safe_load(config.read_bytes())["data"]
        assert {f"data.{name}": value for name, value in data.items()} == side.values


BASELINE: Values = {"a": 1, "b": 1, "c": 1}
POINT: Values = {"a": 2, "b": 2, "c": 1}
NOISE = Noise(0.03**2, 8.0)


@pytest.fixture
def taken(make_trial: MakeTrial):
    """Trials of the point and of it without some changes, with the speed that those are worth."""
    rng = random.Random(0)

    def of(times: int, **worth: float) -> list[TrialRecord]:
        def speed(values: Values) -> float:
            ln = sum(math.log(worth[path]) for path in worth if values[path] == 2)
            return 50.0 * math.exp(ln + rng.gauss(0.0, 0.03))

        points = [POINT, {**POINT, "a": 1}, {**POINT, "b": 1}]
        return [make_trial(values, speed(values), purpose=Purpose.TAKE_BACK) for values in points for _ in range(times)]

    return of


def test_what_each_change_is_worth_is_learned_from_all_that_was_taken_back(taken) -> None:
    """Each by its own interval; a change that was never taken back is not told."""
    known = Ablation(taken(4, a=1.5, b=1.02), BASELINE, POINT, NOISE)
    assert known.ratio("a").low < 1.5 < known.ratio("a").high
    assert known.ratio("a").low > 1.3
    assert known.ratio("b").low < 1.0 < known.ratio("b").high
    assert "c" not in known
    assert known.ratio("a", "b").ratio == pytest.approx(known.ratio("a").ratio * known.ratio("b").ratio)


def test_changes_that_are_sure_only_together_are_told_together(make_trial: MakeTrial) -> None:
    """Neither by itself, both of them."""
    speeds = [(POINT, 60.0), ({**POINT, "a": 1, "b": 1}, 50.0)] * 4 + [({**POINT, "a": 1}, 55.0)]
    trials = [make_trial(values, speed, purpose=Purpose.TAKE_BACK) for values, speed in speeds]
    known = Ablation(trials, BASELINE, POINT, Noise(0.05**2, 8.0))
    ((worth, paths),) = known.together([(known.ratio(path), [path]) for path in known])
    assert set(paths) == {"a", "b"}
    assert worth.low > 1.0


def test_a_change_without_which_training_fails_is_needed(taken, make_trial: MakeTrial) -> None:
    """It has no ratio, whatever a model would make of it."""
    failed = make_trial({**POINT, "a": 1}, None, purpose=Purpose.TAKE_BACK, ending=Ending.OUT_OF_GPU_MEMORY)
    known = Ablation([*taken(2, a=1.5, b=1.2), failed], BASELINE, POINT, NOISE)
    assert known.needed == {"a"}
    assert set(known) == {"b"}


def test_what_failed_with_a_value_that_is_not_todays_makes_none_needed(taken, make_trial: MakeTrial) -> None:
    """Today's may well run."""
    failed = make_trial({**POINT, "a": 99}, None, purpose=Purpose.EXPLORE, ending=Ending.CRASHED)
    assert Ablation([*taken(2, a=1.5, b=1.2), failed], BASELINE, POINT, NOISE).needed == set()


FRUGAL = """\
data: {workers: 1, batch_size: 8}
autotune:
    command: "{python} train.py {config}"
    knobs: {data.workers: [1, 2, 4, 8, 16], data.batch_size: [8, 16]}
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 3}
"""


@pytest.mark.parametrize("enough", [2, 4])
def test_of_values_that_are_as_fast_the_smallest_is_the_answer(search: Search, enough: int) -> None:
    """The trainer takes no more workers than so many, or they have nothing more to do."""

    def clamped(config: Mapping[str, Any]) -> Training:
        data = config["data"]
        step_s = 0.004 * data["batch_size"] / min(enough, data["workers"])
        return Training(samples=data["batch_size"], step_s=step_s, noise=0.01)

    for seed in range(3):
        best = search(clamped, config=FRUGAL, budget_s=300, seed=seed, fresh=seed > 0).answer.best
        assert best is not None
        assert best.values["data.workers"] == enough
