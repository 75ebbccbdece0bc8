"""Endings that only a GPU brings about, and what of a GPU makes a trial unfit to be compared: each in a search."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from autotune.records import Ending, Validity
from tests.fake_nvml.scenario import Gpu
from tests.gpu.conftest import GpuProject, Searched, all_at_once, machine_with

REPOSITORY = Path(__file__).parents[2]
NO_WORKSPACE = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"
HEAT = 0x40
FAILS = """\
memory_gib: %d
words: "%s"
other: 1
autotune:
  command: "{python} 'TRAINER' {config}"
  env: {PYTHONPATH: 'REPOSITORY'}
  knobs: {other: [1, 2]}
  trial: {min_s: 30.0, min_steps: 10, max_s: 40}
""".replace("TRAINER", f"{REPOSITORY}/tests/toys/workspace_trainer.py").replace("REPOSITORY", str(REPOSITORY))
TRAINS = """\
data: {batch_size: 8, num_workers: 1, prefetch_buffer_size: 0}
training: {}
costs: {load_s: 0.002, kernel_s: 0.002}
autotune:
  command: "{python} TRAINER {config}"
  knobs: {data.prefetch_buffer_size: [0, 4]}
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""

FAILING = {
    "memory is full": FAILS % (79, NO_WORKSPACE),
    "memory is left": FAILS % (60, NO_WORKSPACE),
    "full without a word": FAILS % (79, ""),
}


def enough(trials: int, line: str) -> bool:
    """Return True for the line on stderr about that trial: then the search is interrupted."""
    return f"] trial {trials - 1} " in line


@pytest.fixture(scope="module")
def searched(gpu_project: Callable[..., GpuProject]) -> dict[str, Searched]:
    """A search of each sort, all at the same time."""
    projects = {name: gpu_project(machine_with(1), config) for name, config in FAILING.items()}
    projects["hot"] = gpu_project(machine_with(1, gpu=Gpu(event_reasons=HEAT)), TRAINS)
    projects["first"] = gpu_project(machine_with(1), TRAINS)

    def search(name: str) -> Searched:
        trials = 3 if name == "hot" else 1
        # From 120 s on, one trial warms up what is never cold again.
        return projects[name].search(120.0 if name == "first" else 110.0, hear=partial(enough, trials))

    return all_at_once(search, projects)


def test_a_full_gpu_names_a_failure_whose_words_do_not(searched: dict[str, Searched]) -> None:
    """The library speaks of an internal error; that the driver shows no free memory tells what it was."""
    trial = searched["memory is full"].trials()[0]
    assert trial["ending"] == Ending.OUT_OF_GPU_MEMORY, searched["memory is full"].complained
    assert NO_WORKSPACE in trial["detail"]


@pytest.mark.parametrize("name", ["memory is left", "full without a word"])
def test_neither_half_of_that_is_enough(searched: dict[str, Searched], name: str) -> None:
    """The same words where memory is free are a crash; so is a full GPU alone, which frameworks fill as they start."""
    trial = searched[name].trials()[0]
    assert trial["ending"] == Ending.CRASHED, searched[name].complained


def test_heat_is_told_and_the_third_run_counts(searched: dict[str, Searched]) -> None:
    """A GPU that is too hot all the time: made again twice, with the reason, then taken as it is."""
    trials = searched["hot"].trials()[:3]
    assert [trial["validity"] for trial in trials] == [Validity.THROTTLED, Validity.THROTTLED, Validity.GOOD]
    assert all("heat (hardware)" in trial["detail"] for trial in trials), searched["hot"].complained
    assert all(trial["measurement"]["gpus"][0]["figures"]["throttled_fraction"] > 0.9 for trial in trials)
