"""Watcher of the real trainings of this user on this machine that are to be watched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from autotune.clock import Clock, format_duration
from autotune.daemon.drift import MachineState, PaceChange, TrainingWatch, Turn
from autotune.daemon.machine_watch import MachineWatch
from autotune.files import file_sha256, json_object, open_regular, read_beginning
from autotune.measure.gpu.occupancy import OccupancyWatch
from autotune.measure.host import ProcessTree, io_pressure
from autotune.records import Scalar
from autotune.trial.pace_files import PaceReader, PaceWindow
from autotune.trial.process_identity import this_process
from autotune.trial.trainings import UNSEEN_S, TrainingHeader, code_state, training_names


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
        self._passed: set[str] = set()
        self._look_due_s = clock.now_s()

    @property
    def alive(self) -> tuple[WatchedTraining, ...]:
        """Trainings that go on, as far as the last poll saw."""
        return tuple(self._alive.values())

    def poll(self, machine_state: ReadMachine) -> list[TrainingEvent]:
        """Read what the trainings have reported since the last poll; made for every second or so.

        Args:
            machine_state: Reads what goes on beside a training; called for each at most every 5 s.

        Returns:
            What is to be told; each event once, whatever happens to the daemon.
        """
        now_s = self._clock.now_s()
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + 2.0  # for new trainings
            self._find()
        events: list[TrainingEvent] = []
        for name, training in list(self._alive.items()):
            events += training.poll(machine_state)
            if training.is_over:
                del self._alive[name]
                self._passed.add(name)
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
        for name in training_names(self._folder):
            if name in self._alive or name in self._passed or len(self._alive) >= 256:  # trainings that are looked at
                continue
            header = TrainingHeader.read(self._folder / name)
            if header is None:
                continue
            training = WatchedTraining(self._folder / name, header, self._this, self._clock)
            if training.ended_unseen():
                self._passed.add(name)
            else:
                self._alive[name] = training
        self._passed &= set(training_names(self._folder))


TrainingEvent = dict[str, Any]
"""Event of one training: ``event``, its kind, what it is about, and ``message``, a sentence."""

ReadMachine = Callable[["WatchedTraining"], MachineState]
"""Reader of what goes on beside a training now."""


class Seen:
    """What was seen of a training.

    Attributes:
        samples: Samples so far; None before the first, and where not all windows say how many they have.
        samples_per_s: Speed in the last window; None before the first.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.train_s = 0.0
        self.samples: float | None = None
        self.samples_per_s: float | None = None

    def add(self, window: PaceWindow, samples_per_step: float | None) -> None:
        says_samples = window.samples is not None and (self.samples is not None or self.steps == 0)
        self.samples = (self.samples or 0.0) + (window.samples or 0.0) if says_samples else None
        self.steps += window.steps
        self.train_s += window.train_s
        self.samples_per_s = window.samples_per_s(samples_per_step) or self.samples_per_s


