"""Readings of a made-up machine, one after the other."""

from dataclasses import replace
from typing import Any

from autotune.daemon.idleness import GpuReading, MachineReading
from autotune.measure.gpu.driver import Occupant

UUID = "GPU-00000000-0000-4000-8000-000000000000"
OTHER = "GPU-00000001-0000-4000-8000-000000000000"
STRANGER = Occupant(computes=True, pid=4711, name="python", memory_bytes=1 << 30)


class Readings:
    """Maker of readings of a machine with 10 cores and one GPU: idle, but for what is said."""

    def __init__(self, **always: Any) -> None:
        self.t_s = 1_000.0
        self._always = always

    def after(self, seconds: float, *, gpu: dict[str, Any] | None = None, **changes: Any) -> MachineReading:
        """Return the reading so many seconds after the last one; `gpu` changes that of the GPU."""
        self.t_s += seconds
        one = replace(GpuReading(t_s=self.t_s, index=0, uuid=UUID), **(gpu or {}))
        reading = MachineReading(t_s=self.t_s, span_s=seconds, cores=10.0, foreign_cores=0.0, gpus=(one,))
        return replace(reading, **self._always, **changes)
