"""Instruments of a trial: the utilization of two GPUs while it goes on."""

from collections.abc import Collection
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.measure.host import HostProbe
from autotune.measure.probe import GpuProbe, GpuUsage, TrialGpus
from autotune.records import GpuFigures, GpuMeasurement, GpuRole
from autotune.trial.instruments import Instruments
from tests.trial.test_execution import NotedProbe

UUIDS = ("GPU-0", "GPU-1")


class TwoGpus(NotedProbe):
    """Probe of two GPUs that are busy all the time, one for the data and one for the model."""

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """See `autotune.measure.probe.GpuProbe.between`."""
        super().between(t0_s, t1_s, trial, own_pids=own_pids, started_s=started_s)
        devices = tuple(
            GpuMeasurement(figures=GpuFigures(uuid=uuid, name="H100", utilization=busy), role=role)
            for uuid, busy, role in zip(UUIDS, (0.7, 0.9), GpuRole, strict=True)
        )
        return GpuUsage(devices=devices)


_is_a_gpu_probe: type[GpuProbe] = TwoGpus


def test_the_utilization_of_two_gpus_is_read_every_other_second(tmp_path: Path) -> None:
    """Of the last seconds whose driver windows have arrived; what was read stands until the next reading."""
    probe = TwoGpus()
    instruments = Instruments(HostProbe(VirtualClock()), probe)
    instruments.expect("1", TrialGpus(uuids=UUIDS, data=0, model=1), tmp_path / "samples")
    assert instruments.recent_utilization(103.9, started_s=100.0) == {}
    read = {GpuRole.DATA: 0.7, GpuRole.MODEL: 0.9}
    assert [instruments.recent_utilization(t_s, started_s=100.0) for t_s in (104.0, 105.9, 106.0)] == [read] * 3
    assert probe.asked == [(100.0, 103.0), (102.0, 105.0)]


@pytest.mark.parametrize(("data", "model"), [(None, None), (None, 0)])
def test_one_gpu_is_not_asked_while_a_trial_goes_on(tmp_path: Path, data: int | None, model: int | None) -> None:
    """Nothing is read that nobody sees."""
    probe = TwoGpus()
    instruments = Instruments(HostProbe(VirtualClock()), probe)
    instruments.expect("1", TrialGpus(uuids=UUIDS, data=data, model=model), tmp_path / "samples")
    assert instruments.recent_utilization(110.0, started_s=100.0) == {}
    assert probe.asked == []
