"""GPU collector as a process of its own: ``python -P -m autotune.gpu.collect.process FILE UUID...``.

A driver call can hang for good. Here it hangs in a process that nobody waits for: it can be killed and, if it is stuck
in the kernel, left behind. Its records are appended to the file, see `records`, one write for each line. It ends
when there is no point in going on, when its parent is gone, and when it cannot write.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.clock import SystemClock
from autotune.files import open_regular
from autotune.gpu.collect.poller import GpuPoller
from autotune.gpu.collect.records import Record, to_line
from autotune.measure.polling import Poller

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


if __name__ == "__main__":
    try:
        collect(sys.argv[1], sys.argv[2:])
    except OSError as error:
        sys.exit(f"the GPU collector cannot write: {error}")
