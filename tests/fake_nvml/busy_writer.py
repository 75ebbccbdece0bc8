"""What a fake trainer tells the fake driver: when its kernels run, and how much GPU memory it holds.

Standard library only, Python 3.9, and one file: it can be copied beside a trainer that knows nothing else.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

RECORD = struct.Struct("=IIqqQ")
"""One record: struct kernel_record of tenants.h."""


class BusyWriter:
    """One process's use of one GPU, appended to ``<folder>/<pid>.busy``.

    The process holds the GPU from the moment this is made until `close` or its end. Readers answer for any past
    stretch of time from what is written by then: write a kernel before it would end, else one who reads in between
    sees the GPU idle. Where that can't be, the scenario's ``publish_delay_s`` makes the driver answer later.

    Args:
        folder: The scenario's tenants folder; made if it is not there.
        gpu: NVML index.
        memory_bytes: GPU memory that the process holds.
        pid: Whose kernels they are; this process if None.
    """

    def __init__(
        self, folder: str | Path, gpu: int = 0, *, memory_bytes: int = 512 << 20, pid: int | None = None
    ) -> None:
        self._gpu = gpu
        self._memory_bytes = memory_bytes
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{pid or os.getpid()}.busy")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.memory(memory_bytes)

    def kernel(self, start_s: float, end_s: float) -> None:
        """A kernel runs from then to then, in seconds of the monotonic clock; the future is allowed."""
        self._append(start_s, end_s, holds=True)

    def memory(self, memory_bytes: int) -> None:
        """The process holds that much GPU memory from now on."""
        self._memory_bytes = memory_bytes
        self._append_now(holds=True)

    def close(self) -> None:
        """Gives the GPU back, as the end of the process would; may be called again."""
        if self._file >= 0:
            self._append_now(holds=False)
            os.close(self._file)
            self._file = -1

    def _append_now(self, *, holds: bool) -> None:
        now_s = time.monotonic()
        self._append(now_s, now_s, holds=holds)

    def _append(self, start_s: float, end_s: float, *, holds: bool) -> None:
        # One short write to a file opened for appending: a reader sees all of a record or none of it.
        memory_bytes = self._memory_bytes if holds else 0
        os.write(self._file, RECORD.pack(self._gpu, holds, round(start_s * 1e9), round(end_s * 1e9), memory_bytes))
