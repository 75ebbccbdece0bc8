"""Promises about GPUs that are not there: what is wrong, and what to do about it."""

import os
import subprocess
import sys

import pytest

from tests.fake_nvml.scenario import Fault, Scenario

LOOK = """
from autotune.errors import GpuError
from autotune.measure.gpu import driver as gpu_presence
gpu_presence.TIME_LIMIT_S = 60.0
try:
    found = gpu_presence.present_gpus()
    tell([[gpu.uuid for gpu in found.gpus], *found.silent])
except GpuError as error:
    tell([error.message, error.remedy])
"""


@pytest.mark.parametrize(
    ("code", "what", "remedy"),
    [
        (4, "Insufficient Permissions", "--gpus all"),
        (9, "driver not loaded", "modprobe nvidia"),
        (12, "no NVIDIA driver was found", "install NVIDIA's driver"),
        (18, "driver and library differ in version", "reboot"),
        (999, "Unknown Error", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_work_is_named_with_its_remedy(fake_gpu, code, what, remedy):
    """In words that someone who has never heard of NVML can act on."""
    message, helps = fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=code),))).run(LOOK)
    assert what in message
    assert remedy in helps


def test_a_file_that_is_no_library_is_not_called_missing(fake_gpu, tmp_path):
    """A second library in front of the right one is found, and cannot be loaded: that is what has to be mended."""
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    env = fake_gpu().env
    env["LD_LIBRARY_PATH"] = os.pathsep.join((str(tmp_path), env["LD_LIBRARY_PATH"]))
    code = "tell = print\n" + LOOK
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert f"the driver's library cannot be loaded: {tmp_path}/libnvidia-ml.so.1: " in done.stdout, done.stderr
    assert "LD_LIBRARY_PATH" in done.stdout
