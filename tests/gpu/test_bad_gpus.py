"""Promises of `autotune search` where the GPU is not what it should be: that is said first, with a remedy."""

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.scenario import Fault
from tests.gpu.conftest import GpuProject, machine_with

CONFIG = """\
data: {batch_size: 8, num_workers: 1}
autotune:
  command: "{python} TRAINER {config}"
  knobs: {data.num_workers: [1, 2]}
"""

VISIBLE = {"none": "", "not there": "7", "unknown UUID": "GPU-f00", "cut": "1,7"}
"""Values of CUDA_VISIBLE_DEVICES on a machine with two GPUs."""

CODES = {
    "mismatch": (
        18,
        "driver and library differ in version: the NVIDIA driver says: RM has detected an NVML",
    ),
    "forbidden": (4, "the NVIDIA driver says: Insufficient Permissions"),
    "unknown": (999, "the NVIDIA driver says: Unknown Error"),
}
"""Codes of the very first call, and what is said of them."""


def starting(project: GpuProject, **env: str) -> subprocess.CompletedProcess[str]:
    """A search that is interrupted before its first trial."""
    search = ("search", "--config", "config.yaml", "--budget", "60s")
    done = project.autotune(*search, env=env, hear=lambda line: "] study " in line)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, done.stderr.replace("\n", " "))


@pytest.fixture(scope="module")
def told(
    gpu_project: Callable[..., GpuProject], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, subprocess.CompletedProcess[str]]:
    """First words of searches, by what is wrong; all at the same time."""

    def failing(*faults: Fault, config: str = CONFIG) -> GpuProject:
        return gpu_project(machine_with(2, faults=faults), config)

    projects = {name: (failing(), {"CUDA_VISIBLE_DEVICES": visible}) for name, visible in VISIBLE.items()}
    for name, (code, _) in CODES.items():
        projects[name] = (failing(Fault(function="nvmlInitWithFlags", code=code)), {})
    projects["blocked"] = (failing(Fault(function="nvmlInitWithFlags", delay_s=600.0)), {})
    mismatch = Fault(function="nvmlInitWithFlags", code=18)
    projects["objective"] = (failing(mismatch, config=CONFIG + "  objective: utilization\n"), {})

    broken, right = tmp_path_factory.mktemp("broken"), failing()
    Path(broken, "libnvidia-ml.so.1").write_bytes(b"this is no library")
    path = os.pathsep.join((str(broken), right.machine.env["LD_LIBRARY_PATH"]))
    projects["two libraries"] = (right, {"LD_LIBRARY_PATH": path})

    with ThreadPoolExecutor(len(projects)) as pool:
        begun = {name: pool.submit(starting, project, **env) for name, (project, env) in projects.items()}
    return {name: future.result() for name, future in begun.items()}


@pytest.mark.parametrize("name", ["not there", "unknown UUID"])
def test_a_gpu_that_is_not_there(told, name):
    """All trials would go without a GPU: that is an error, with what there is."""
    visible = VISIBLE[name]
    assert told[name].returncode == 1
    words = f"CUDA_VISIBLE_DEVICES={visible} names {visible}, and this machine has 2, numbered 0 to 1"
    assert words in told[name].stderr


def test_a_list_that_ends_in_a_gpu_that_is_not_there(told):
    """CUDA goes on with those before it, and the search says so."""
    assert told["cut"].returncode == 130
    assert "CUDA shows only the GPUs before it" in told["cut"].stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none", "CUDA_VISIBLE_DEVICES= hides every GPU"),
        ("two libraries", "the driver's library cannot be loaded: "),
        ("blocked", "the NVIDIA driver has not answered for 10 s"),
        *((name, words) for name, (_, words) in CODES.items()),
    ],
)
def test_without_a_gpu_that_can_be_measured_it_goes_on_by_throughput(told, name, why):
    """Hidden by the user, a broken library before the right one, a driver that refuses or hangs: it is said."""
    assert told[name].returncode == 130
    assert f"GPU utilization not measured: {why}" in told[name].stderr
    assert "Traceback" not in told[name].stderr


@pytest.mark.parametrize(
    ("name", "helps"),
    [
        ("two libraries", "LD_LIBRARY_PATH"),
        ("mismatch", "reboot, or unload and load its kernel modules"),
        ("forbidden", "ask whoever runs the machine"),
        ("unknown", "`nvidia-smi`"),
        ("blocked", "`dmesg`"),
    ],
)
def test_what_helps_against_a_driver_that_does_not_work_is_said_once(told, name, helps):
    """Whoever has a GPU, and did not hide it, wants it measured."""
    assert told[name].stderr.count("To have the GPU measured: ") == 1
    heuristic_values = told[name].stderr.partition("To have the GPU measured: ")[2].partition("] study ")[0]
    assert helps.lower() in heuristic_values.lower()


def test_objective_utilization_needs_a_gpu(told):
    """An objective that cannot be measured is refused."""
    assert told["objective"].returncode == 1
    assert "objective: utilization needs a GPU" in told["objective"].stderr
    assert "driver and library differ in version" in told["objective"].stderr


def test_a_gpu_that_somebody_works_on(gpu_project):
    """Its process is named before any trial; with --allow-busy-gpu see test_search_on_gpus.py."""
    project = gpu_project(machine_with(1), CONFIG)
    tenant = BusyWriter(project.machine.tenants, memory_bytes=3 << 30)
    tenant.kernel(time.monotonic(), time.monotonic() + 120.0)
    done = starting(project)
    tenant.close()
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr
    assert "3.0 GiB" in done.stderr
    assert "--allow-busy-gpu" in done.stderr
    assert list(project.folder.glob(".autotune/trials/*/*")) == []
