"""Failures in a search: what failed trials have in common is found with few of them, and left out."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.events import Remark
from autotune.records import Ending, Purpose, TrialRecord, Verdict
from autotune.study.answer import has_failed
from scripts.bench.simulated_runner import Training
from tests.search.simulated import Search, Searched

CONFIG = """\
data: {batch_size: 8, num_workers: 0, prefetch_factor: 2, cache_size: 1}
autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [8, 16, 32]
        data.num_workers: [0, 1, 2, 4, 8]
        data.prefetch_factor: [1, 2, 4, 8]
        data.cache_size: [1, 2, 4]
"""


def works(config: Mapping[str, Any]) -> Training:
    """A larger batch helps, and so do workers where they work."""
    data = config["data"]
    step_s = 0.01 + 0.003 * data["batch_size"] / max(1, data["num_workers"])
    return Training(samples=data["batch_size"], step_s=step_s, start_s=0.5, noise=0.01)


def hang_with_workers(config: Mapping[str, Any]) -> Training:
    """Any worker deadlocks before the first step."""
    hangs = config["data"]["num_workers"] > 0
    return replace(works(config), start_s=math.inf if hangs else 0.5, cpu_cores=0.0 if hangs else 1.0)


def crash_of_a_pair(config: Mapping[str, Any]) -> Training:
    """Many workers and a deep prefetch work by themselves alone."""
    fails = config["data"]["num_workers"] >= 4 and config["data"]["prefetch_factor"] >= 4
    return replace(works(config), steps=0, exit_code=1, stderr="ValueError: no\n") if fails else works(config)


def crash_of_a_value(config: Mapping[str, Any]) -> Training:
    """One size of a cache is refused."""
    fails = config["data"]["cache_size"] > 1
    return replace(works(config), steps=0, exit_code=1, stderr="ValueError: no\n") if fails else works(config)


def crash_after_steps(config: Mapping[str, Any]) -> Training:
    """A value is refused after enough steps for a speed, which is a good one."""
    fails = config["data"]["cache_size"] > 1
    fast = replace(works(config), step_s=0.5 * works(config).step_s, steps=60, exit_code=1, stderr="ValueError: no\n")
    return fast if fails else works(config)


def hang_after_steps(config: Mapping[str, Any]) -> Training:
    """Many workers deadlock after a while."""
    hangs = config["data"]["num_workers"] >= 4
    return replace(works(config), steps=12, hangs=True, cpu_cores=0.0) if hangs else works(config)


def full_shared_memory(config: Mapping[str, Any]) -> Training:
    """What workers have ready does not fit: they are killed after a few steps."""
    data = config["data"]
    ready = max(1, data["num_workers"]) * data["prefetch_factor"] * data["batch_size"]
    said = (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    )
    return replace(works(config), steps=9, exit_code=-7, stderr=said) if ready > 200 else works(config)


def out_of_memory(error: str) -> Callable[[Mapping[str, Any]], Training]:
    """Return a trainer to which a batch of 16 and more is too much."""

    def train(config: Mapping[str, Any]) -> Training:
        fails = config["data"]["batch_size"] >= 16
        return replace(works(config), steps=0, exit_code=1, stderr=error) if fails else works(config)

    return train


def failed(searched: Searched) -> list[TrialRecord]:
    """Return the trials that failed by their values."""
    return [trial for trial in searched.trials if has_failed(trial)]


@pytest.mark.parametrize(
    ("train", "ending", "most", "said"),
    [
        (hang_with_workers, Ending.HUNG, 3, "data.num_workers: 1 and beyond fails in every trial (hung"),
        (crash_of_a_value, Ending.CRASHED, 3, "data.cache_size: 2 and beyond fails in every trial (crashed"),
        (crash_after_steps, Ending.CRASHED, 5, "data.cache_size: 2 and beyond fails in every trial (crashed"),
        (hang_after_steps, Ending.HUNG, 3, "data.num_workers: 4 and beyond fails in every trial (hung"),
    ],
)
def test_a_value_that_always_fails_is_left_out(search: Search, train, ending: Ending, most: int, said: str) -> None:
    """Two or three trials show it; the answer says it, with what helps, and loses little of the budget to it."""
    searched = search(train, config=CONFIG, budget_s=120.0)
    assert searched.answer.verdict is Verdict.BETTER
    assert {trial.ending for trial in failed(searched)} == {ending}
    assert len(failed(searched)) <= most
    share = sum(trial.duration_s for trial in failed(searched)) / 120.0
    assert share <= (0.26 if train is hang_after_steps else 0.15)  # as it waits where steps have come
    assert any(said.partition(": ")[0] in caution for caution in searched.answer.cautions)
    assert any("fails in every trial" in caution for caution in searched.answer.cautions)


def test_no_value_is_blamed_for_what_the_baseline_does_too(search: Search) -> None:
    """Its data are missing, say: then every trial crashes, and no value has anything to do with it."""
    searched = search(
        lambda config: replace(works(config), steps=0, exit_code=1, stderr="no\n"), config=CONFIG, budget_s=60.0
    )
    assert "none of " in str(searched.error)
    assert len(searched.trials) >= 3
    assert not [event.text for event in searched.events if isinstance(event, Remark) and "fails" in event.text]


@pytest.mark.parametrize("seed", range(3))
def test_a_value_that_hangs_only_in_the_longer_trials_of_the_pairs_is_left_out(search: Search, seed: int) -> None:
    """The points that hang in their pairs share it; then another point has its pairs, and is the answer."""

    def train(config: Mapping[str, Any]) -> Training:
        hangs = config["data"]["num_workers"] >= 4
        return replace(works(config), steps=150, hangs=True, cpu_cores=0.0) if hangs else works(config)

    searched = search(train, config=CONFIG, budget_s=600.0, seed=seed)
    assert searched.answer.verdict is Verdict.BETTER
    assert searched.answer.best is not None
    assert searched.answer.best.values["data.num_workers"] == 2
    assert any(
        "data.num_workers: 4 and beyond fails in confirming pairs" in caution for caution in searched.answer.cautions
    )


def test_a_pair_of_values_that_fails_is_left_out(search: Search) -> None:
    """Each of them alone is still tried."""
    searched = search(crash_of_a_pair, config=CONFIG, budget_s=300.0)
    assert len(failed(searched)) <= 3
    tried = [trial.values for trial in searched.trials if trial.comparable]
    assert any(one["data.num_workers"] >= 4 for one in tried)


def crash_of_a_product(config: Mapping[str, Any]) -> Training:
    """A buffer has room for so many samples in flight."""
    data = config["data"]
    fails = data["batch_size"] * max(1, data["num_workers"]) > 32
    return replace(works(config), steps=10, exit_code=1, stderr="AssertionError: full\n") if fails else works(config)


def test_two_numbers_whose_product_fails_are_left_out_together(search: Search) -> None:
    """Each of them works, and so do some of their pairs: three points show what the others would."""
    searched = search(crash_of_a_product, config=CONFIG, budget_s=300.0)
    assert len(failed(searched)) == 3
    said = "data.num_workers x data.batch_size: 64 or more fails in every trial (crashed"
    assert next(caution for caution in searched.answer.cautions if "fails in every trial" in caution).startswith(said)
    assert searched.answer.verdict is Verdict.BETTER


def test_one_point_that_ran_out_of_memory_is_named(search: Search) -> None:
    """What needs as much is not tried, so no second one shows it."""

    def train(config: Mapping[str, Any]) -> Training:
        fails = config["data"]["batch_size"] >= 32
        said = "terminate called after throwing an instance of 'std::bad_alloc'\n"
        return replace(works(config), steps=3, exit_code=-6, stderr=said) if fails else works(config)

    searched = search(train, config=CONFIG, budget_s=120.0)
    named = [one for one in searched.answer.cautions if one.startswith("data.batch_size: 32")]
    assert len(named) == 1
    assert "out of host memory" in named[0]


def test_what_needs_as_much_shared_memory_is_not_tried(search: Search) -> None:
    """Of workers, prefetching and batch the product counts; no point fails twice, whatever it is tried for."""
    searched = search(full_shared_memory, config=CONFIG, budget_s=300.0)
    fails = failed(searched)
    assert {trial.ending for trial in fails} <= {Ending.OUT_OF_SHARED_MEMORY}
    assert len({trial.point for trial in fails}) == len(fails) <= 3
    ready = [math.prod(max(1, int(value or 0)) for value in list(trial.values.values())[:3]) for trial in fails]
    assert ready == sorted(ready, reverse=True)
    assert searched.answer.verdict is Verdict.BETTER
    assert all(trial.purpose is not Purpose.TAKE_BACK for trial in fails)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n", Ending.OUT_OF_HOST_MEMORY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", Ending.OUT_OF_GPU_MEMORY),
    ],
)
def test_a_batch_that_does_not_fit_is_named_and_left_out(search: Search, error: str, ending: Ending) -> None:
    """Whatever else a point changes; for GPU memory one trial is enough, as only the batch needs more of it."""
    searched = search(out_of_memory(error), config=CONFIG, budget_s=120.0)
    assert {trial.ending for trial in failed(searched)} == {ending}
    assert len(failed(searched)) <= 3
    (said,) = (caution for caution in searched.answer.cautions if caution.startswith("data.batch_size: 16"))
    assert ending.value in said


def test_a_batch_that_fits_in_half_the_precision_is_found(search: Search) -> None:
    """What ran out of memory in 32 bits is left out there alone; what fails in both is not tried again and again."""

    def train(config: Mapping[str, Any]) -> Training:
        fails = config["data"]["batch_size"] > (8 if config["training"]["precision"] == 32 else 16)
        said = "terminate called after throwing an instance of 'std::bad_alloc'\n"
        return replace(works(config), steps=0, exit_code=-6, stderr=said) if fails else works(config)

    config = CONFIG.replace("autotune:", "training: {precision: 32}\nautotune:", 1)
    config = config.replace(
        "        data.num_workers", "        training.precision: [32, 16]\n        data.num_workers"
    )
    searched = search(train, config=config, budget_s=300.0)
    best = searched.answer.best.values
    assert (best["data.batch_size"], best["training.precision"]) == (16, 16)
    assert any(
        "data.batch_size: 16 and beyond fails with the current training.precision" in one
        for one in searched.answer.cautions
    )
    assert len(failed(searched)) <= 6
