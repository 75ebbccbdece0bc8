"""Collector of one search: a process below the guard that polls the GPUs, and the readings of each trial."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import sys
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import autotune
from autotune.clock import Clock
from autotune.environment import inherited_environment
from autotune.files import open_new, open_regular
from autotune.measure.gpu import process as gpu_process
from autotune.measure.gpu.driver import FATAL_NAMES, remedy_of
from autotune.measure.gpu.samples import (
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    Record,
    SilenceLimits,
    StreamStarted,
    of_line,
)
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.usage import usage_of_trial
from autotune.measure.probe import GpuProbe, GpuUsage, TrialGpus
from autotune.trial.guard import Guard, GuardLost, Program

REPLACED = SilenceLimits(
    start_s=30.0,  # a driver without persistence mode takes its time
    record_s=10.0,  # it has ended, or hangs: it writes a record every second
    answer_s=60.0,  # another collector would have to wait for the driver too
)
"""Silences after which a collector is replaced."""

_EXPLAINED = SilenceLimits(start_s=REPLACED.start_s, record_s=3.0, answer_s=3.0)
"""Silences that explain why a trial has no readings."""


class GpuCollector:
    """GPU probe of a search: keeps one collector process, replaces it once, and gives each trial its usage.

    Used in a ``with`` statement, inside that of the guard; see `GpuProbe` for what is done for each trial.

    Args:
        guard: The collector process lives below it. Owned by the caller.
        uuids: The devices that trials may use, at least one.
        files: Files that the collector process writes; they are gone at the end.

    Attributes:
        remarks: Sentences for the user, each said once; to be taken off.
    """

    def __init__(self, guard: Guard, uuids: Sequence[str], files: CollectorFiles, clock: Clock) -> None:
        self._guard = guard
        self._uuids = tuple(uuids)
        self._files = files
        self._clock = clock
        self._begun = 0
        self._was_replaced = False
        self._guard_pid: int | None = None
        self._stream = GpuStream(files.stream(1))
        self._given_up: str | None = None  # why
        self._timeline = GpuTimeline(self._uuids, since_s=clock.now_s())  # of all trials, one after the other
        self._is_open = False
        self._kept: TextIOWrapper | None = None
        self._said: set[str] = set()
        self.remarks: deque[str] = deque()

    def __enter__(self) -> Self:
        self._files.hold()
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._stop_process()
        self._stream.close()
        self._files.remove()

    # One trial

    def open(self, kept: Path) -> None:
        """Open a trial's timeline; see `GpuProbe.open`."""
        self._take()
        self._look_after(trial_begins=True)
        self._timeline.forget(self._clock.now_s())
        self._is_open = True
        with contextlib.suppress(OSError):  # the disk is full: the raw readings are for people only
            self._kept = TextIOWrapper(open_new(kept), encoding="utf-8")
        for line in self._stream.standing:
            self._keep(line)

    def lost(self, trial: TrialGpus) -> str | None:
        """Return the loss of a trial's GPU; see `GpuProbe.lost`. A failure not known to be final does not count."""
        self._take()
        self._look_after()
        losses = self._timeline.availability.losses(self._known(trial))
        loss = next((loss for loss in losses if loss.name in FATAL_NAMES.values()), None)
        if loss is None:
            return None
        self._say_once(f"{loss.why.removesuffix('.')}. {remedy_of(loss.name)}")
        return loss.why

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """Return the usage of a trial's GPUs; see `GpuProbe.between`.

        It waits for 0.6 s at most until the last driver windows are there.
        """
        if not self._is_open:
            return None
        known = self._known(trial)
        if len(known) < len(trial.uuids):
            strangers = [name for name in trial.uuids if not any(uuid.startswith(name) for uuid in self._uuids)]
            what = f"the trainer uses {', '.join(strangers)}, which this search does not see"
            return GpuUsage(remark=f"GPU utilization not measured: {what}")
        if not known:
            return None
        self._take()
        self._catch_up(t1_s)
        usage = self._timeline.between(t0_s, t1_s, own_pids=own_pids, started_s=started_s)
        devices = {device.figures.uuid: device for device in usage.devices}
        trouble = self._given_up or self._why_silent(_EXPLAINED)
        for uuid in known:
            device = devices[uuid]
            if why := device.why_never_measured or (None if device.lost else device.invalid):
                self._say_once(
                    f"GPU utilization not measured: {why}. If that is a matter of rights, ask whoever runs the "
                    "machine; trials are compared by throughput all the same."
                )
        return usage_of_trial(replace(usage, devices=tuple(devices[uuid] for uuid in known)), trial, trouble)

    def close(self) -> None:
        """Close the trial's timeline; see `GpuProbe.close`."""
        self._is_open = False
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self._kept.close()
            self._kept = None

    def _say_once(self, remark: str) -> None:
        if remark not in self._said:
            self._said.add(remark)
            self.remarks.append(remark)

    def _known(self, trial: TrialGpus) -> list[str]:
        """Return the UUIDs of a trial's GPUs; a trial may have said only how they begin."""
        found = (next((uuid for uuid in self._uuids if uuid.startswith(name)), None) for name in trial.uuids)
        return [uuid for uuid in found if uuid is not None]

    def _catch_up(self, t1_s: float) -> None:
        give_up_s = self._clock.now_s() + 0.6  # for what the driver has still to say of a trial's end
        while self._timeline.reached_s < t1_s and self._clock.now_s() < give_up_s:
            if self._given_up or not self._timeline.availability.is_undisturbed:
                return
            self._clock.wait(0.05)
            self._take()

    def _take(self) -> None:
        for record, line in self._stream.read():
            self._timeline.add(record)
            self._keep(line)

    def _keep(self, line: str) -> None:
        if self._kept is not None:
            try:
                self._kept.write(line + "\n")
            except OSError:
                self._kept = None

    # The process

    def _begin(self) -> None:
        self._begun += 1
        self._stream.close()
        path = self._files.stream(self._begun)
        self._stream = GpuStream(path)
        self._timeline.availability.restart(self._clock.now_s())
        # Where autotune itself comes from, and nothing of the user's that could stand in its way (-P).
        env = {**inherited_environment(), "PYTHONPATH": str(Path(autotune.__file__).parents[1])}
        argv = (sys.executable, "-P", "-m", gpu_process.__name__, str(path), *self._uuids)
        with contextlib.suppress(GuardLost):  # it will be silent then
            self._guard.start()
            self._guard_pid = self._guard.pid
            self._guard.start_sidecar(self._name, Program(argv=argv, cwd=Path("/"), env=env), log=self._files.log)

    @property
    def _name(self) -> str:
        return f"gpu collector {self._begun}"

    def _stop_process(self) -> None:
        with contextlib.suppress(GuardLost):
            self._guard.stop_sidecar(self._name)

    def _look_after(self, *, trial_begins: bool = False) -> None:
        if self._given_up:
            return
        if self._guard.pid != self._guard_pid:  # the guard was replaced, and took the collector with it
            self._begin()
            return
        # A trial that has lost its driver has to hear of that first.
        driver = self._timeline.availability.losses() if trial_begins else ()
        why = driver[0].why if driver else self._why_silent(REPLACED)
        if why is None:
            return
        self._stop_process()
        if self._was_replaced:
            self._given_up = why
            self.remarks.append(f"GPU utilization is not measured any more in this search: {why}")
        else:
            self._was_replaced = True
            self._begin()

    def _why_silent(self, limits: SilenceLimits) -> str | None:
        silence = self._timeline.availability.silence(self._clock.now_s(), limits)
        return None if silence is None else silence.why


