"""Whole searches on fake GPUs: real processes from the command line to the driver's library, the truth beside them."""

import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autotune.records import Validity
from tests.commands.test_search import left_running
from tests.fake_nvml.busy_reader import busy_fraction
from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.scenario import Gpu, Scenario
from tests.gpu.conftest import (
    UUID,
    WINDOW_S,
    GpuProject,
    Searched,
    all_at_once,
    driver_windows,
    is_baselines,
    machine_with,
)

# A file of samples takes 150 ms to open. 4 steps of 18 ms, 8 ms of loading before each: busy for 72 of 254 ms.
STARVED = """\
data: {batch_size: 8, num_workers: 1, prefetch_buffer_size: 0}
training: {enable_xla: false}
costs: {load_s: 0.001, shard_s: 0.15, shard_batches: 4, launch_s: 0.002, kernel_s: 0.002}
autotune:
  command: "{python} TRAINER {config}"
  knobs: {data.num_workers: [1, 4], data.prefetch_buffer_size: [0, 8]}
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""
STARVED_BUSY, STARVED_PERIOD_S = 72 / 254, 0.254

# The data's GPU computes features for 8 of 20 ms, and loading takes as long: more than a step takes with XLA.
BUSY_IS_NOT_FAST = """\
data: {batch_size: 8, num_workers: 1, prefetch_buffer_size: 4, data_gpu: 0}
training: {enable_xla: false, model_gpu: 1}
costs: {load_s: 0.0025, features_s: 0.001, launch_s: 0.004, kernel_s: 0.004, xla_gain: 4.5}
autotune:
  command: "{python} TRAINER {config}"
  knobs: {training.enable_xla: [false, true]}
  objective: OBJECTIVE
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""

# The second GPU is twice as fast. One GPU for both: 4 ms of reading, then 4 + 16 + 10 ms a step. Training on the
# second: 12 ms, while the first waits for 4 ms of reading, and computes features for 10 ms. The other way round: 20 ms.
PLACED = """\
data: {data_gpu: null, model_gpu: null, pipeline_buffer_size: 2, pipeline_buffer_mb: 64}
training: {}
costs: {load_s: 0.001125, features_s: 0.000625, launch_s: 0.004, kernel_s: 0.001, speeds: [0.5, 1.0]}
autotune:
  command: "{python} TRAINER {config}"
  trial: {min_s: 1.0, min_steps: 10, max_s: 1.5}
"""

BUDGET_S = 80.0
WHOLE = ("starved", "effective", "utilization", "placed")  # the others are interrupted once enough was seen


def visit(project: GpuProject, seconds: float) -> None:
    """Somebody uses the GPU for so long from now on, at a third of the time."""
    tenant, now_s = BusyWriter(project.machine.tenants), time.monotonic()  # this process: alive, and none of a trial's
    for beat in range(round(10 * seconds)):
        tenant.kernel(now_s + 0.1 * beat, now_s + 0.1 * beat + 0.033)
    leaving = threading.Timer(seconds, tenant.close)
    leaving.daemon = True  # who stays longer than the tests does not hold them up
    leaving.start()


def hear(project: GpuProject, name: str, line: str) -> bool:
    """Has a visitor come after the first trial; True once enough was seen of the search."""
    if name == "visited" and is_baselines(line):
        visit(project, 3.5)
    return ("] trial 4 " in line and name == "visited") or ("] trial 7 " in line and name == "shared")


@pytest.fixture(scope="module")
def searched(gpu_project: Callable[..., GpuProject]) -> dict[str, Searched]:
    """The searches of this module by name. They are made at the same time: trainers here wait, they don't compute."""
    projects = {
        "starved": gpu_project(machine_with(1), STARVED),
        "effective": gpu_project(machine_with(2), BUSY_IS_NOT_FAST.replace("OBJECTIVE", "effective_utilization")),
        "utilization": gpu_project(machine_with(2), BUSY_IS_NOT_FAST.replace("OBJECTIVE", "utilization")),
        "placed": gpu_project(Scenario(gpus=(Gpu(name="NVIDIA A10"), Gpu()), follow=True, window_s=WINDOW_S), PLACED),
        "visited": gpu_project(machine_with(1), STARVED),
        "shared": gpu_project(machine_with(1), STARVED),
    }
    visit(projects["shared"], 120.0)

    def search(name: str) -> Searched:
        project, options = projects[name], ("--allow-busy-gpu",) if name == "shared" else ()
        budget_s = BUDGET_S if name in WHOLE else 120.0
        return project.search(budget_s, *options, hear=partial(hear, project, name))

    return all_at_once(search, projects)


