"""Machine of a search, and the GPUs of it that trials see."""

import pytest

from autotune.config.schema import ENV
from autotune.measure.gpu.driver import GpuFacts
from autotune.search.problem import this_machine, visible_gpus

FOUND = tuple(
    GpuFacts(
        name=f"H{index}", uuid=f"GPU-{index}", memory_bytes=80 << 30, index=index, pci_bus_id=f"0000:0{index}:00.0"
    )
    for index in range(3)
)
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that chooses no GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_without_a_gpu_it_is_said_why() -> None:
    """Whatever the environment chooses."""
    seen = visible_gpus((), {"CUDA_VISIBLE_DEVICES": "0"}, "no driver")
    assert (seen.uuids, seen.why_none) == ((), "no driver")


def test_variables_of_trials_take_precedence_over_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial is started with them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert visible_gpus(FOUND, ORDER, None).uuids == ("GPU-2",)
    assert visible_gpus(FOUND, {**ORDER, "CUDA_VISIBLE_DEVICES": "1"}, None).uuids == ("GPU-1",)


def test_a_machine_has_the_gpus_of_all_its_trials_once_each_the_baselines_first() -> None:
    """A knob that chooses GPUs makes others seen too."""
    environment = {**ORDER, "CUDA_VISIBLE_DEVICES": "1"}
    domains = {f"{ENV}CUDA_VISIBLE_DEVICES": (1, "0,1"), "data.batch_size": (8, 16)}
    assert [gpu.uuid for gpu in this_machine(FOUND, environment, {}).gpus] == ["GPU-1"]
    assert [gpu.uuid for gpu in this_machine(FOUND, environment, domains).gpus] == ["GPU-1", "GPU-0"]
    assert this_machine((), environment, domains).gpus == ()