class CollectorFiles:
    """Files of one search.

    Args:
        path: The first of them; the others are beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: int | None = None

    @property
    def log(self) -> Path:
        """File for the output of collectors, which is empty unless they break."""
        return self._path.with_name(f"{self._path.name}.log")

    def stream(self, number: int) -> Path:
        """Return the file of the first collector, the second, and so on."""
        return self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number}")

    def hold(self) -> None:
        """Create the first file and lock it, so that no other search takes it for an abandoned one."""
        with contextlib.suppress(OSError):  # the disk is full: the collector will be silent, and that is said
            while self._held is None:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file).st_nlink:
                    self._held = file
                else:  # another search found it before it was held
                    os.close(file)

    def remove(self) -> None:
        """Remove all of them; may be called again."""
        for path in self._path.parent.iterdir():
            if path.name.startswith(self._path.name):
                with contextlib.suppress(OSError):  # gone already, or a folder, which is none of ours
                    path.unlink()
        if self._held is not None:
            os.close(self._held)
            self._held = None


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
        if len(self._torn) > 1 << 20:  # what is longer is none of the collector's
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


_is_a_gpu_probe: type[GpuProbe] = GpuCollector


@contextlib.contextmanager
def gpu_collector(uuids: Sequence[str], guard: Guard, stream: Path, clock: Clock) -> Iterator[GpuCollector | None]:
    """Yield the collector of a search; None where its trials use no GPU. See `GpuCollector`.

    Files that the collectors of earlier searches have left beside `stream` are removed.
    """
    remove_abandoned(stream.parent)
    if not uuids:
        yield None
        return
    with GpuCollector(guard, uuids, CollectorFiles(stream), clock) as collector:
        yield collector


_OURS = re.compile(r"(\d{8}T\d{6}Z-[A-Za-z0-9._-]+-\d+\.gpu\.jsonl)(\.\d+|\.log)?")
"""``<search>.gpu.jsonl``, which a search locks, and its further files beside it."""


def remove_abandoned(folder: Path) -> None:
    """Remove the files that earlier searches have left in a folder.

    Only regular files of exactly our names, whose search locks them no more; what cannot be removed stays.
    """
    found: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in folder.iterdir():
        if ours := _OURS.fullmatch(path.name):
            found[folder / ours[1]].append(path)
    for first, paths in found.items():
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            if first in paths:
                file = os.open(first, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the search lives
            for path in paths:
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()
