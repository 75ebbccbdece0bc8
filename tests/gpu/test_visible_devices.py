"""Promises about which GPUs count: those that CUDA would show to the trial, in its order."""

import pytest

from autotune.measure.gpu.driver import GpuFacts, visible_devices


def gpu(uuid, index=0, *, name="H100", bus=None, mig=None):
    """A GPU at a place of the bus, by default that of its index."""
    return GpuFacts(
        name=name,
        uuid=uuid,
        memory_bytes=1,
        index=index,
        pci_bus_id=f"00000000:{index if bus is None else bus:02X}:00.0",
        mig_uuids=mig,
    )


THREE = (gpu("GPU-aa11", 0), gpu("GPU-aa22", 1), gpu("GPU-bb33", 2))


def visible(setting, gpus=THREE, **environment):
    """The answer for a setting of CUDA_VISIBLE_DEVICES; None: it is not set."""
    return visible_devices(gpus, environment if setting is None else {**environment, "CUDA_VISIBLE_DEVICES": setting})


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, ("GPU-aa11", "GPU-aa22", "GPU-bb33")),
        ("0", ("GPU-aa11",)),
        ("2,0", ("GPU-bb33", "GPU-aa11")),
        (" 2 , 0 ", ("GPU-bb33", "GPU-aa11")),
        ("0,2,-1,1", ("GPU-aa11", "GPU-bb33")),
        ("1gpu,2", ("GPU-aa22", "GPU-bb33")),
        ("GPU-bb33,GPU-aa11", ("GPU-bb33", "GPU-aa11")),
        ("GPU-b,GPU-aa2", ("GPU-bb33", "GPU-aa22")),
    ],
)
def test_a_list_is_read_as_cuda_reads_it(setting, uuids):
    """Numbers, UUIDs and unique beginnings of them, in the order of the list; a negative number ends it."""
    seen = visible(setting)
    assert (seen.uuids, seen.why_none, seen.cut, seen.assumed) == (uuids, None, None, None)


@pytest.mark.parametrize(
    ("setting", "uuids", "words"),
    [
        ("7", (), "names 7, but this machine has 3, numbered 0 to 2"),
        ("1,7,0", ("GPU-aa22",), "names 7"),
        ("GPU-cc", (), "names GPU-cc"),
        ("GPU-bb33,GPU-aa", ("GPU-bb33",), "2 GPUs here have that prefix"),
        ("GPU-bb33,1", ("GPU-bb33",), "names 1"),
        ("0,GPU-bb33", ("GPU-aa11",), "names GPU-bb33"),
        ("NoDevFiles", (), "names NoDevFiles"),
    ],
)
def test_a_gpu_that_is_not_there_is_named(setting, uuids, words):
    """CUDA silently goes on with what stands before it; we say what is missing."""
    seen = visible(setting)
    assert seen.uuids == uuids
    assert words in seen.cut
    assert seen.why_none == (None if uuids else seen.cut)


@pytest.mark.parametrize("setting", ["0,1,0", "GPU-aa11,GPU-aa1"])
def test_a_gpu_named_twice_hides_all(setting):
    """As CUDA does it; the sentence says why."""
    seen = visible(setting)
    assert seen.uuids == ()
    assert "twice" in seen.why_none


def test_numbers_follow_the_bus_and_not_the_driver():
    """The driver's own order is not CUDA's."""
    swapped = (gpu("GPU-late", 0, bus=9), gpu("GPU-early", 1, bus=1))
    assert visible("0", swapped).uuids == ("GPU-early",)


def test_numbers_of_unlike_gpus_are_an_assumption_unless_the_order_is_fixed():
    """CUDA counts the fastest first, and only CUDA knows which that is; a UUID needs no assumption."""
    unlike = (gpu("GPU-old", 0, name="T4"), gpu("GPU-new", 1, name="H100"))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in visible("0", unlike).assumed
    assert visible(None, unlike).assumed is not None
    assert visible("0", unlike, CUDA_DEVICE_ORDER="PCI_BUS_ID").assumed is None
    assert visible("GPU-new", unlike).assumed is None


def test_one_mig_instance_is_all_that_a_process_sees():
    """A GPU in MIG mode is its instances; of these, and of all else, CUDA takes the first."""
    cut = gpu("GPU-cut", 0, mig=("MIG-a", "MIG-b"))
    whole = gpu("GPU-whole", 1)
    assert visible(None, (cut, whole)).uuids == ("MIG-a",)
    assert visible("1", (cut, whole)).uuids == ("MIG-b",)
    assert visible("MIG-b", (cut, whole)).uuids == ("MIG-b",)
    assert visible("MIG-b,MIG-a", (cut, whole)).uuids == ("MIG-b",)
    assert visible("2", (cut, whole)).uuids == ("GPU-whole",)
    assert visible("GPU-cut", (cut, whole)).cut is not None
