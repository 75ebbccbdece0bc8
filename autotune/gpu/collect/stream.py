"""Reader of the file that a GPU collector writes, with the records that still hold for later readers."""

from pathlib import Path
from typing import BinaryIO

from autotune.files import open_regular
from autotune.gpu.collect.records import (
    CallBlocked,
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    Record,
    StreamStarted,
    of_line,
)

_LONGEST_LINE_BYTES = 1 << 20  # what is longer is none of the collector's


class GpuStream:
    """Records of one collector so far.

    Args:
        path: The file; it need not be there yet.

    Attributes:
        newest: The latest record; None before the first.
        losses: The devices that do not answer any more; under None, the driver.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._torn = b""
        self._standing: dict[tuple[str, str | None, str], tuple[Record, str]] = {}
        self.newest: Record | None = None
        self.losses: dict[str | None, GpuLost] = {}

    def read(self) -> list[tuple[Record, str]]:
        """Return the records written since the last time, each with its line; other lines are left out."""
        if self._file is None:
            try:
                self._file = open_regular(self._path)
            except OSError:  # not there yet; or something else is, and the collector cannot write either
                return []
        *lines, self._torn = (self._torn + self._file.read()).split(b"\n")
        if len(self._torn) > _LONGEST_LINE_BYTES:
            self._torn = b""
        told = []
        for line in lines:
            text = line.decode("utf-8", "replace")
            try:
                record = of_line(text)
            except (ValueError, RecursionError):
                continue
            if record is not None:
                self._note(record, text)
                told.append((record, text))
        return told

    @property
    def standing(self) -> list[tuple[Record, str]]:
        """Records that still hold: devices, absent capabilities, losses, and the last states."""
        return list(self._standing.values())

    @property
    def blocked(self) -> CallBlocked | None:
        """Question to the driver that has no answer; None if there is none."""
        return self.newest if isinstance(self.newest, CallBlocked) else None

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._file is not None:
            self._file.close()

    def _note(self, record: Record, text: str) -> None:
        self.newest = record
        match record:
            case StreamStarted():
                self._stand((record.kind, None, ""), record, text)
            case GpuFound():
                self.losses.pop(record.uuid, None)
                self._standing.pop((GpuLost.kind, record.uuid, ""), None)
                self._stand((record.kind, record.uuid, ""), record, text)
            case GpuLost():
                self.losses[record.uuid] = record
                self._stand((record.kind, record.uuid, ""), record, text)
            case CapabilityOff():
                self._stand((record.kind, record.uuid, record.capability), record, text)
            case GpuState():
                self._stand((record.kind, record.uuid, ""), record, text)
            case _:
                pass

    def _stand(self, key: tuple[str, str | None, str], record: Record, text: str) -> None:
        self._standing.pop(key, None)  # it goes to the end: records are kept in order of time
        self._standing[key] = (record, text)