@pytest.mark.parametrize("name", WHOLE)
def test_a_search_ends_well_and_leaves_nothing(searched, name):
    """It is back within its budget, has an answer, complains of nothing that is a traceback, and no process stays."""
    done = searched[name]
    assert done.returncode == 0
    assert done.answer["elapsed_s"] < BUDGET_S
    assert done.answer["why_no_gpu"] is None
    assert "Traceback" not in done.complained
    assert left_running(done.project.folder) == []


@pytest.mark.parametrize(("name", "gpu"), [("starved", 0), ("effective", 0), ("effective", 1), ("visited", 0)])
def test_each_run_keeps_what_the_driver_said_and_that_is_what_happened(searched, name, gpu):
    """The raw samples in the folders of the trials agree with the intervals in which kernels ran."""
    done = searched[name]
    measured = [trial for trial in done.trials() if trial["measurement"]]
    assert len(measured) >= 2
    errors = [
        busy - busy_fraction(done.project.machine.tenants, gpu, start_s, end_s)
        for trial in measured
        for start_s, end_s, busy in driver_windows(trial["folder"], gpu)
    ]
    assert len(errors) > 20 * (len(measured) - 1)  # one warms up
    assert sum(map(abs, errors)) / len(errors) < 0.01


def is_stated(gpus: dict[str, Any]) -> bool:
    """True if utilization is stated; a machine too busy to read all driver windows must say so instead."""
    scored = [gpu for gpu in gpus["devices"] if gpu["scored"]]
    if gpus["utilization"] is None:
        assert any(gpu["text"].startswith("not enough yet: ") for gpu in scored), scored
    return gpus["utilization"] is not None


def test_a_starved_gpu_is_found_and_fed(searched):
    """The values that feed it win; what is said of the GPU before and after is what it did."""
    done = searched["starved"]
    answer = done.answer
    assert answer["verdict"] == "better", done.complained
    assert answer["best"]["values"] == {"data.num_workers": 4, "data.prefetch_buffer_size": 8}
    assert answer["speedup"]["low"] > 2.0
    before, after = answer["baseline"]["gpus"], answer["best"]["gpus"]
    assert before["utilization"] == pytest.approx(STARVED_BUSY, abs=0.03)
    assert after["utilization"] == pytest.approx(1.0, abs=0.15)  # on a busy machine, workers wake up late
    assert before["effective_utilization"] == pytest.approx(STARVED_BUSY, abs=0.06)
    (gpu,) = before["devices"]
    assert (gpu["uuid"], gpu["scored"], gpu["verdict"]) == (UUID.format(0), True, "cyclic")
    assert gpu["period_s"] == pytest.approx(STARVED_PERIOD_S, rel=0.1)
    assert "more prefetch" in gpu["meaning"]
    assert (gpu["foreign_fraction"], gpu["throttled_fraction"]) == (0.0, 0.0)
    assert gpu["peak_memory_bytes"] == 8 * (16 << 20)
    assert after["devices"][0]["verdict"] != "cyclic"  # flat, or bursty where workers wake up late


def test_busy_is_not_fast(searched):
    """On two GPUs, the config that leaves the model's GPU idle for more of the time is the faster one, and wins."""
    done = searched["effective"]
    answer = done.answer
    assert answer["verdict"] == "better", done.complained
    assert answer["best"]["values"] == {"training.enable_xla": True}
    assert answer["speedup"]["ratio"] == pytest.approx(36 / 20, rel=0.1)
    before, after = answer["baseline"]["gpus"], answer["best"]["gpus"]
    assert [gpu["uuid"] for gpu in before["devices"]] == [UUID.format(0), UUID.format(1)]
    assert [gpu["scored"] for gpu in before["devices"]] == [False, True]
    if is_stated(before):
        assert before["utilization"] == pytest.approx(1.0, abs=0.15)
    if is_stated(after):
        assert after["utilization"] == pytest.approx(8 / 20, abs=0.04)
    assert before["effective_utilization"] < after["effective_utilization"]


