"""GPU collector as a process of its own: ``python -P -m autotune.measure.gpu.process FILE UUID...``.

A driver call can hang for good. Here it hangs in a process that nobody waits for: it can be killed and, if it is stuck
in the kernel, left behind. Its records are appended to the file, see `records`, one write for each line. It ends
when there is no point in going on, when its parent is gone, and when it cannot write.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from autotune.clock import Clock, Poller, SystemClock
from autotune.files import open_regular
from autotune.measure.gpu.device_reader import DRAIN_S, DeviceReader, Questions
from autotune.measure.gpu.driver import FATAL_NAMES, Driver, DriverError, Trouble
from autotune.measure.gpu.samples import FORMAT, Capability, GpuFound, GpuLost, Record, StreamStarted, to_line

_WATCH_S = 1.0


def collect(path: str, uuids: Sequence[str]) -> None:
    """Poll until the driver is lost or the parent is gone.

    Args:
        path: File to append to; made if it is not there.
        uuids: The devices; MIG instances are allowed.

    Raises:
        OSError: The file cannot be written.
    """
    parent, clock = os.getppid(), SystemClock()
    file = open_regular(Path(path), append=True, create=True)

    def tell(record: Record) -> None:
        os.write(file.fileno(), to_line(record).encode("ascii"))

    poller = GpuPoller(uuids, tell, clock)

    def watch() -> float:
        if os.getppid() != parent:
            os._exit(0)  # from this thread: the other one may be stuck in the driver
        with contextlib.suppress(OSError):  # which the other thread will meet too
            poller.tell_if_blocked()
        return _WATCH_S

    Poller(watch, name="gpu-watch").start()
    while (wait_s := poller.step()) is not None:
        clock.wait(wait_s)


class GpuPoller:
    """Poller of some devices, driven by `step`; not thread-safe but for `tell_if_blocked`.

    Args:
        uuids: The devices; MIG instances are allowed.
        tell: Takes the records, in order. It may be called from the thread of `tell_if_blocked` too.
        clock: Stamps and paces the readings.
        left_out: Capabilities that the driver is not asked for.
    """

    def __init__(
        self,
        uuids: Sequence[str],
        tell: Callable[[Record], None],
        clock: Clock,
        *,
        left_out: Collection[Capability] = (),
    ) -> None:
        self._uuids = tuple(uuids)
        self._left_out = tuple(left_out)
        self._tell = tell
        self._clock = clock
        self._driver: Driver | None = None
        self._readers: dict[str, DeviceReader] = {}
        # What to ask next, and what need not be told twice. `GpuAvailability`, which knows a loss from the records made
        # here, is asked in other processes and must not decide on questions to the driver.
        self._look_again_s = dict.fromkeys(self._uuids, -math.inf)
        self._told_lost: set[str] = set()
        self._failing_since_s: dict[str | None, float] = {}
        self._questions = Questions(clock)

    def step(self) -> float | None:
        """Take the readings that are due; return the seconds until the next call, None if there is no point in it.

        It raises nothing that the driver does: each failure is a record.
        """
        try:
            if self._driver is None:
                self._driver = self._open()
            for uuid in self._uuids:
                self._read(self._driver, uuid)
        except DriverError as error:
            if self._driver is None and self._may_pass(None, error):
                return DRAIN_S
            self._tell_lost(None, error)
            return None
        dues_s = [*self._look_again_s.values(), *(reader.due_s for reader in self._readers.values())]
        return max(0.0, min(dues_s) - self._clock.now_s()) if dues_s else None

    def tell_if_blocked(self) -> None:
        """Emit a record of a driver call that does not return; call it from another thread, every second or so."""
        blocked = self._questions.blocked()
        if blocked is not None:
            self._tell(blocked)

    def close(self) -> None:
        """Close the driver; may be called again."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _open(self) -> Driver:
        driver = self._questions.ask(None, "driver", Driver)
        try:
            version = self._questions.ask(None, "driver", driver.version)
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                driver.close()
                raise
            version = ""
        self._tell(StreamStarted(t_s=self._clock.now_s(), v=FORMAT, pid=os.getpid(), driver=version))
        return driver

    def _read(self, driver: Driver, uuid: str) -> None:
        reader = self._readers.get(uuid)
        try:
            if reader is None:
                if self._clock.now_s() < self._look_again_s[uuid]:
                    return
                reader = self._find(driver, uuid)
            if reader is not None and self._clock.now_s() >= reader.due_s:
                reader.read()
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            self._lose(uuid, error)

    def _find(self, driver: Driver, uuid: str) -> DeviceReader:
        device = self._questions.ask(uuid, "device", lambda: driver.device(uuid))
        reader = DeviceReader(uuid, device, self._questions, self._tell, self._clock, left_out=self._left_out)
        name, memory_bytes = reader.name(), reader.memory_total_bytes()
        self._readers[uuid] = reader
        self._look_again_s.pop(uuid)
        self._told_lost.discard(uuid)
        self._failing_since_s.pop(uuid, None)
        self._tell(GpuFound(t_s=self._clock.now_s(), uuid=uuid, name=name or uuid, memory_bytes=memory_bytes))
        return reader

    def _lose(self, uuid: str, error: DriverError) -> None:
        reader = self._readers.pop(uuid, None)
        if reader is not None:
            reader.close()
        elif self._may_pass(uuid, error):
            self._look_again_s[uuid] = self._clock.now_s() + DRAIN_S
            return
        self._look_again_s[uuid] = self._clock.now_s() + 5.0  # until a lost GPU is looked for again
        if uuid not in self._told_lost:
            self._told_lost.add(uuid)
            self._tell_lost(uuid, error)

    def _may_pass(self, uuid: str | None, error: DriverError) -> bool:
        """Return True if a driver or device that fails is worth another try before it is called lost."""
        now_s = self._clock.now_s()
        since_s = self._failing_since_s.setdefault(uuid, now_s)
        # with a driver, or a GPU, that fails in passing when it is first asked
        return error.trouble is Trouble.PASSING and now_s - since_s < 2.0

    def _tell_lost(self, uuid: str | None, error: DriverError) -> None:
        if uuid is None:
            name, why = FATAL_NAMES.get(error.code, "driver fails"), error.for_people
        else:
            unnamed = "GPU not found" if error.trouble is Trouble.NOTHING_NEW else "GPU fails"
            name, why = FATAL_NAMES.get(error.code, unnamed), f"{uuid}: {error.for_people}"
        self._tell(GpuLost(t_s=self._clock.now_s(), uuid=uuid, name=name, why=why))


if __name__ == "__main__":
    try:
        collect(sys.argv[1], sys.argv[2:])
    except OSError as error:
        sys.exit(f"the GPU collector cannot write: {error}")
