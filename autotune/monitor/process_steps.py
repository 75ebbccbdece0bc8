"""Process that a monitor was asked for: its processes and GPUs, and the pace of its steps."""

from collections.abc import Mapping

from autotune.clock import Clock
from autotune.folders.step_files import StepReader
from autotune.monitor.gpu_watch import MINUTE_S
from autotune.monitor.reading import ShownProcess
from autotune.monitor.step_pace import RecentSteps, StepPace
from autotune.process.watched_process import WatchedProcess

_LOOK_S = 5.0  # between looks for the place where it reports its steps
_NO_STEPS = "reports no steps (trials of autotune do)"
_NO_PACE = "no two steps in the last minute"


class MonitoredProcess:
    """A process, its descendants, and its steps.

    Args:
        pid: Process id.
        clock: The machine's clock.

    Raises:
        AutotuneError: There is no such process, or it has ended.
    """

    def __init__(self, pid: int, clock: Clock) -> None:
        self.pid = pid
        self._clock = clock
        self._process = WatchedProcess(pid, clock)
        self._reader: StepReader | None = None
        self._recent = RecentSteps(MINUTE_S)
        self._pace: StepPace | None = None
        self._devices: tuple[str, ...] = ()
        self._look_s = clock.now_s()
        self.read()

    @property
    def has_ended(self) -> bool:
        """True once it is gone."""
        return self._process.has_ended

    @property
    def has_steps(self) -> bool:
        """True if it has a folder where it reports its steps."""
        return self._reader is not None

    @property
    def step_s(self) -> float | None:
        """Mean time of a step over the last minute; None where it is not known."""
        return None if self._pace is None else 1.0 / self._pace.steps_per_s

    def pids(self) -> frozenset[int]:
        """Return its id and those of its descendants, also of those that have ended a short while ago."""
        return self._process.pids()

    def environ(self) -> Mapping[str, str] | None:
        """Return the environment that it was started with; None where that may not be read."""
        return self._process.environ()

    def says_it_uses(self, uuid: str) -> bool:
        """Return True if it reported a GPU as its own: the only way in a container, where process ids differ."""
        return any(uuid.startswith(device) for device in self._devices)

    def read(self) -> None:
        """Read the steps that it reported since the last time."""
        now_s = self._clock.now_s()
        if self._reader is None and now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            folder = self._process.trial_folder()
            self._reader = None if folder is None else StepReader(folder)
        if self._reader is not None:
            events = self._reader.poll()
            self._recent.add(events)
            self._devices += tuple(device for event in events for device in event.devices)
            self._pace = self._recent.pace(now_s)

    def shown(self) -> ShownProcess:
        """Return the record that is shown of it."""
        pace = self._pace
        if pace is None:
            why = _NO_PACE if self.has_steps else _NO_STEPS
            return ShownProcess(pid=self.pid, ended=self.has_ended, why_no_steps=why)
        return ShownProcess(
            pid=self.pid,
            ended=self.has_ended,
            steps_per_s=pace.steps_per_s,
            samples_per_s=pace.samples_per_s,
            data_wait_fraction=pace.data_wait_fraction,
            silent_s=max(0.0, self._clock.now_s() - pace.newest_s),
        )
