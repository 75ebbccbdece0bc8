"""A whole search for utilization, in virtual time, around a simulated trainer on a simulated GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import ConfigError
from autotune.records import Machine, Verdict
from autotune.search.problem import open_problem
from scripts.bench.simulated_runner import SimulatedGpuProbe, Training
from tests.search.simulated import Search

CONFIG = """\
data: {batch_size: 8, num_workers: 1, slow_kernel: false}
autotune:
    command: "{python} train.py {config}"
    objective: utilization
    knobs:
        data.batch_size: [8, 16]
        data.num_workers: [1, 2]
        data.slow_kernel: [false, true]
"""
MACHINE = Machine(cpu_cores=8, cpu_model="simulated", memory_bytes=2**36)


def wasteful(config: Mapping[str, Any]) -> Training:
    """The second worker feeds the GPU; the slow kernel keeps it busier still, for half as many samples."""
    data = config["data"]
    utilization = 0.7 if data["num_workers"] == 2 else 0.3
    step_s = 0.05 if data["num_workers"] == 2 else 0.1
    if data["slow_kernel"]:
        utilization, step_s = 0.98, 0.2
    # A larger batch is faster, and leaves the GPU idle for longer.
    scale = data["batch_size"] / 8
    return Training(
        samples=data["batch_size"], step_s=step_s * scale**0.5, gpu_utilization=utilization / scale**0.2, noise=0.02
    )


def test_the_busiest_gpu_at_no_less_speed_is_found(search: Search) -> None:
    """Neither the fastest point, which leaves the GPU idle for longer, nor the busiest, which is slow."""
    options = {"config": CONFIG, "machine": MACHINE, "gpus": SimulatedGpuProbe}
    result = search(wasteful, budget_s=600.0, seed=1, **options).answer
    assert result.verdict is Verdict.BETTER, result.why
    assert result.best.values == {"data.batch_size": 8, "data.num_workers": 2, "data.slow_kernel": False}
    assert result.score_ratio.ratio == pytest.approx(0.7 / 0.3)
    assert result.speedup.ratio == pytest.approx(2.0, rel=0.1)
    assert (result.best.metrics["window_s"] or 0.0) >= 5.0


def test_without_a_reading_of_it_the_search_ends_at_once(search: Search) -> None:
    """A search for an unmeasured objective ends after the baseline's trial, with the reason."""
    not_measured = Training(samples=8.0, step_s=0.05)
    found = search(lambda _: not_measured, budget_s=600.0, config=CONFIG, machine=MACHINE, gpus=SimulatedGpuProbe)
    assert "no GPU utilization was measured while today's config ran" in found.error.message


def test_without_a_gpu_the_search_does_not_begin(tmp_path: Path) -> None:
    """The reason is given, and what to ask for instead."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    problem = open_problem(config, command=None, state_dir=None, machine=MACHINE)
    with pytest.raises(ConfigError, match="needs a GPU whose utilization is measured") as caught:
        problem.require_runnable()
    assert "effective_utilization" in caught.value.remedy
