"""Promises of whole searches whose driver fails: they go on as far as they can, and say what it was."""

import json
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from autotune.records import Ending, Validity
from tests.fake_nvml.scenario import Fault
from tests.gpu.conftest import GpuProject, Searched, all_at_once, is_baselines, machine_with

pytestmark = pytest.mark.services

# Without a buffer each step waits for its batch; all values are alike but for that.
CONFIG = """\
data: {batch_size: 8, num_workers: 1, prefetch_buffer_size: 0}
training: {}
costs: {load_s: 0.002, kernel_s: 0.002}
autotune:
  command: "{python} TRAINER {config}"
  knobs: {data.prefetch_buffer_size: [0, 2, 4, 8]}
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""
BUDGET_S = 120.0  # none takes it all: they are interrupted, or end for want of a GPU

FAULTS = {
    "GPU lost": (Fault(code=15, gpu=0, switch="on"),),
    "GPU needs a reset, then works again": (Fault(code=16, gpu=0, switch="on"),),
    "driver not loaded": (Fault(code=9, switch="on"),),
    "hiccup of all calls": (Fault(code=10, gpu=0, switch="on"),),
    "no permission": tuple(Fault(function=f"nvmlDeviceGet{what}", code=4) for what in ("Samples", "UtilizationRates")),
    "activity forbidden": (Fault(function="nvmlGpmSampleGet", code=4),),
    "blocked": (Fault(function="nvmlDeviceGetPowerUsage", delay_s=30.0, switch="on"),),  # only the collector asks it
}

FOR_GOOD = ("GPU lost", "driver not loaded")


def hear(project: GpuProject, name: str, line: str) -> bool:
    """Lets the fault begin once today's config is measured, and end where it does; True once enough was seen."""
    if is_baselines(line):
        project.machine.switch("on")
        if name.startswith("hiccup"):
            threading.Timer(0.3, project.machine.switch, ("on",), {"on": False}).start()
    if "again" in name and "[GPU lost]" in line:
        project.machine.switch("on", on=False)
    return "] trial 4 " in line and not name.endswith(("lost", "loaded"))


@pytest.fixture(scope="module")
def searched(gpu_project: Callable[..., GpuProject]) -> dict[str, Searched]:
    """A search for each fault, all at the same time."""
    projects = {name: gpu_project(machine_with(1, faults=faults), CONFIG) for name, faults in FAULTS.items()}

    def search(name: str) -> Searched:
        project = projects[name]
        return project.search(BUDGET_S, hear=lambda line: hear(project, name, line))

    return all_at_once(search, FAULTS)


def left_on(project: GpuProject) -> list[int]:
    """Processes that were started on this project's machine, and live."""
    left = []
    for process in psutil.process_iter():
        try:
            there = process.environ().get("AUTOTUNE_FAKE_NVML") == project.machine.env["AUTOTUNE_FAKE_NVML"]
            if there and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
        except psutil.Error:
            continue
    return left


def trials_after_baselines(searched: Searched) -> list[dict[str, Any]]:
    """The trials that came after the first one that counts."""
    trials = searched.trials()
    first = next(place for place, trial in enumerate(trials) if trial["validity"] == Validity.GOOD)
    return trials[first + 1 :]


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_hangs_or_breaks_a_search(searched, name):
    """It shows no traceback, and neither a trial nor the collector is left."""
    done = searched[name]
    assert done.returncode == (0 if name in FOR_GOOD else 130), done.complained
    assert "Traceback" not in done.complained
    assert "crash log" not in done.complained
    assert left_on(done.project) == []


@pytest.mark.parametrize("name", FOR_GOOD)
def test_what_is_lost_for_good_ends_trials_and_search_by_name(searched, name):
    """The trial that meets it, and two repeats, end as "GPU lost" with the driver's reason; then the search ends."""
    done = searched[name]
    others = trials_after_baselines(done)
    assert [trial["ending"] for trial in others] == [Ending.GPU_LOST] * 3, done.complained
    assert all(name in trial["detail"] for trial in others)
    assert done.answer["outcomes"][Ending.GPU_LOST] == 3
    assert done.answer["elapsed_s"] < BUDGET_S / 2
    assert f"the GPU does not come back ({others[-1]['detail']})" in done.complained


@pytest.mark.parametrize(
    ("name", "what", "helps"),
    [
        ("GPU lost", "GPU lost: the NVIDIA driver says: GPU is lost.", "dmesg"),
        ("GPU needs a reset, then works again", "GPU needs a reset: the NVIDIA driver says: ", "--gpu-reset"),
        ("driver not loaded", "driver not loaded: the NVIDIA driver says: Driver Not Loaded.", "modprobe"),
        ("no permission", "it does not report utilization (Insufficient Permissions).", "ask whoever runs the machine"),
    ],
)
def test_what_happened_and_what_helps_is_said_once(searched, name, what, helps):
    """While the search goes on, however many trials it hits."""
    said = [line for line in searched[name].complained.splitlines() if what in line and helps in line]
    assert len(said) == 1, searched[name].complained


def test_a_gpu_that_comes_back_is_measured_again(searched):
    """A trial that was lost on the way counts for nothing, and is made again."""
    done = searched["GPU needs a reset, then works again"]
    lost, *later = trials_after_baselines(done)
    assert lost["ending"] == Ending.GPU_LOST, done.complained
    assert "GPU needs a reset" in lost["detail"]
    assert lost["measurement"] is None
    again = next(trial for trial in later if trial["ending"] == Ending.STOPPED)
    assert again["point"] == lost["point"]
    assert again["measurement"]["gpu_utilization"] > 0.3


def test_a_hiccup_is_none_of_the_users_business(searched):
    """A third of a second in which no call succeeds costs no trial."""
    done = searched["hiccup of all calls"]
    assert {trial["ending"] for trial in done.trials()} == {Ending.STOPPED}, done.complained
    assert [trial["detail"] for trial in done.trials() if "GPU" in trial["detail"]] == []
    assert all(trial["measurement"]["gpu_utilization"] is not None for trial in done.trials())


def test_without_utilization_it_goes_on_by_speed_and_says_why(searched):
    """Runs count, their utilization is absent and never 0, and each says the reason."""
    done, why = searched["no permission"], "it does not report utilization (Insufficient Permissions)"
    trials = trials_after_baselines(done)
    assert {trial["ending"] for trial in trials} == {Ending.STOPPED}, done.complained
    # A machine with more to do than it can makes a trial unsteady now and then.
    good = [trial for trial in trials if trial["validity"] == Validity.GOOD]
    assert good, done.complained
    for trial in good:
        assert trial["measurement"]["gpu_utilization"] is None
        assert why in trial["detail"]
    known = json.loads(done.project.autotune("status", "--config", "config.yaml", "--json").stdout)
    assert known["baseline"]["gpus"]["utilization"] is None
    assert known["baseline"]["metrics"]["gpu_utilization"] is None


def test_a_call_that_blocks_for_half_a_minute_holds_nothing_up(searched):
    """Runs go on beside it and count, without a utilization; only the collector waits."""
    done = searched["blocked"]
    others = trials_after_baselines(done)
    for trial in others:
        assert trial["ending"] == Ending.STOPPED, done.complained
        assert trial["validity"] in (Validity.GOOD, Validity.NOT_STEADY), done.complained  # another load on the machine
        assert trial["duration_s"] < 15.0  # instead of 30 and more
    assert others[-1]["measurement"]["gpu_utilization"] is None
    assert "GPU utilization not measured: nothing was heard of the GPUs for" in others[-1]["detail"]
