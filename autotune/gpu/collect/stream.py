"""Reader of the file that a GPU collector writes, with the lines that still hold for later readers."""

from pathlib import Path
from typing import BinaryIO

from autotune.files import open_regular
from autotune.gpu.collect.records import (
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
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._torn = b""
        self._standing: dict[tuple[str, str | None, str], str] = {}

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
    def standing(self) -> list[str]:
        """Lines of the records that still hold: devices, absent capabilities, losses, and the last states."""
        return list(self._standing.values())

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._file is not None:
            self._file.close()

    def _note(self, record: Record, text: str) -> None:
        match record:
            case StreamStarted():
                key: tuple[str, str | None, str] = (record.kind, None, "")
            case GpuFound():
                self._standing.pop((GpuLost.kind, record.uuid, ""), None)
                key = (record.kind, record.uuid, "")
            case GpuLost() | GpuState():
                key = (record.kind, record.uuid, "")
            case CapabilityOff():
                key = (record.kind, record.uuid, record.capability)
            case _:
                return
        self._standing.pop(key, None)  # it goes to the end: they are kept in order of time
        self._standing[key] = text
