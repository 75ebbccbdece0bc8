"""Reader of what goes on beside each training: who else uses its cores and GPUs, and what holds these back."""

from collections.abc import Collection

from autotune.clock import Clock
from autotune.daemon.drift.surroundings import Surroundings
from autotune.daemon.idle.machine_watch import MachineWatch
from autotune.daemon.idle.reading import GpuReading
from autotune.daemon.trainings.watched_training import WatchedTraining
from autotune.gpu.occupancy_watch import OccupancyWatch
from autotune.measure.host import io_pressure
from autotune.process.process_tree import ProcessTree


class SurroundingsReader:
    """Reader of the surroundings of trainings. To be closed.

    Args:
        clock: Stamps the readings.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gpus = OccupancyWatch(clock)
        self._watches: dict[str, MachineWatch] = {}

    def __call__(self, training: WatchedTraining) -> Surroundings:
        """Return what goes on beside a training now; its own processes are no neighbours."""
        name = training.folder.name
        if name not in self._watches:
            tree = ProcessTree((training.pid,))
            self._watches[name] = MachineWatch(self._clock, gpus=self._gpus, tree=tree)
        reading = self._watches[name].read()
        used = [gpu for gpu in reading.gpus if gpu.has_own]
        memory = [gpu.memory_fraction for gpu in used if gpu.memory_fraction is not None]
        return Surroundings(
            foreign_cores=reading.foreign_cores,
            cores=max(1, round(reading.cores)),
            gpu_neighbour=float(any(gpu.neighbours for gpu in used)) if used else None,
            throttled=_throttled(used),
            gpu_memory_fraction=max(memory, default=None),
            disk_pressure=io_pressure(),
        )

    def forget(self, alive: Collection[WatchedTraining]) -> None:
        """Drop what is kept of trainings that are over."""
        names = {training.folder.name for training in alive}
        self._watches = {name: watch for name, watch in self._watches.items() if name in names}

    def close(self) -> None:
        """End the session with the driver."""
        self._gpus.close()


def _throttled(gpus: Collection[GpuReading]) -> float | None:
    known = [bool(gpu.throttled_by) for gpu in gpus if gpu.throttled_by is not None]
    return float(any(known)) if known else None
