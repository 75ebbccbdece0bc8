"""Promises of the NVML edge: what it says of a machine's GPUs, with and without a driver."""

import pynvml
import pytest

from autotune.measure.gpu.driver import Trouble, trouble
from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Scenario

INVENTORY = "from dataclasses import asdict; from autotune.measure.gpu.driver import gpus; tell(asdict(gpus()))"


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


def test_a_gpu_that_does_not_tell_its_memory_is_there_all_the_same(fake_gpu):
    """A reading that fails is absent, and costs nothing else."""
    dumb = Fault(function="nvmlDeviceGetMemoryInfo", code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    (gpu,) = fake_gpu(Scenario(faults=(dumb,))).run(INVENTORY)["gpus"]
    assert gpu["memory_bytes"] is None
    assert gpu["name"]


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
