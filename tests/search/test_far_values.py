"""Promises of values beyond the machine's cores: tried where training waits with the CPU idle, and nowhere else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psutil

from autotune.events import Remark
from scripts.bench.simulated_runner import SimulatedGpuProbe, Training
from tests.search.simulated import Search

_FOUND = """\
data:
    num_workers: 1
    num_private_threads: 0
autotune:
    command: "{python} train.py {config}"
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 3}
"""
_LISTED = _FOUND + "    knobs: {data.num_workers: [1, 2, 4], data.num_private_threads: [0]}\n"


def _waiting(config: Mapping[str, Any]) -> Training:
    """Train on samples that wait for a storage: so many at a time as there are workers, and threads for them."""
    data = config["data"]
    at_a_time = min(data["num_workers"] or 1, data.get("num_private_threads", 0) or 4, 24)
    step_s = max(0.01, 0.4 / at_a_time)
    return Training(samples=8, step_s=step_s, noise=0.03, wait_fraction=1.0 - 0.01 / step_s, cpu_cores=0.2)


def _computing(config: Mapping[str, Any]) -> Training:
    """Train on samples that take a core each: two of them are there."""
    at_a_time = min(config["data"]["num_workers"] or 1, 2)
    return Training(samples=8, step_s=0.4 / at_a_time, noise=0.03, wait_fraction=0.9, cpu_cores=float(at_a_time))


def test_what_waits_with_the_cpu_idle_gets_more_workers_than_cores(search: Search) -> None:
    """Workers and the threads that they need grow together; the screen says so."""
    searched = search(_waiting, config=_FOUND, budget_s=300)
    best = searched.answer.best.values
    assert min(best["data.num_workers"], best["data.num_private_threads"]) >= 16
    assert any("with the CPU idle: the search tries data.num_workers up to" in one.text for one in _remarks(searched))
    later = search(_waiting, config=_FOUND, budget_s=300)  # has them in its model too
    assert later.answer.best.values["data.num_workers"] >= 16


def test_waits_that_are_not_reported_are_inferred_from_an_idle_cpu(search: Search) -> None:
    """As in a loop that calls `step()` without its wait, unless a GPU is busy meanwhile."""

    def unreported(config: Mapping[str, Any]) -> Training:
        return replace(_waiting(config), wait_fraction=None)

    searched = search(unreported, config=_FOUND, budget_s=300)
    assert searched.answer.best.values["data.num_workers"] >= 16
    assert any("leaves the CPU idle, and reports no waits" in one.text for one in _remarks(searched))


def test_the_end_of_the_values_is_named_only_if_the_answer_is_there(search: Search) -> None:
    """Thirty-two workers are tried and gain nothing over four, which the storage serves."""

    def served(config: Mapping[str, Any]) -> Training:
        step_s = 0.4 / min(config["data"]["num_workers"] or 1, 4)
        return Training(samples=8, step_s=step_s, noise=0.05, wait_fraction=None, cpu_cores=0.2)

    searched = search(served, config=_FOUND, budget_s=300, seed=5)
    assert max(trial.values["data.num_workers"] for trial in searched.trials) == 32
    assert searched.answer.best.values["data.num_workers"] == 4
    assert not [text for text in searched.answer.cautions if "num_workers" in text]


def test_an_idle_cpu_beside_a_busy_gpu_waits_for_no_data(search: Search) -> None:
    """The trainer reports no waits: the GPU is the limit."""

    def on_gpu(config: Mapping[str, Any]) -> Training:
        return replace(_waiting(config), wait_fraction=None, gpu_utilization=0.95, gpu_memory_bytes=1 << 30)

    searched = search(on_gpu, config=_FOUND, budget_s=300, gpus=SimulatedGpuProbe)
    assert not [one for one in _remarks(searched) if "CPU idle" in one.text]


def test_what_keeps_the_cores_busy_does_not(search: Search) -> None:
    """More workers would only share the same cores."""
    searched = search(_computing, config=_FOUND, budget_s=300)
    assert max(trial.values["data.num_workers"] for trial in searched.trials) <= 8
    assert not [one for one in _remarks(searched) if "CPU idle" in one.text]


def test_a_list_of_the_users_is_kept_and_its_end_is_named(search: Search) -> None:
    """Once, and in the answer."""
    searched = search(_waiting, config=_LISTED, budget_s=300)
    assert max(trial.values["data.num_workers"] for trial in searched.trials) == 4
    (said,) = [text for text in searched.answer.cautions if "num_workers" in text]
    assert said.startswith("At data.num_workers: 4, the largest value tried, training waits for data")


def _remarks(searched: Any) -> list[Remark]:
    return [event for event in searched.events if isinstance(event, Remark)]


def test_workers_do_not_grow_beyond_the_memory(search: Search) -> None:
    """As if each of them needed what all of them need now."""

    def large(config: Mapping[str, Any]) -> Training:
        share = 0.05 * (config["data"]["num_workers"] or 1)
        return replace(_waiting(config), memory_bytes=int(share * psutil.virtual_memory().total))

    searched = search(large, config=_FOUND, budget_s=300)
    assert 8 <= max(trial.values["data.num_workers"] for trial in searched.trials) <= 16
