"""Promises of the NVML edge: what it says of a machine's GPUs, with and without a driver."""

import pynvml
import pytest

from autotune.measure.gpu.driver import Trouble, trouble
from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Scenario

INVENTORY = "from dataclasses import asdict; from autotune.measure.gpu.driver import gpus; tell(asdict(gpus()))"


def test_the_inventory_tells_gpus_apart(fake_gpu):
    """Names, memory, place on the bus, and the instances of one in MIG mode."""
    instances = (MigInstance(uuid="MIG-a"), MigInstance(uuid="MIG-b", gpu_instance=2))
    first = Gpu(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), memory_total_bytes=24 << 30)
    second = Gpu(uuid="GPU-cut", mig=True, mig_instances=instances)
    found = fake_gpu(Scenario(gpus=(first, second, Gpu(name="Tesla P100")))).run(INVENTORY)
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
    ("kind", "names"),
    [
        (Trouble.NOTHING_NEW, "NOT_FOUND NO_DATA"),
        (Trouble.CAPABILITY_OFF, "NOT_SUPPORTED FUNCTION_NOT_FOUND NO_PERMISSION"),
        (Trouble.PASSING, "TIMEOUT UNKNOWN"),
        (Trouble.DEVICE_LOST, "GPU_IS_LOST RESET_REQUIRED"),
        (Trouble.DRIVER_LOST, "UNINITIALIZED DRIVER_NOT_LOADED LIBRARY_NOT_FOUND LIB_RM_VERSION_MISMATCH"),
    ],
)
def test_errors_are_sorted_by_what_they_mean(kind, names):
    """The codes are those of NVIDIA's own bindings."""
    assert {trouble(getattr(pynvml, f"NVML_ERROR_{name}")) for name in names.split()} == {kind}
