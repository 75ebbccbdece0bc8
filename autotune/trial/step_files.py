"""Reader of step files while training processes write them; `autotune.trainee.stream` has the format.

It skips what is malformed: trainers in other languages write their own lines, and a killed one stops in mid-line.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from autotune.files import json_object
from autotune.records import RANK_STEP, Rank, Scalar, TraineeEvent, TrialPhase
from autotune.stage_times import PipelineTimes
from autotune.trial.node_clock import NodeClock
from autotune.trial.rank_steps import RankSteps

VERSION = 1
# Process ids have at most 10 digits; the second number counts the loops of the process.
_NAME = re.compile(r"steps\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_UUID = re.compile(r"[A-Z]{3}-[0-9A-Za-z/-]{1,80}")  # GPU-8932f937-..., MIG-GPU-.../1/0
_LATEST_S = 1e9  # 30 years on the monotonic clock, which starts at boot
_LINE_BYTES = 1 << 14  # the writer's lines are shorter


class StepReader:
    """Incremental reader of all ``steps.<pid>.<n>.jsonl`` of a trial's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[str, _Stream] = {}
        self._ranks = RankSteps()

    def poll(self, now_s: float | None = None) -> list[TraineeEvent]:
        """Return the events written since the last poll, at most about 1 MiB, ordered by time.

        Keeps an incomplete last line, and a process on another node until its clock is aligned.

        Args:
            now_s: Monotonic time; None if no process writes any longer.
        """
        self._find_streams()
        # about ten thousand steps per poll, shared by the streams
        share = max((1 << 20) // max(len(self._streams), 1), _LINE_BYTES)
        merged = self._ranks.merge([event for stream in self._streams.values() for event in stream.poll(share, now_s)])
        return sorted(merged, key=lambda event: event.t_s)

    def _find_streams(self) -> None:
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    # one per training process, and perhaps one per worker
                    if len(self._streams) >= 256:
                        return
                    match = _NAME.fullmatch(entry.name)
                    if match and entry.name not in self._streams:
                        name = f"{int(match[1])}.{int(match[2])}"
                        self._streams[entry.name] = _Stream(self._folder / entry.name, name)
        except OSError:  # the folder is gone: the trainer may have removed it
            return


class _Stream:
    """One step file, and the position up to which it was read."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._lines = LineTail(path, longest_bytes=_LINE_BYTES)
        self._name = name
        self._is_ours = True
        self._is_of_rank = False  # one of several ranks
        self._clock: NodeClock | None = None  # of another node
        self._held: list[TraineeEvent] = []  # until it is aligned

    def poll(self, limit: int, now_s: float | None) -> list[TraineeEvent]:
        lines = self._lines.read(limit) if self._is_ours else []
        found = (self._parse(line, now_s) for line in lines)
        self._held += (event for event in found if event is not None)
        latest_s = self._held[-1].t_s if self._held else None
        offset_s = 0.0 if self._clock is None else self._clock.offset_s(now_s, latest_s)
        if offset_s is None:
            return []
        events, self._held = self._held, []
        if self._clock is None:
            return events
        return [replace(event, t_s=event.t_s + offset_s, offset_s=offset_s) for event in events]

    def _parse(self, line: bytes, now_s: float | None) -> TraineeEvent | None:
        """Parse a line; None without an event, or for another version or clock."""
        if not self._is_ours or len(line) > _LINE_BYTES:
            return None
        fields = json_object(line)
        if "v" in fields and "k" not in fields:
            return self._header(fields)
        kind = fields.get("k")
        t_s = _number(fields.get("t_s"))
        if not isinstance(kind, str) or kind not in _KINDS or t_s is None or not 0 <= t_s < _LATEST_S:
            return None
        if kind == "clock":
            host_s = _number(fields.get("host_s"))
            if self._clock is not None and host_s is not None:
                self._clock.add_response(t_s, host_s, now_s)
            return None
        readers = _KINDS[kind]
        found = {name: readers[name](value) for name, value in fields.items() if name in readers}
        if kind == "rank":
            self._is_of_rank = found.get("rank") is not None
        elif kind == "step" and self._is_of_rank:
            kind = RANK_STEP
        return TraineeEvent(kind=kind, t_s=t_s, stream=self._name, update=fields.get("update") is not False, **found)

    def _header(self, fields: Mapping[str, Any]) -> TraineeEvent | None:
        start_s = _number(fields.get("start_s"))
        clock = fields.get("clock", "monotonic")
        if fields["v"] != VERSION or clock not in ("monotonic", "node"):
            self._is_ours = False  # other lines would be misread
            return None
        if clock == "node" and self._clock is None:
            self._clock = NodeClock(self._path)
        if start_s is None:
            return None
        return TraineeEvent(kind="start", t_s=start_s, stream=self._name, devices=_uuids(fields.get("devices")))


def _stages(value: Any) -> PipelineTimes | None:
    try:
        times = msgspec.convert(value, PipelineTimes)
    except msgspec.ValidationError:
        return None
    parts = (times.passed_s, *vars(times.data).values(), *vars(times.model).values())
    return times if all(0 <= part < _LATEST_S for part in parts) else None


def _rank(value: Any) -> Rank | None:
    try:
        rank = msgspec.convert(value, Rank)
    except msgspec.ValidationError:
        return None
    # shown on screens, like the texts of events
    return replace(rank, node=_text(rank.node) or "") if rank.number < rank.world else None


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    # Escape sequences in what a trainer writes must not reach the user's terminal.
    return "".join(letter for letter in " ".join(value.split()) if letter.isprintable())[:200]


def _uuids(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    return tuple(name for name in names if isinstance(name, str) and _UUID.fullmatch(name))


def _paths(value: Any) -> tuple[str, ...]:
    return tuple(path for path in value if isinstance(path, str)) if isinstance(value, list) else ()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _amount(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _settings(value: Any) -> dict[str, Scalar]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {
        name: _text(setting) if isinstance(setting, str) else setting
        for name, setting in pairs
        if isinstance(setting, bool | int | float | str)
    }


def _count(value: Any) -> int | None:
    number = _amount(value)
    return None if number is None else int(min(number, 10**12))


def _loss(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if value.lower() in ("nan", "inf", "+inf", "-inf", "infinity") else None
    if isinstance(value, float):
        return value  # NaN and infinities included
    return _number(value)


_AMOUNTS: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(("wait_s", "samples", "work", "duration_s"), _amount)
_OWN: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    **{kind: {} for kind in ("step", "loss", "epoch_end", "eval", "checkpoint", "sync", "reporter", "clock")},
    **{kind: {"text": _text} for kind in ("note", "unseen", "unphased")},
    "stages": {"stages": _stages},
    "phase": {"phase": lambda value: next((phase for phase in TrialPhase if phase == value), None)},
    **{kind: {"batches": _count} for kind in ("begin", "load")},
    "in_force": {"settings": _settings},
    "cost": {"cost": _text, "place": _text, "times": _count, "text": _text},
    "files": {"paths": _paths},
    "rank": {"rank": _rank},
    "own": {"times": _count},
}
"""Fields of each kind of event, in addition to the common ones."""

_KINDS = {kind: {**_AMOUNTS, "loss": _loss, **own} for kind, own in _OWN.items()}
"""Fields of each kind of event."""


class LineTail:
    """File of lines, which need not exist yet, and the position up to which it was read.

    Args:
        longest_bytes: Longer lines are replaced by empty ones.
    """

    def __init__(self, path: Path, *, longest_bytes: int) -> None:
        self._path = path
        self._longest_bytes = longest_bytes
        self._offset = 0
        self._torn = b""
        self._skipping = False  # inside a line that is too long

    def read(self, limit_bytes: int) -> list[bytes]:
        """Return the complete lines in the next bytes of the file."""
        try:
            with self._path.open("rb") as file:
                data = os.pread(file.fileno(), limit_bytes, self._offset)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        if self._skipping and lines:
            lines[0] = b""  # the end of the long line
            self._skipping = False
        if len(self._torn) > self._longest_bytes:
            self._skipping = True
        if self._skipping:
            self._torn = b""
        return lines
