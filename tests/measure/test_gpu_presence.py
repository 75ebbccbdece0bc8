"""Promises about GPUs that are not there: what is wrong, and what to do about it."""

import pytest

from tests.fake_nvml.scenario import Fault, Gpu, Scenario

LOOK = """
from autotune.errors import GpuError
from autotune.measure import gpu_presence
gpu_presence._PATIENCE_S = {patience_s}
try:
    tell([gpu.uuid for gpu in gpu_presence.present_gpus()])
except GpuError as error:
    tell([error.message, error.remedy])
"""


def present(machine, *, patience_s=60.0):
    """The UUIDs, or what is wrong and what helps."""
    return machine.run(LOOK.format(patience_s=patience_s))


def test_gpus_that_are_there_are_listed(fake_gpu):
    """All of them; one that is lost hides no other."""
    machine = fake_gpu(Scenario(gpus=(Gpu(), Gpu(), Gpu()), faults=(Fault(code=15, gpu=1),)))
    assert present(machine) == [f"GPU-0000000{place}-0000-4000-8000-000000000000" for place in (0, 2)]


@pytest.mark.parametrize(
    ("code", "what", "remedy"),
    [
        (4, "Insufficient Permissions", "--gpus all"),
        (9, "driver not loaded", "modprobe nvidia"),
        (12, "no NVIDIA driver on this machine", "Install NVIDIA's driver"),
        (18, "driver and library differ in version", "reboot"),
        (999, "Unknown Error", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_work_is_named_with_its_remedy(fake_gpu, code, what, remedy):
    """In words that someone who has never heard of NVML can act on."""
    message, helps = present(fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=code),))))
    assert what in message
    assert remedy in helps


def test_a_machine_without_gpus_says_so(fake_gpu):
    """A driver there is, and no GPU."""
    message, remedy = present(fake_gpu(Scenario(gpus=())))
    assert message == "the NVIDIA driver sees no GPU"
    assert "nvidia-smi" in remedy


def test_a_driver_that_hangs_is_not_waited_for(fake_gpu):
    """Not even by the end of the process."""
    machine = fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", delay_s=3600.0),)))
    message, remedy = present(machine, patience_s=0.2)
    assert "has not answered" in message
    assert "reboot" in remedy
