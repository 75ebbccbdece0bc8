"""Simulated probes: they report the parameters of the simulated trial as measurements."""

import math
from collections.abc import Collection
from pathlib import Path

from autotune.measure.probe import GpuProbe, GpuUsage, HostUsage, TrialGpus, TrialProcesses
from autotune.testing.simulated_runner import SimulatedRunner

_READINGS = 40  # of the memory, between two times


class SimulatedHostProbe:
    """Probe of the host usage of a runner's latest trial.

    Args:
        runner: Runner of the trials.
    """

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner

    def open(self, device: TrialProcesses) -> None:
        """See `autotune.measure.probe.Probe.open`."""

    def between(self, t0_s: float, t1_s: float) -> HostUsage | None:
        training = self._runner.training
        if training is None:
            return None
        hangs = math.isinf(training.start_s)
        length_s, grown = t1_s - t0_s, training.memory_growth_bytes_per_s
        memory = tuple(
            (t0_s + length_s * part / _READINGS, int(training.memory_bytes + grown * length_s * part / _READINGS))
            for part in range(_READINGS + 1)
        )
        cores = training.cpu_cores
        if training.phases is not None and (begun := [one for one in self._runner.begun_phases if one[0] <= t0_s]):
            cores = training.phases.cores(begun[-1][1])
        return HostUsage(cpu_cores=0.0 if hangs else cores, peak_memory_bytes=training.memory_bytes, memory=memory)

    def close(self) -> None:
        """See `autotune.measure.probe.Probe.close`."""


class SimulatedGpuProbe:
    """Probe of the GPU usage of a runner's latest trial.

    Args:
        runner: Runner of the trials.
    """

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner

    def open(self, kept: Path) -> None:
        """See `autotune.measure.probe.GpuProbe.open`; there are no raw readings."""

    def lost(self, trial: TrialGpus) -> str | None:
        return None

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        training = self._runner.training
        samples = int((t1_s - t0_s) * 6.0)  # as NVML keeps them
        if training is None or training.gpu_utilization is None or samples == 0:
            return None
        return GpuUsage(utilization=training.gpu_utilization, peak_memory_bytes=training.gpu_memory_bytes)

    def close(self) -> None:
        """See `autotune.measure.probe.GpuProbe.close`."""


_is_a_gpu_probe: type[GpuProbe] = SimulatedGpuProbe