def test_utilization_itself_would_have_kept_the_slower_one(searched):
    """Asked for a busy GPU, the same trainer is left as slow as it is: nothing keeps the GPU busier."""
    answer, other = searched["utilization"].answer, searched["effective"].answer
    assert answer["objective"] == "utilization"
    assert answer["verdict"] == "no_change"
    assert answer["best"]["values"] == {"training.enable_xla": False}
    kept, found = answer["best"]["metrics"], other["best"]["metrics"]
    assert kept["gpu_utilization"] > 2 * found["gpu_utilization"]
    assert kept["samples_per_s"] < 0.7 * found["samples_per_s"]


def test_data_and_model_get_the_gpus_that_suit_them(searched):
    """Of two unlike GPUs the faster one trains; both keys are written, and the final screen shows both GPUs."""
    done = searched["placed"]
    answer = done.answer
    assert answer["verdict"] == "better", done.complained
    assert answer["best"]["values"]["data.model_gpu"] == 1
    assert answer["speedup"]["ratio"] == pytest.approx(34 / 14, rel=0.1)
    (placement,) = (change for change in answer["changes"] if change["path"] == "data.model_gpu")
    assert placement["along"] == [{"path": "data.data_gpu", "old": None, "new": 0}]
    tried = {
        (trial["values"]["data.model_gpu"], trial["values"]["data.pipeline_buffer_size"]) for trial in done.trials()
    }
    assert {model for model, _ in tried} == {None, 0, 1}
    assert {depth for model, depth in tried if model is None} == {2}

    data, model = answer["best"]["gpus"]["devices"]
    assert [(gpu["role"], gpu["scored"]) for gpu in (data, model)] == [("data", False), ("model", True)]
    assert [gpu["reference"] for gpu in (data, model)] == [[0.60, 0.80], [0.85, 0.95]]
    assert [gpu["utilization"] for gpu in (data, model)] == pytest.approx([10 / 14, 12 / 14], abs=0.05)
    assert data["against_reference"] == "within"
    assert answer["best"]["gpus"]["utilization"] == model["utilization"]
    assert [gpu["role"] for gpu in answer["baseline"]["gpus"]["devices"]] == [None, None]
    assert "data GPU " in done.complained

    screen = done.project.autotune("status", "--config", "config.yaml", "--details").stdout
    assert "the score looks at GPU 0, then at GPU 1." in screen
    assert "% flat, within 60-80 %" in " ".join(screen.split())
    assert "users state 60-80 % for data and 85-95 % for model" in " ".join(screen.split())
    applied = done.project.autotune("apply", "--config", "config.yaml")
    assert applied.returncode == 0, applied.stderr
    assert "data: {data_gpu: 0, model_gpu: 1, " in (done.project.folder / "config.yaml").read_text()


def test_a_run_that_somebody_disturbed_is_made_again(searched):
    """It is contaminated and counts for nothing, and its successor does."""
    done = searched["visited"]
    first, disturbed, *others = (trial for trial in done.trials() if trial["validity"] != Validity.COLD)
    assert (first["validity"], disturbed["validity"]) == (Validity.GOOD, Validity.CONTAMINATED), done.complained
    assert f"others (process {os.getpid()}) used it for" in disturbed["detail"]
    assert disturbed["measurement"]["gpus"][0]["figures"]["foreign_fraction"] == pytest.approx(0.33, abs=0.15)
    again = next(trial for trial in others if trial["validity"] == Validity.GOOD)
    assert again["point"] == disturbed["point"]
    assert others.index(again) <= 1
    known = json.loads(done.project.autotune("status", "--config", "config.yaml", "--json").stdout)
    assert known["cautions"] == []


def test_where_somebody_stays_trials_are_made_three_times_at_most(searched):
    """With --allow-busy-gpu the search goes on beside a tenant: after two repeats a trial counts as it is."""
    done = searched["shared"]
    assert f"process {os.getpid()}" in done.complained
    assert "the search goes on beside it" in done.complained
    trials = [trial for trial in done.trials() if trial["validity"] != Validity.COLD][:6]
    validities = [trial["validity"] for trial in trials]
    assert validities == [Validity.CONTAMINATED, Validity.CONTAMINATED, Validity.GOOD] * 2, done.complained
    assert all(f"others (process {os.getpid()}) used it for" in trial["detail"] for trial in trials)
