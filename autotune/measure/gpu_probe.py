"""The GPU sampler as a `Probe`, in a thread of this process."""

import math

from autotune.clock import Clock, SystemClock
from autotune.measure.gpu_readings import GpuReadings
from autotune.measure.gpu_sampler import GpuSampler
from autotune.measure.probe import GpuUse, Probe
from autotune.measure.sampler import Sampler

_WATCH_S = 1.0
_SILENT_S = 10.0


class NvmlProbe:
    """Watches one GPU; see `Probe`.

    A driver call that hangs is told of in `why_none`, and its thread is left behind.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._device: str | None = None
        self._readings = GpuReadings((), since_s=0.0)
        self._sampler: GpuSampler | None = None
        self._threads: tuple[Sampler, ...] = ()

    @property
    def why_none(self) -> str | None:
        """Why nothing is measured, for people; None while it is."""
        if self._device is None:
            return "the GPU probe was not opened"
        now_s = self._clock.now_s()
        return self._readings.why_lost or self._readings.why_silent(now_s, limit_s=_SILENT_S)

    def open(self, device: str) -> None:
        """Starts watching the GPU of a UUID; if it cannot, `why_none` says so."""
        self._device = device
        self._readings = GpuReadings([device], since_s=self._clock.now_s())
        sampler = self._sampler = GpuSampler([device], self._readings.add, self._clock)
        if sampler.step() is None:  # here, so that what cannot be opened is known at once
            return

        def watch() -> float:
            sampler.tell_if_blocked()
            return _WATCH_S

        self._threads = (Sampler(sampler.step, name="nvml-probe"), Sampler(watch, name="nvml-watch"))
        for thread in self._threads:
            thread.start()

    def between(self, t0_s: float, t1_s: float) -> GpuUse | None:
        """See `Probe.between`; None also once the GPU was lost, and `why_none` says so."""
        if self._device is None:
            return None
        (device,) = self._readings.between(t0_s, t1_s, started_s=-math.inf).devices
        if device.utilization is None or self.why_none:
            return None
        return GpuUse(
            utilization=device.utilization,
            samples=len(device.windows),
            covered_fraction=device.covered_fraction,
            errors=sum(device.failed.values()),
            peak_memory_bytes=device.peak_memory_bytes,
        )

    def close(self) -> None:
        """See `Probe.close`."""
        ended = [thread.stop() for thread in self._threads]
        self._threads = ()
        if self._sampler is not None and all(ended):  # else a driver call hangs, and still uses the library
            self._sampler.close()
        self._sampler = None


_is_a_probe: type[Probe[str, GpuUse]] = NvmlProbe
