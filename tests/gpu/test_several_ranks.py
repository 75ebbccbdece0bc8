"""Promises of a search whose trainer is several processes, of which one reports its steps."""

from pathlib import Path

import pytest

from autotune.measure.gpu.usage import Attribution
from autotune.records import Validity
from tests.gpu.conftest import is_baselines, machine_with

RANKS = Path(__file__).with_name("ranks.py")
CONFIG = f"""\
data: {{batch_size: 8, num_workers: 1, prefetch_buffer_size: 0}}
training: {{}}
costs: {{load_s: 0.002, kernel_s: 0.002}}
autotune:
  command: "{{python}} '{RANKS}' {{config}}"
  knobs: {{data.num_workers: [1, 2]}}
  trial: {{min_s: 1.0, min_steps: 10, max_s: 1.5}}
"""


def test_ranks_that_report_no_steps_are_the_trials_own(gpu_project):
    """Both GPUs are its own, and nobody else was on them: no trial is made again, and both count."""
    done = gpu_project(machine_with(2), CONFIG).search(90.0, hear=is_baselines)
    trials = [trial for trial in done.trials() if trial["validity"] != Validity.COLD]
    assert trials, done.complained
    assert {trial["validity"] for trial in trials} == {Validity.GOOD}, done.complained
    gpus = trials[0]["measurement"]["gpus"]
    assert [gpu["scored"] for gpu in gpus] == [True, True]
    first, second = (gpu["figures"] for gpu in gpus)
    assert (first["foreign_fraction"], second["foreign_fraction"]) == (0.0, 0.0)
    assert second["utilization"] == pytest.approx(0.8, abs=0.1)
    conditions = trials[0]["conditions"]
    assert {conditions[f"gpu{place}.attribution"] for place in range(2)} == {Attribution.BY_PROCESS}
