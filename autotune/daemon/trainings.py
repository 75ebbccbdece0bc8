"""Watcher of all trainings of this user on this machine; their folders are the truth, whoever has made them."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from autotune.clock import Clock, format_duration
from autotune.daemon.drift import Cause, Change, Finding, PaceWindow, Surroundings, TrainingWatch, Turn
from autotune.daemon.idleness import GpuReading
from autotune.daemon.machine_watch import MachineWatch
from autotune.daemon.training_folder import TOLD, TrainingHeader, code_state, is_training
from autotune.files import file_sha256, open_regular, read_beginning
from autotune.measure.gpu.occupancy import OccupancyWatch
from autotune.measure.host import io_pressure
from autotune.measure.processes import ProcessTree
from autotune.records import Scalar
from autotune.trial.deletion import delete_tree
from autotune.trial.owner import is_gone, this_process
from autotune.trial.state_folder import why_not_ours
from autotune.trial.step_files import LineTail

KEPT = 50
"""Ended trainings that are kept."""


class Trainings:
    """Watched trainings of this user on this machine.

    Args:
        folder: The folder of all of them; it need not exist yet.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._this = this_process()
        self._alive: dict[str, WatchedTraining] = {}
        self._ended: set[str] = set()
        self._look_due_s = clock.now_s()

    @property
    def alive(self) -> tuple[WatchedTraining, ...]:
        """Trainings that go on, as far as the last poll saw."""
        return tuple(self._alive.values())

    def poll(self, surroundings: ReadSurroundings) -> list[TrainingEvent]:
        """Read what the trainings have reported since the last poll; made for every second or so.

        Args:
            surroundings: Reads what goes on beside a training; called for each at most every 5 s.

        Returns:
            What is to be told; each event once, whatever happens to the daemon.
        """
        now_s = self._clock.now_s()
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + 2.0  # for new trainings
            self._find()
        events: list[TrainingEvent] = []
        for name, training in list(self._alive.items()):
            events += training.poll(surroundings)
            if training.is_over:
                del self._alive[name]
                self._ended.add(name)
                self._prune()
        return events

    def uses(self, config: Path) -> bool:
        """Return whether a watched training that goes on uses a config; looks for those that began just now."""
        real = os.path.realpath(config)
        self._find()
        return any(
            training.header.config is not None
            and os.path.realpath(training.header.config) == real
            and not training.is_gone()
            for training in self._alive.values()
        )

    def _find(self) -> None:
        """Find new trainings; what ended before anybody watched is only counted."""
        for name in self._names():
            if name in self._alive or name in self._ended or len(self._alive) >= 256:  # trainings that are looked at
                continue
            header = TrainingHeader.read(self._folder / name)
            if header is None:
                continue
            training = WatchedTraining(self._folder / name, header, self._this, self._clock)
            if training.ended_unseen():
                self._ended.add(name)
            else:
                self._alive[name] = training
        self._ended &= set(self._names())
        self._prune()

    def _names(self) -> list[str]:
        """Return the names of the trainings' folders, oldest first; none where somebody else owns their place."""
        if why_not_ours(self._folder, frozenset({os.geteuid()})) is not None:
            return []
        try:
            with os.scandir(self._folder) as entries:
                return sorted(
                    entry.name for entry in entries if is_training(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except OSError:  # it is not there yet
            return []

    def _prune(self) -> None:
        """Delete the oldest ended trainings, and folders that never became one."""
        for name in sorted(self._ended)[:-KEPT]:
            if delete_tree(self._folder / name):
                self._ended.discard(name)
        for path in self._headless():
            delete_tree(path)

    def _headless(self) -> Iterator[Path]:
        now_s = self._clock.utc().timestamp()
        for name in self._names():
            if name in self._alive or name in self._ended:
                continue
            path = self._folder / name
            try:
                status = path.lstat()
            except OSError:
                continue
            # age at which a folder without a header is no training that is just being made
            if stat.S_ISDIR(status.st_mode) and now_s - status.st_mtime > 86400.0:
                yield path


ReadSurroundings = Callable[["WatchedTraining"], Surroundings]
"""Reader of what goes on beside a training now."""


class WatchedTraining:
    """Training that was started to be watched.

    Args:
        this: Identity of this process, see `process.owner.this_process`.

    Attributes:
        samples: Samples that were seen so far; None before the first, and where not all say how many they have.
        samples_per_s: Its speed in the last window; None before the first.
        is_over: True once its process is gone and that was found.
    """

    def __init__(self, folder: Path, header: TrainingHeader, this: Mapping[str, Scalar], clock: Clock) -> None:
        self.folder = folder
        self.header = header
        self.steps = 0
        self.samples: float | None = None
        self.samples_per_s: float | None = None
        self.is_over = False
        self._this = this
        self._clock = clock
        self._reader = PaceReader(folder)
        self._watch = TrainingWatch(header.confirmed)
        self._told = _told(folder)
        self._read_due_s = self._heard_s = clock.now_s()
        self._train_s = 0.0
        self._processes: set[str] = set()
        self._edited = (False, False)

    @property
    def name(self) -> str:
        """Name for people: its config, else its command."""
        return self.header.config or " ".join(self.header.argv)

    @property
    def pid(self) -> int:
        pid = self.header.owner.get("pid")
        return pid if isinstance(pid, int) else 0

    @property
    def is_slow(self) -> bool:
        """True while it is slower than itself."""
        return self._watch.is_slow

    def document(self) -> dict[str, Any]:
        """Return what the daemon's status, its page and its metrics say of it."""
        confirmed = self.header.confirmed
        return {
            "id": self.folder.name,
            "name": self.name,
            "pid": self.pid,
            "started_utc": self.header.started_utc,
            "steps": self.steps,
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
            "is_slow": self.is_slow,
            "confirmed_samples_per_s": confirmed.samples_per_s if confirmed else None,
            "expected": [confirmed.low, confirmed.high] if confirmed else None,
        }

    def is_gone(self) -> bool:
        """Return whether its process has ended: with this boot or an earlier one of this machine."""
        owner, this = self.header.owner, self._this
        if is_gone(owner):
            return True
        if owner.get("host") != this.get("host"):
            return False
        if owner.get("boot_id") != this.get("boot_id"):
            return True
        is_unseen = owner.get("pid_namespace") != this.get("pid_namespace")  # in a container of its own
        # of a process that cannot be looked at, after which it counts as gone
        return is_unseen and self._clock.now_s() - self._heard_s > 900.0

    def ended_unseen(self) -> bool:
        """Return whether it ended before anybody watched; nothing is told of it then."""
        return not self._told and self.is_gone()

    def poll(self, surroundings: ReadSurroundings) -> list[TrainingEvent]:
        """Read what was reported since, and return what is to be told."""
        now_s = self._clock.now_s()
        gone = self.is_gone()
        if now_s < self._read_due_s and not gone:
            return []
        self._read_due_s = now_s + 5.0  # what is reported comes every 10 s
        if not gone:
            config_changed, code_changed = self._edited
            reading = surroundings(self)
            self._watch.note(now_s, replace(reading, config_changed=config_changed, code_changed=code_changed))
        events = [event for window in self._reader.poll() for event in self._look_at(window)]
        if gone:
            self.is_over = True
            ended = TrainingEnded(
                **self._about(now_s), steps=self.steps, train_s=self._train_s, was_slow=self._watch.is_slow
            )
            events += self._once("ended", ended)
        return events

    def _look_at(self, window: PaceWindow) -> list[TrainingEvent]:
        self._heard_s = self._clock.now_s()
        if window.process not in self._processes:
            if self._processes:  # it was started anew: with what is in the files by now
                self._edited = self._look_for_edits()
            self._processes.add(window.process)
        confirmed = self.header.confirmed
        if not self.steps:
            started = TrainingStarted(
                **self._about(window.t1_s),
                config=self.header.config,
                confirmed_samples_per_s=confirmed.samples_per_s if confirmed else None,
            )
            events = self._once("started", started)
        else:
            events = []
        say_samples = window.samples is not None and (self.samples is not None or self.steps == 0)
        self.samples = (self.samples or 0.0) + (window.samples or 0.0) if say_samples else None
        self.steps += window.steps
        self._train_s += window.train_s
        self.samples_per_s = (
            window.samples_per_s(confirmed.samples_per_step if confirmed else None) or self.samples_per_s
        )
        for finding in self._watch.add(window):
            events += self._once(*self._event(finding))
        return events

    def _event(self, finding: Finding) -> tuple[str, TrainingEvent]:
        found, about = finding.found, self._about(finding.found.t_s)
        if isinstance(found, Change):
            key = f"{found.turn.value} {found.t_s:.0f}"
            if found.turn is Turn.RECOVERED:
                return key, Recovered(**about, speed_ratio=found.speed_ratio)
            return key, Slower(
                **about,
                speed_ratio=found.speed_ratio,
                since_utc=self._utc(found.since_s),
                for_s=found.t_s - found.since_s,
                cause=finding.cause,
            )
        return f"slow start {found.t_s:.0f}", SlowerThanConfirmed(
            **about,
            speed_ratio=found.speed_ratio,
            low=found.confirmed.low,
            high=found.confirmed.high,
            samples_per_s=found.samples_per_s,
            confirmed_samples_per_s=found.confirmed.samples_per_s,
            trials=found.confirmed.trials,
            cause=finding.cause,
        )

    def _about(self, t_s: float) -> dict[str, Any]:
        return {"training": self.folder.name, "name": self.name, "pid": self.pid, "utc": self._utc(t_s)}

    def _utc(self, t_s: float) -> str:
        then: datetime = self._clock.utc() - timedelta(seconds=max(self._clock.now_s() - t_s, 0.0))
        return then.isoformat(timespec="seconds")

    def _once(self, key: str, event: TrainingEvent) -> list[TrainingEvent]:
        """Return the event, unless it was told before; what was told is written down."""
        if key in self._told:
            return []
        self._told.add(key)
        line = json.dumps({"key": key, **event.document()}) + "\n"
        try:
            with open_regular(self.folder / TOLD, append=True, create=True) as file:
                file.write(line.encode())
        except OSError:  # a full disk: it may be told again by the next daemon
            pass
        return [event]

    def _look_for_edits(self) -> tuple[bool, bool]:
        header = self.header
        config = header.config is not None and file_sha256(Path(header.config), 16 << 20) != header.config_sha256
        code = header.code is not None and code_state(header.argv, Path(header.cwd)) != dict(header.code)
        return config, code


def _told(folder: Path) -> set[str]:
    """Return what was told of a training by this daemon or an earlier one."""
    keys = set()
    for line in read_beginning(folder / TOLD, 1 << 20).splitlines():
        try:
            key = json.loads(line)["key"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(key, str):
            keys.add(key)
    return keys


FORMAT = 1
_UNKNOWN = "The cause is not known: nothing that is watched changed with it."


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """Event of one training.

    Attributes:
        name: Name for people: its config, else its command.
        utc: Time of the event, an ISO 8601 stamp.
    """

    kind: ClassVar[str] = ""

    training: str
    name: str
    pid: int
    utc: str

    def document(self) -> dict[str, Any]:
        """Return the event as an object for programs."""
        return {"format": FORMAT, "event": self.kind, **_plain(asdict(self)), "message": self.sentence()}

    def sentence(self) -> str:
        raise NotImplementedError


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    cause = fields.get("cause")
    return {**fields, "cause": {**cause, "kind": cause["kind"].value}} if cause else dict(fields)


@dataclass(frozen=True, kw_only=True)
class TrainingStarted(TrainingEvent):
    """A training has made its first steps.

    Attributes:
        config: Real path of its config; None if it has none.
        confirmed_samples_per_s: What its study has confirmed for its values; None if nothing.
    """

    kind: ClassVar[str] = "training_started"

    config: str | None
    confirmed_samples_per_s: float | None

    def sentence(self) -> str:
        known = (
            f"{self.confirmed_samples_per_s:.3g} samples/s are confirmed for its values"
            if self.confirmed_samples_per_s
            else "nothing is confirmed for its values, so it is compared with itself"
        )
        return f"{self.name} trains (process {self.pid}); {known}."


@dataclass(frozen=True, kw_only=True)
class SlowerThanConfirmed(TrainingEvent):
    """A training is slower in its first minutes than what was confirmed for its values on this hardware.

    Attributes:
        low: Lower end of the interval in which that was expected.
        cause: Likely cause; None if unknown.
    """

    kind: ClassVar[str] = "slower_than_confirmed"

    speed_ratio: float
    low: float
    high: float
    samples_per_s: float
    confirmed_samples_per_s: float
    trials: int
    cause: Cause | None

    def sentence(self) -> str:
        return (
            f"{self.name} trains at {self.speed_ratio:.0%} of what was measured; interval {self.low * 100:.0f} to "
            f"{self.high:.0%} ({self.samples_per_s:.3g} samples/s, {self.confirmed_samples_per_s:.3g} in {self.trials} "
            f"trials). {_because(self.cause)}"
        )


@dataclass(frozen=True, kw_only=True)
class Slower(TrainingEvent):
    """A training has become slower than itself.

    Attributes:
        since_utc: Estimated time of the change.
        for_s: How long before the event that was.
        cause: Likely cause; None if unknown.
    """

    kind: ClassVar[str] = "slower"

    speed_ratio: float
    since_utc: str
    for_s: float
    cause: Cause | None

    def sentence(self) -> str:
        return (
            f"{self.name} trains at {self.speed_ratio:.0%} of its own speed, for {format_duration(self.for_s)} now. "
            f"{_because(self.cause)}"
        )


@dataclass(frozen=True, kw_only=True)
class Recovered(TrainingEvent):
    """A training that had become slower is back.

    Attributes:
        speed_ratio: Its speed over its own before it became slower.
    """

    kind: ClassVar[str] = "recovered"

    speed_ratio: float

    def sentence(self) -> str:
        return f"{self.name} is back to {self.speed_ratio:.0%} of its own speed."


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(TrainingEvent):
    """The process of a training is gone."""

    kind: ClassVar[str] = "training_ended"

    steps: int
    train_s: float
    was_slow: bool

    def sentence(self) -> str:
        if not self.steps:
            return f"{self.name} has ended; none of its steps was seen."
        slow = ", slower than itself in the end" if self.was_slow else ""
        return f"{self.name} has ended after {self.steps:,} steps in {format_duration(self.train_s)}{slow}."


def _because(cause: Cause | None) -> str:
    return _UNKNOWN if cause is None else f"Likely cause: {cause.kind.value} ({cause.text})."


VERSION = 1
_NAME = re.compile(r"pace\.([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,10})\.jsonl")
_PROCESSES = 32  # read at most
_FILES = 4 * _PROCESSES
_LINE_BYTES = 4 << 10
_LARGEST = 1e15


class PaceReader:
    """Incremental reader of all ``pace.<pid>.<n>.<part>.jsonl`` of a training's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[str, LineTail]] = {}
        self._foreign: set[str] = set()
        self._processes: set[str] = set()

    def poll(self) -> list[PaceWindow]:
        """Return the windows written since the last poll, in the order of their time."""
        names = self._names()
        for name in self._files.keys() - names:  # an old part that was dropped
            del self._files[name]
        windows = []
        for name in sorted(names, key=_order):
            if name not in self._files and not self._begin(name):
                continue
            process, tail = self._files[name]
            for line in tail.read(1 << 20):  # of each file; four hours of a process are less than half of it
                if (window := self._understand(line, name, process)) is not None:
                    windows.append(window)
        windows.sort(key=lambda window: window.t1_s)
        return windows

    def _begin(self, name: str) -> bool:
        match = _NAME.fullmatch(name)
        process = f"{match[1]}.{match[2]}" if match else ""
        is_known = process in self._processes
        if len(self._files) >= _FILES or not (is_known or len(self._processes) < _PROCESSES):
            return False
        self._processes.add(process)
        self._files[name] = process, LineTail(self._folder / name, longest_bytes=_LINE_BYTES)
        return True

    def _names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._folder) if _NAME.fullmatch(name)}
        except OSError:  # the folder is gone
            return set()

    def _understand(self, line: bytes, name: str, process: str) -> PaceWindow | None:
        """Parse a line; None if it is no window, or the file is of another version or clock."""
        if not line or len(line) > _LINE_BYTES or name in self._foreign:
            return None
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict):
            return None
        if "v" in fields and "k" not in fields:
            if fields["v"] != VERSION or fields.get("clock") != "monotonic":
                self._foreign.add(name)  # what follows would be misread
            return None
        return _window(fields, process) if fields.get("k") == "pace" else None


def _window(fields: Mapping[str, Any], process: str) -> PaceWindow | None:
    t0_s, t1_s = _amount(fields.get("t0_s")), _amount(fields.get("t1_s"))
    steps, train_s = _amount(fields.get("steps")), _amount(fields.get("train_s"))
    # of the monotonic clock, which starts with the machine: thirty years
    if t0_s is None or t1_s is None or steps is None or train_s is None or not t0_s < t1_s < 1e9:
        return None
    wait_s, waits = _amount(fields.get("wait_s")), _amount(fields.get("waits"))
    wait = None
    if wait_s is not None and waits and steps and train_s:
        wait = min((wait_s / waits) / (train_s / steps), 1.0)
    evals, checkpoints = _amount(fields.get("evals")) or 0.0, _amount(fields.get("checkpoints")) or 0.0
    return PaceWindow(
        process=process,
        t0_s=t0_s,
        t1_s=t1_s,
        steps=int(steps),
        train_s=train_s,
        samples=_amount(fields.get("samples")) or None,
        work=_amount(fields.get("work")) or None,
        wait_fraction=wait,
        epochs=int(_amount(fields.get("epochs")) or 0.0),
        pauses=int(evals + checkpoints),
        pause_s=_amount(fields.get("pause_s")) or 0.0,
        cpu_s=_amount(fields.get("cpu_s")),
    )


def _amount(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < _LARGEST else None


def _order(name: str) -> tuple[int, ...]:
    match = _NAME.fullmatch(name)
    return tuple(int(part) for part in match.groups()) if match else ()


class SurroundingsReader:
    """Reader of the surroundings of trainings. To be closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gpus = OccupancyWatch(clock)
        self._watches: dict[str, MachineWatch] = {}

    def __call__(self, training: WatchedTraining) -> Surroundings:
        """Return what goes on beside a training now; its own processes are no neighbours."""
        name = training.folder.name
        if name not in self._watches:
            tree = ProcessTree((training.pid,))
            self._watches[name] = MachineWatch(self._clock, gpus=self._gpus, tree=tree)
        reading = self._watches[name].read()
        used = [gpu for gpu in reading.gpus if gpu.has_own]
        memory = [gpu.memory_fraction for gpu in used if gpu.memory_fraction is not None]
        return Surroundings(
            foreign_cores=reading.foreign_cores,
            cores=max(1, round(reading.cores)),
            gpu_neighbour=float(any(gpu.neighbours for gpu in used)) if used else None,
            throttled=_throttled(used),
            gpu_memory_fraction=max(memory, default=None),
            disk_pressure=io_pressure(),
        )

    def forget(self, alive: Collection[WatchedTraining]) -> None:
        """Drop what is kept of trainings that are over."""
        names = {training.folder.name for training in alive}
        self._watches = {name: watch for name, watch in self._watches.items() if name in names}

    def close(self) -> None:
        """End the session with the driver."""
        self._gpus.close()


def _throttled(gpus: Collection[GpuReading]) -> float | None:
    known = [bool(gpu.throttled_by) for gpu in gpus if gpu.throttled_by is not None]
    return float(any(known)) if known else None
