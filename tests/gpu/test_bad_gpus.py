"""Promises of `autotune search` where the GPU is not what it should be: that is said first, with a remedy."""

import os
import time
from collections.abc import Callable

import pytest

from tests.command_line import CONFIG
from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.scenario import Fault, Gpu
from tests.gpu.conftest import GpuProject

MakeProject = Callable[..., GpuProject]
FIRST_CALL = "nvmlInitWithFlags"


@pytest.mark.parametrize("visible", ["7", "GPU-f00"])
def test_a_gpu_that_is_not_there(gpu_project: MakeProject, visible: str) -> None:
    """All trials would go without a GPU: that is an error, with what there is."""
    done = gpu_project().search(CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 1
    words = f"CUDA_VISIBLE_DEVICES={visible} names {visible}, but this machine has 2, numbered 0 to 1"
    assert words in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("fault", "visible", "why", "helps"),
    [
        (None, "", "CUDA_VISIBLE_DEVICES= hides every GPU", None),
        (
            Fault(function=FIRST_CALL, code=4),
            "0",
            "the NVIDIA driver reports: Insufficient Permissions",
            "ask your administrator",
        ),
        (Fault(function=FIRST_CALL, delay_s=600.0), "0", "the NVIDIA driver has not answered for ", "`dmesg`"),
    ],
    ids=["hidden", "refuses", "hangs"],
)
def test_without_a_gpu_that_can_be_measured_it_goes_on_by_throughput(
    gpu_project: MakeProject, fault: Fault | None, visible: str, why: str, helps: str | None
) -> None:
    """The reason is said; what helps against it once, to whoever did not hide the GPU."""
    time_limit_s = 0.3 if fault and fault.delay_s else 60.0
    done = gpu_project(*filter(None, [fault]), time_limit_s=time_limit_s).search(CUDA_VISIBLE_DEVICES=visible)
    said = done.stderr.replace("\n", " ")
    assert done.returncode == 0, said
    assert f"GPU utilization not measured: {why}" in said
    assert said.count("To measure the GPU: ") == (helps is not None)
    assert helps is None or helps in said.partition("To measure the GPU: ")[2].lower()


def test_a_list_that_ends_in_a_gpu_that_is_not_there(gpu_project: MakeProject) -> None:
    """CUDA goes on with those before it, and the search says so."""
    done = gpu_project().search(CUDA_VISIBLE_DEVICES="1,7")
    assert done.returncode == 0, done.stderr
    assert "CUDA shows only the GPUs before it" in done.stderr.replace("\n", " ")


def test_objective_utilization_needs_a_gpu(gpu_project: MakeProject) -> None:
    """An objective that cannot be measured is refused."""
    done = gpu_project(Fault(function=FIRST_CALL, code=18), config=CONFIG + "    objective: utilization\n").search()
    assert done.returncode == 1
    assert "objective: utilization needs a GPU" in done.stderr
    assert "driver and library differ in version" in done.stderr.replace("\n", " ")


def test_a_gpu_that_somebody_works_on(gpu_project: MakeProject) -> None:
    """Its process is named before any trial; with --allow-busy-gpu the search runs anyway, and says so."""
    project = gpu_project(gpus=(Gpu(),), follow=True)
    tenant = BusyWriter(project.machine.tenants, memory_bytes=3 << 30)
    tenant.kernel(time.monotonic(), time.monotonic() + 3600.0)
    done = project.search()
    assert done.returncode == 1
    for words in (f"process {os.getpid()}", "3.0 GiB", "--allow-busy-gpu"):
        assert words in done.stderr.replace("\n", " ")
    assert list(project.folder.glob(".autotune/trials/*/*")) == []
    done = project("search", "--config", "config.yaml", "--budget", "30s", "--no-apply", "--allow-busy-gpu")
    tenant.close()
    assert done.returncode == 0, done.stderr
    assert "the search runs anyway" in done.stderr.replace("\n", " ")
