"""Promises of what the record of a trial says of its GPUs: no number that is not known, and the reason in words."""

import pytest

from autotune.measure.gpu.timeline import DevicesUsage, DeviceUsage, KernelAttribution, usage_of_trial
from autotune.measure.probe import TrialGpus
from autotune.measure.utilization import Segment
from autotune.records import GpuFigures, GpuRole, Validity
from tests.runs import changed_gpu

T0_S = 1234.567891
WINDOWS = tuple((T0_S + 0.25 * (place + 1), 0.25, busy) for place, busy in enumerate((0.2, 0.4, 0.6, 0.8) * 2))
BUSY = DeviceUsage(
    figures=GpuFigures(
        uuid="GPU-1",
        name="H100",
        utilization=0.5,
        covered_fraction=1.0,
        peak_memory_bytes=5 << 30,
        power_w=300.0,
        energy_j=600.0,
        own_fraction=0.5,
        foreign_fraction=0.0,
    ),
    t0_s=T0_S,
    windows=WINDOWS,
    attribution=KernelAttribution.BY_PROCESS,
)
IDLE = changed_gpu(BUSY, uuid="GPU-2", utilization=0.0, power_w=70.0, peak_memory_bytes=1 << 30, own_fraction=0.0)


def used(*devices, trouble=None, lost=None, **trial):
    """Return the usage of a trial on these devices."""
    gpus = TrialGpus(uuids=tuple(device.figures.uuid for device in devices), **trial)
    return usage_of_trial(DevicesUsage(devices=devices, driver="565", lost=lost), gpus, trouble)


def test_a_clean_trial_has_its_numbers_and_nothing_to_remark():
    """Utilization, memory, power; the driver windows count from the start of the trial's window."""
    use = used(BUSY)
    assert (use.utilization, use.peak_memory_bytes, use.power_w) == (0.5, 5 << 30, 300.0)
    assert (use.spoiled, use.remark) == (None, "")
    assert use.conditions
    assert use.conditions.driver == "565"
    (gpu,) = use.devices
    assert gpu.scored
    assert gpu.busy_windows[0] == (0.25, 0.25, 0.2)
    assert len(Segment.within(0.0, 2.0, gpu.busy_windows).busy) == len(WINDOWS)


def test_a_gpu_that_the_trial_left_alone_is_not_scored():
    """A trainer that sees two GPUs and uses one is judged by that one; both are in the record."""
    use = used(BUSY, IDLE)
    assert use.utilization == 0.5
    assert use.power_w == 300.0
    assert [gpu.scored for gpu in use.devices] == [True, False]


def test_the_gpus_of_data_and_model_are_told_apart_and_the_models_is_scored():
    """With one for each: the model's utilization is the trial's, though the data's GPU is busier."""
    use = used(BUSY, changed_gpu(IDLE, utilization=0.3, own_fraction=0.3), data=0, model=1)
    assert [(gpu.role, gpu.scored) for gpu in use.devices] == [(GpuRole.DATA, False), (GpuRole.MODEL, True)]
    assert use.utilization == 0.3


def test_a_gpu_that_the_trial_says_it_uses_is_scored_also_if_it_idles():
    """Then an idle one is what there is to see."""
    assert used(BUSY, IDLE, reported=True).utilization == 0.25


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lost": "GPU lost"}, "GPU utilization not measured: H100: GPU lost"),
        ({"utilization": None, "windows": ()}, "no driver window lies wholly in this time"),
        ({"covered_fraction": 0.4}, "only 40 % of the window covered"),
    ],
)
def test_what_is_not_known_is_absent_and_says_why(change, why):
    """Never 0 %; what else was measured stays."""
    use = used(changed_gpu(BUSY, **change))
    assert use.utilization is None
    assert why in use.remark
    assert use.power_w == 300.0


def test_kernels_of_others_contaminate_a_trial():
    """From 1 % on; who it was is said, and the speed is kept for people to see."""
    use = used(changed_gpu(BUSY, foreign_fraction=0.2, foreign_pids=(4711,)))
    assert use.spoiled is Validity.CONTAMINATED
    assert use.remark == "H100: other processes (4711) used it 20 % of the time"
    assert use.utilization == 0.5
    assert used(changed_gpu(BUSY, foreign_fraction=0.005)).spoiled is None
    assert used(changed_gpu(BUSY, foreign_fraction=None)).spoiled is None


def test_heat_throttles_a_trial_and_a_power_limit_does_not():
    """Only what would be otherwise another time spoils a trial."""
    hot = changed_gpu(BUSY, throttled_fraction=0.5, clock_reasons={"heat (driver)": 0.5, "power limit": 1.0})
    use = used(hot)
    assert use.spoiled is Validity.THROTTLED
    assert use.remark == "H100: its clocks were throttled 50 % of the time (heat (driver))"
    assert used(changed_gpu(BUSY, throttled_fraction=0.0, clock_reasons={"power limit": 1.0})).spoiled is None
