"""Promises of the NVML edge: what it says of a machine's GPUs, with and without a driver."""

import subprocess
import sys

import pynvml
import pytest

from autotune.measure.gpu.driver import Driver, DriverError, Trouble, gpus, trouble
from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Scenario

INVENTORY = "from dataclasses import asdict; from autotune.measure.gpu.driver import gpus; tell(asdict(gpus()))"


def test_importing_the_module_does_not_load_nvml():
    """A command that needs no GPU does not pay for the driver's bindings."""
    code = "import sys, autotune.measure.gpu.process; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_gpu_has_a_reason():
    """Either there are GPUs, each with a name and a UUID, or a sentence says why there are none."""
    inventory = gpus()
    assert (not inventory.gpus) == (inventory.why_none is not None)
    assert all(gpu.name and gpu.uuid for gpu in inventory.gpus)


def test_a_machine_without_a_driver_is_a_driver_error():
    """The error is our own, not one of the bindings."""
    if gpus().gpus:
        pytest.skip("there is a driver here")
    with pytest.raises(DriverError) as caught:
        Driver()
    assert "NVIDIA" in caught.value.for_people


def test_the_inventory_tells_gpus_apart(fake_gpu):
    """Names, memory, place on the bus, and the instances of one in MIG mode."""
    instances = (MigInstance(uuid="MIG-a"), MigInstance(uuid="MIG-b", gpu_instance=2))
    machine = fake_gpu(
        Scenario(
            gpus=(
                Gpu(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), memory_total_bytes=24 << 30),
                Gpu(uuid="GPU-cut", mig=True, mig_instances=instances),
                Gpu(name="Tesla P100", compute_capability=(6, 0)),
            )
        )
    )
    found = machine.run(INVENTORY)
    assert found["why_none"] is None
    assert [(gpu["name"], gpu["index"], gpu["pci_bus_id"]) for gpu in found["gpus"]] == [
        ("NVIDIA GeForce RTX 4090", 0, "00000000:01:00.0"),
        ("NVIDIA H100 80GB HBM3", 1, "00000000:02:00.0"),
        ("Tesla P100", 2, "00000000:03:00.0"),
    ]
    assert found["gpus"][0]["memory_bytes"] == 24 << 30
    assert [gpu["mig_uuids"] for gpu in found["gpus"]] == [None, ["MIG-a", "MIG-b"], None]


def test_one_lost_gpu_does_not_hide_the_others(fake_gpu):
    """The GPU that answers is there; the lost one is not."""
    lost = Fault(code=pynvml.NVML_ERROR_GPU_IS_LOST, gpu=0)
    found = fake_gpu(Scenario(gpus=(Gpu(), Gpu(uuid="GPU-good")), faults=(lost,))).run(INVENTORY)
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-good"]


def test_a_gpu_that_does_not_tell_its_memory_is_there_all_the_same(fake_gpu):
    """A reading that fails is absent, and costs nothing else."""
    dumb = Fault(function="nvmlDeviceGetMemoryInfo", code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    (gpu,) = fake_gpu(Scenario(faults=(dumb,))).run(INVENTORY)["gpus"]
    assert gpu["memory_bytes"] is None
    assert gpu["name"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(function="nvmlInitWithFlags", code=18), "driver and library differ in version"),
        (Fault(function="nvmlInitWithFlags", code=9), "driver not loaded"),
        (Fault(function="nvmlDeviceGetCount_v2", code=999), "Unknown Error"),
        (Fault(function="nvmlDeviceGetUUID", code=15), "GPU 0 cannot be used: GPU lost"),
    ],
)
def test_why_there_is_no_gpu_is_said(fake_gpu, fault, words):
    """A broken driver is no machine without GPUs: the sentence names what is broken."""
    found = fake_gpu(Scenario(faults=(fault,))).run(INVENTORY)
    assert found["gpus"] == []
    assert words in found["why_none"]


def test_a_driver_without_a_gpu_says_so(fake_gpu):
    """No GPU is an answer too."""
    assert fake_gpu(Scenario(gpus=())).run(INVENTORY)["why_none"] == "the NVIDIA driver sees no GPU"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NOT_FOUND", Trouble.NOTHING_NEW),
        ("NO_DATA", Trouble.NOTHING_NEW),
        ("NOT_SUPPORTED", Trouble.CAPABILITY_OFF),
        ("FUNCTION_NOT_FOUND", Trouble.CAPABILITY_OFF),
        ("NO_PERMISSION", Trouble.CAPABILITY_OFF),
        ("TIMEOUT", Trouble.PASSING),
        ("UNKNOWN", Trouble.PASSING),
        ("GPU_IS_LOST", Trouble.DEVICE_LOST),
        ("RESET_REQUIRED", Trouble.DEVICE_LOST),
        ("UNINITIALIZED", Trouble.DRIVER_LOST),
        ("DRIVER_NOT_LOADED", Trouble.DRIVER_LOST),
        ("LIBRARY_NOT_FOUND", Trouble.DRIVER_LOST),
        ("LIB_RM_VERSION_MISMATCH", Trouble.DRIVER_LOST),
    ],
)
def test_errors_are_sorted_by_what_they_mean(name, kind):
    """The codes are those of NVIDIA's own bindings."""
    assert trouble(getattr(pynvml, f"NVML_ERROR_{name}")) is kind


def test_an_error_nobody_knows_switches_nothing_off():
    """Codes of later drivers are counted and gone past; "success" as an error means nothing new."""
    assert trouble(4711) is Trouble.PASSING
    assert trouble(0) is Trouble.NOTHING_NEW
