"""Load of others on the CPU: for how long it has been above a limit."""

from autotune.daemon.idle.reading import MachineReading

_ROUNDING_S = 1e-6
_RECENT_S = 2.0  # over which the load is averaged that people are told


class ForeignLoad:
    """Time for which others have used more than a limit, less the time since then for which they have used less.

    So one who gets the CPU in turns with us is somebody as well, only a little later, and a job of cron that comes
    again and again is not.

    Args:
        limit_cores: The limit.
        loud_s: Time from which on that is somebody.
    """

    def __init__(self, *, limit_cores: float, loud_s: float) -> None:
        self._limit_cores = limit_cores
        self._least_s = loud_s
        self._evidence_s = 0.0
        self._used_s = self._over_s = 0.0  # CPU time of others, and the time in which they used it
        self.is_loud = False
        """True if the last reading was above the limit."""

    def update(self, reading: MachineReading) -> None:
        """Take a reading; one without a load changes nothing."""
        cores, span_s = reading.foreign_cores, reading.span_s
        if cores is None:
            return
        self.is_loud = cores >= self._limit_cores
        self._evidence_s += span_s if self.is_loud else -span_s
        self._evidence_s = min(self._evidence_s, self._least_s)
        if self._evidence_s <= 0.0:
            self._evidence_s = self._used_s = self._over_s = 0.0
            return
        if self._over_s > _RECENT_S:
            self._used_s, self._over_s = self._used_s * _RECENT_S / self._over_s, _RECENT_S
        self._used_s += cores * span_s
        self._over_s += span_s

    @property
    def is_somebody(self) -> bool:
        """True if it is loud now, and has been for long enough."""
        return self.is_loud and self._evidence_s >= self._least_s - _ROUNDING_S

    @property
    def cores(self) -> float:
        """Cores that others have used on average since that began, or lately."""
        return self._used_s / self._over_s if self._over_s else 0.0
