"""Watch of the occupancy of all GPUs: the driver is asked in a thread, which it may block without harm to who asks."""

import threading

from autotune.clock import Clock
from autotune.gpu.occupancy_reader import GpusSeen, OccupancyReader

_WAIT_S = 0.25  # a reading takes milliseconds
_CLOSE_S = 1.0


class OccupancyWatch:
    """Thread that reads the GPUs when it is asked to, never by itself; see `OccupancyReader`.

    A driver call that hangs does so in that thread, which is then left to the end of the process.

    Args:
        clock: Stamps the readings.
        wait_s: Longest real time that `look` waits for a reading. It waits no more as long as one hangs.
    """

    def __init__(self, clock: Clock, *, wait_s: float = _WAIT_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._reader = OccupancyReader(clock)
        self._changed = threading.Condition()
        self._seen: GpusSeen | None = None
        self._wanted_s: float | None = None  # a reading since then is wanted; None before the first
        self._asked_s: float | None = None  # since when a reading is under way, or about to be; None while none is
        self._is_late = False
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="gpu-occupancy", daemon=True)

    def look(self, *, newest_s: float) -> GpusSeen:
        """Return a reading.

        Args:
            newest_s: Monotonic time: a reading taken since then will do, and no other is made.

        Returns:
            The reading; one of which nothing is known, if the driver does not answer in time.
        """
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            now_s = self._clock.now_s()
            newest_s = min(newest_s, now_s)
            if not self._is_fresh(newest_s):
                self._wanted_s = newest_s
                self._asked_s = now_s if self._asked_s is None else self._asked_s
                self._changed.notify_all()
            if not self._is_late:
                self._is_late = not self._changed.wait_for(lambda: self._is_fresh(newest_s), self._wait_s)
            if self._is_fresh(newest_s):
                assert self._seen is not None
                return self._seen
            waited_s = self._clock.now_s() - (self._asked_s or now_s)
            return GpusSeen(t_s=now_s, why_unknown=f"the NVIDIA driver has not answered for {waited_s:.1f} s")

    def close(self) -> None:
        """End the thread and the session with the driver; may be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _is_fresh(self, newest_s: float) -> bool:
        return self._seen is not None and self._seen.t_s >= newest_s

    def _is_wanted(self) -> bool:
        return self._wanted_s is not None and not self._is_fresh(self._wanted_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._is_wanted())
                if self._closing:
                    break
            seen = self._reader.read()
            with self._changed:
                self._seen, self._is_late = seen, False
                self._asked_s = self._clock.now_s() if self._is_wanted() else None
                self._changed.notify_all()
        self._reader.close()
