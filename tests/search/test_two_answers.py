"""Two answers: the best point, and the best that leaves the training unchanged, which is no part of the first."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.events import IncumbentChanged
from autotune.records import Ending, Purpose, SearchResult
from scripts.bench.simulated_runner import Training
from tests.search.simulated import Search, Trainer

KNOBS: Mapping[str, list[Any]] = {
    "batch_size": [8, 16, 32],
    "mixed_precision": ["float32", "bfloat16"],
    "torch_compile": [False, True],
    "num_workers": [0, 1, 2, 4, 8],
    "prefetch_factor": [2, 4, 8],
    "cache": ["none", "memory"],
    "num_threads": [0, 1, 2, 4],
    "steps_per_execution": [1, 4, 16, 64],
    "channels_last": [False, True],
    "cudnn_benchmark": [False, True],
    "persistent_workers": [False, True],
}


def config_of(names: list[str]) -> str:
    """Return a config with these knobs, at the first of their values."""
    lines = [f"    {name}: {str(KNOBS[name][0]).lower()}" for name in names]
    listed = [f"        data.{name}: [{', '.join(str(one).lower() for one in KNOBS[name])}]" for name in names]
    return "\n".join(
        [
            "data:",
            *lines,
            "autotune:",
            '    command: "{python} train.py {config}"',
            "    knobs:",
            *listed,
            "    trial: {start_timeout_s: 300, min_s: 1, min_steps: 10, max_s: 3}\n",
        ]
    )


def launch_bound(seed: int) -> tuple[str, Trainer]:
    """Return a config and its trainer: launches limit a small batch, the loader or arithmetic a large one.

    So a compiled step, fewer calls and threads pay at today's batch and hardly at a larger one; each value may take
    longer to start.
    """
    rng = random.Random(seed)
    names = ["batch_size", "mixed_precision", "torch_compile", "num_workers"]
    names += sorted(rng.sample(list(KNOBS)[4:], rng.randint(0, 7)), key=list(KNOBS).index)
    launch_s, compute_s, load_s = rng.uniform(0.01, 0.05), rng.uniform(0.0002, 0.001), rng.uniform(0.001, 0.004)
    compiled, halved, start_s = rng.uniform(0.2, 0.6), rng.uniform(0.5, 0.9), rng.uniform(1.0, 8.0)
    compiles_s = rng.choice([0.0, 1.0, 3.0])
    minor = {name: rng.uniform(0.9, 1.0) for name in ("channels_last", "cudnn_benchmark", "persistent_workers")}
    threads = rng.choice([1, 2, 4])

    def train(config: Mapping[str, Any]) -> Training:
        data = {name: values[0] for name, values in KNOBS.items()} | config["data"]
        batch, calls = data["batch_size"], data["steps_per_execution"]
        launches_s = launch_s * (compiled if data["torch_compile"] else 1.0) * (0.4 + 0.6 / calls)
        launches_s *= 1.0 if data["num_threads"] in (0, threads) else 1.15
        arithmetic_s = compute_s * batch * (halved if data["mixed_precision"] == "bfloat16" else 1.0)
        loads_s = (
            load_s * batch / (1.0 + 0.8 * min(data["num_workers"], 4)) * (0.5 if data["cache"] == "memory" else 1.0)
        )
        step_s = launches_s + arithmetic_s + max(0.0, loads_s - 0.5 * launches_s)
        for name, gain in minor.items():
            step_s *= gain if data[name] else 1.0
        begins_s = start_s + (compiles_s if data["torch_compile"] else 0.0)
        return Training(samples=batch, step_s=step_s, start_s=begins_s, noise=0.02, epoch=20)

    return config_of(names), train


def speed(trainer: Trainer, values: Mapping[str, Any]) -> float:
    """Return the true samples per second of a point."""
    training = trainer({"data": {path.removeprefix("data."): value for path, value in values.items()}})
    return training.samples / training.step_s


def same_training_speed(trainer: Trainer, answer: SearchResult) -> float:
    """Return the true speed of what plain `apply` would write; that of today's config where nothing is."""
    assert answer.baseline is not None
    if answer.same_training is not None:
        return speed(trainer, answer.same_training[0].values)
    best = answer.best if answer.best and not answer.changes_training else answer.baseline
    return speed(trainer, best.values)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_training_answer_is_searched_for(search: Search, seed: int) -> None:
    """It is as good as that of a search for nothing else in the same time, and the whole answer is no worse for it."""
    config, trainer = launch_bound(seed)
    both = search(trainer, config=config, budget_s=600.0)
    alone = search(trainer, config=config, budget_s=600.0, fresh=True, same_training=True)
    assert alone.answer.best is not None
    assert same_training_speed(trainer, both.answer) > 0.95 * speed(trainer, alone.answer.best.values)
    assert both.answer.best is not None
    assert speed(trainer, both.answer.best.values) > 1.2 * speed(trainer, alone.answer.best.values)


@pytest.mark.parametrize("seed", [103, 117, 118])
def test_both_answers_are_confirmed_where_starts_take_minutes(search: Search, seed: int) -> None:
    """Compiling takes three of thirty minutes: each answer has pairs of its own, and no trial is cut off so."""
    config, trainer = launch_bound(seed)

    def slow(config: Mapping[str, Any]) -> Training:
        training = trainer(config)
        return replace(training, start_s=training.start_s + (180.0 if config["data"]["torch_compile"] else 0.0))

    done = search(slow, config=config, budget_s=1800.0, seed=seed)
    answer = done.answer
    assert answer.best is not None
    explored = [trial for trial in done.of(Purpose.EXPLORE) if trial.comparable]
    assert speed(trainer, answer.best.values) > 0.9 * max(speed(trainer, trial.values) for trial in explored)
    assert answer.same_training_confirmed is not None
    assert answer.same_training_confirmed.low > 1.0
    assert all(trial.ending is not Ending.OBSERVER_MISSING for trial in done.trials)


def test_a_point_is_far_behind_those_of_its_kind_alone(search: Search) -> None:
    """The best that leaves the training unchanged has less than half the speed of the best, and is measured."""
    config, trainer = launch_bound(17)
    done = search(trainer, config=config, budget_s=600.0)
    assert done.answer.best is not None
    assert same_training_speed(trainer, done.answer) < 0.5 * speed(trainer, done.answer.best.values)
    kept = {"data.batch_size": 8, "data.mixed_precision": "float32"}
    alike = [trial for trial in done.of(Purpose.EXPLORE) if trial.values == {**trial.values, **kept}]
    assert len(alike) > 10
    assert all(trial.comparable for trial in alike)


def test_the_best_of_each_is_announced(search: Search) -> None:
    """In the words of its kind; never one that is no better."""
    config, trainer = launch_bound(0)
    done = search(trainer, config=config, budget_s=600.0)
    for is_same in (False, True):
        found = [one for one in done.events if isinstance(one, IncumbentChanged) and one.same_training is is_same]
        speeds = [speed(trainer, one.values) for one in found]
        assert 1 <= len(found) <= 8
        assert speeds == sorted(speeds)