class WatchedTraining:
    """Training that was started to be watched.

    Args:
        this: Identity of this process, see `process.owner.this_process`.

    Attributes:
        is_over: True once its process is gone and that was found.
    """

    def __init__(self, folder: Path, header: TrainingHeader, this: Mapping[str, Scalar], clock: Clock) -> None:
        self.folder = folder
        self.header = header
        self.seen = Seen()
        self.is_over = False
        self._this = this
        self._clock = clock
        self._reader = PaceReader(folder)
        self._watch = TrainingWatch(header.confirmed)
        self._told = _told(folder)
        self._read_due_s = self._heard_s = clock.now_s()
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
            "steps": self.seen.steps,
            "samples": self.seen.samples,
            "samples_per_s": self.seen.samples_per_s,
            "is_slow": self.is_slow,
            "confirmed_samples_per_s": confirmed.samples_per_s if confirmed else None,
            "expected": [confirmed.low, confirmed.high] if confirmed else None,
        }

    def is_gone(self) -> bool:
        """Return whether its process has ended: with this boot or an earlier one of this machine."""
        owner, this = self.header.owner, self._this
        if self.header.is_over(this) or owner.get("host") != this.get("host"):
            return self.header.is_over(this)
        is_unseen = owner.get("pid_namespace") != this.get("pid_namespace")  # in a container of its own
        return is_unseen and self._clock.now_s() - self._heard_s > UNSEEN_S

    def ended_unseen(self) -> bool:
        """Return whether it ended before anybody watched; nothing is told of it then."""
        return not self._told and self.is_gone()

    def poll(self, machine_state: ReadMachine) -> list[TrainingEvent]:
        """Read what was reported since, and return what is to be told."""
        now_s = self._clock.now_s()
        gone = self.is_gone()
        if now_s < self._read_due_s and not gone:
            return []
        self._read_due_s = now_s + 5.0  # what is reported comes every 10 s
        if not gone:
            config_changed, code_changed = self._edited
            reading = machine_state(self)
            self._watch.note(now_s, replace(reading, config_changed=config_changed, code_changed=code_changed))
        events = [event for window in self._reader.poll() for event in self._look_at(window)]
        if gone:
            self.is_over = True
            events += self._say_ended(now_s)
        return events

    def _look_at(self, window: PaceWindow) -> list[TrainingEvent]:
        self._heard_s = self._clock.now_s()
        if window.process not in self._processes:
            if self._processes:  # it was started anew: with what is in the files by now
                self._edited = self._look_for_edits()
            self._processes.add(window.process)
        confirmed = self.header.confirmed
        events = [] if self.seen.steps else self._say_started(window.t1_s)
        self.seen.add(window, confirmed.samples_per_step if confirmed else None)
        for found in self._watch.add(window):
            events += self._say_change(found)
        return events

    def _say_started(self, t_s: float) -> list[TrainingEvent]:
        speed = self.header.confirmed.samples_per_s if self.header.confirmed else None
        unknown = "nothing is confirmed for its values, so it is compared with itself"
        known = f"{speed:.3g} samples/s are confirmed for its values" if speed else unknown
        text = f"trains (process {self.pid}); {known}."
        facts = {"config": self.header.config, "confirmed_samples_per_s": speed}
        return self._say("started", "training_started", t_s, text, facts)

    def _say_change(self, found: PaceChange) -> list[TrainingEvent]:
        facts: dict[str, Any] = {"speed_ratio": found.speed_ratio}
        kind, text = found.turn.value, f"is back to {found.speed_ratio:.0%} of its own speed."
        confirmed = self.header.confirmed
        if found.turn is Turn.SLOW_START and confirmed is not None:
            kind = "slower_than_confirmed"
            text = (
                f"trains at {found.speed_ratio:.0%} of what was measured; interval {confirmed.low * 100:.0f} to "
                f"{confirmed.high:.0%} ({found.samples_per_s:.3g} samples/s, {confirmed.samples_per_s:.3g} in "
                f"{confirmed.trials} trials)."
            )
            facts |= {
                **{"low": confirmed.low, "high": confirmed.high, "samples_per_s": found.samples_per_s},
                **{"confirmed_samples_per_s": confirmed.samples_per_s, "trials": confirmed.trials},
            }
        elif found.turn is Turn.SLOWER:
            for_s = found.t_s - found.since_s
            facts |= {"since_utc": self._utc(found.since_s), "for_s": for_s}
            text = f"trains at {found.speed_ratio:.0%} of its own speed, for {format_duration(for_s)} now."
        if found.turn is not Turn.RECOVERED:
            cause = found.cause
            facts["cause"] = cause and asdict(cause)
            likely = f"Likely cause: {cause.kind.value} ({cause.text})." if cause else ""
            text += f" {likely or 'The cause is not known: nothing that is watched changed with it.'}"
        return self._say(f"{found.turn.value} {found.t_s:.0f}", kind, found.t_s, text, facts)

    def _say_ended(self, t_s: float) -> list[TrainingEvent]:
        slow = ", slower than itself in the end" if self.is_slow else ""
        seen = self.seen
        text = f"has ended after {seen.steps:,} steps in {format_duration(seen.train_s)}{slow}."
        if not seen.steps:
            text = "has ended; none of its steps was seen."
        facts = {"steps": seen.steps, "train_s": seen.train_s, "was_slow": self.is_slow}
        return self._say("ended", "training_ended", t_s, text, facts)

    def _say(self, key: str, kind: str, t_s: float, text: str, facts: Mapping[str, Any]) -> list[TrainingEvent]:
        """Return an event, unless it was told before or the training is only counted; what was told is written down."""
        if key in self._told or not self.header.is_watched:
            return []
        self._told.add(key)
        about = {"training": self.folder.name, "name": self.name, "pid": self.pid, "utc": self._utc(t_s)}
        event = {"format": 1, "event": kind, **about, **facts, "message": f"{self.name} {text}"}
        # On a full disk it may be told again by the next daemon.
        with suppress(OSError), open_regular(self.folder / EVENTS, append=True, create=True) as file:
            file.write(json.dumps({"key": key, **event}).encode() + b"\n")
        return [event]

    def _utc(self, t_s: float) -> str:
        then = self._clock.utc() - timedelta(seconds=max(self._clock.now_s() - t_s, 0.0))
        return then.isoformat(timespec="seconds")

    def _look_for_edits(self) -> tuple[bool, bool]:
        header = self.header
        config = header.config is not None and file_sha256(Path(header.config), 16 << 20) != header.config_sha256
        code = header.code is not None and code_state(header.argv, Path(header.cwd)) != dict(header.code)
        return config, code


def _told(folder: Path) -> set[str]:
    """Return what was told of a training by this daemon or an earlier one."""
    keys = (json_object(line).get("key") for line in read_beginning(folder / EVENTS, 1 << 20).splitlines())
    return {key for key in keys if isinstance(key, str)}


EVENTS = "told.jsonl"
"""File in a training's folder of the events that were told, one a line."""


class MachineReader:
    """Reader of the state of the machine around trainings. To be closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gpus = OccupancyWatch(clock)
        self._watches: dict[str, MachineWatch] = {}

    def __call__(self, training: WatchedTraining) -> MachineState:
        """Return what goes on beside a training now; its own processes are no neighbours."""
        name = training.folder.name
        if name not in self._watches:
            tree = ProcessTree((training.pid,))
            self._watches[name] = MachineWatch(self._clock, gpus=self._gpus, tree=tree)
        reading = self._watches[name].read()
        used = [gpu for gpu in reading.gpus if gpu.has_own]
        memory = [gpu.memory_fraction for gpu in used if gpu.memory_fraction is not None]
        throttled = [float(bool(gpu.throttled_by)) for gpu in used if gpu.throttled_by is not None]
        return MachineState(
            foreign_cores=reading.foreign_cores,
            cores=max(1, round(reading.cores)),
            gpu_neighbour=float(any(gpu.neighbours for gpu in used)) if used else None,
            throttled=max(throttled, default=None),
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
