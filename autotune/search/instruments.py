"""The instruments around one run: opened when its process is known, closed when it has ended."""

from types import TracebackType
from typing import Self

from autotune.clock import Clock
from autotune.measure.gpu_probe import NvmlProbe
from autotune.measure.host import HostProbe
from autotune.measure.probe import GpuUse, HostUse, Probe
from autotune.measure.window import Window, measure_run
from autotune.records import Measurement


class Instruments:
    """Watches the host, and the GPU if there is one, while a run goes on.

    Args:
        host: Watches the run's processes.
        gpu: Watches the GPU; None if there is none.
        gpu_uuid: The GPU that the trainer will use; None if there is none.
    """

    def __init__(
        self, host: Probe[int, HostUse], gpu: Probe[str, GpuUse] | None = None, gpu_uuid: str | None = None
    ) -> None:
        self._host = host
        self._gpu = gpu
        self._gpu_uuid = gpu_uuid
        self._opened = False

    @classmethod
    def of_machine(cls, clock: Clock, gpu_uuid: str | None) -> Self:
        """The instruments of this machine, for one run."""
        return cls(HostProbe(clock), NvmlProbe(clock) if gpu_uuid else None, gpu_uuid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.close()
        if self._gpu:
            self._gpu.close()

    def watch(self, pid: int) -> None:
        """Starts watching, at the first sign of life of the training process; later calls do nothing."""
        if self._opened:
            return
        self._opened = True
        self._host.open(pid)
        if self._gpu and self._gpu_uuid:
            self._gpu.open(self._gpu_uuid)

    def measure(self, window: Window, *, started_s: float, default_samples: float | None, filling: bool) -> Measurement:
        """Condenses a run's window, with what was seen of the machine over the same time."""
        return measure_run(
            window,
            started_s=started_s,
            default_samples=default_samples,
            host=self._host.between(window.t0_s, window.t1_s),
            gpu=self._gpu.between(window.t0_s, window.t1_s) if self._gpu else None,
            filling=filling,
        )
