"""Watched trainings: progress, events, and the machine's state around them."""

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
    """Trainings of this user on this machine."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._this = this_process()
        self._alive: dict[str, WatchedTraining] = {}
        self._ended: set[str] = set()

    @property
    def alive(self) -> tuple[WatchedTraining, ...]:
        return tuple(self._alive.values())

    def poll(self, machine_state: ReadMachine) -> list[TrainingEvent]:
        """Return new events, each once across daemon restarts."""
        self._find()
        events: list[TrainingEvent] = []
        for name, training in list(self._alive.items()):
            events += training.poll(machine_state)
            if training.is_over:
                del self._alive[name]
                self._ended.add(name)
        return events

    def uses(self, config: Path) -> bool:
        real = os.path.realpath(config)
        self._find()
        return any(
            training.header.config is not None
            and os.path.realpath(training.header.config) == real
            and not training.is_gone()
            for training in self._alive.values()
        )

    def _find(self) -> None:
        """Add new trainings, without those that ended unwatched."""
        for name in training_names(self._folder):
            if name in self._alive or name in self._ended or len(self._alive) >= 256:
                continue
            header = TrainingHeader.read(self._folder / name)
            if header is None:
                continue
            training = WatchedTraining(self._folder / name, header, self._this, self._clock)
            if training.ended_unseen():
                self._ended.add(name)
            else:
                self._alive[name] = training
        self._ended &= set(training_names(self._folder))


TrainingEvent = dict[str, Any]
"""Event of one training: ``event`` (its kind), facts by name, and ``message`` (a sentence)."""

ReadMachine = Callable[["WatchedTraining"], MachineState]


class TrainingProgress:
    """Progress of a training; `samples` is None if some windows don't report them."""

    def __init__(self) -> None:
        self.steps = 0
        self.train_s = 0.0
        self.samples: float | None = None
        self.samples_per_s: float | None = None  # in the last window

    def add(self, window: PaceWindow, samples_per_step: float | None) -> None:
        has_samples = window.samples is not None and (self.samples is not None or self.steps == 0)
        self.samples = (self.samples or 0.0) + (window.samples or 0.0) if has_samples else None
        self.steps += window.steps
        self.train_s += window.train_s
        self.samples_per_s = window.samples_per_s(samples_per_step) or self.samples_per_s


class WatchedTraining:
    """Training in a folder of `Trainings`; `is_over` once a poll has found that it ended."""

    def __init__(self, folder: Path, header: TrainingHeader, this: Mapping[str, Scalar], clock: Clock) -> None:
        self.folder = folder
        self.header = header
        self.progress = TrainingProgress()
        self.is_over = False
        self._this = this
        self._clock = clock
        self._reader = PaceReader(folder)
        self._watch = TrainingWatch(header.confirmed)
        self._reported = _reported_keys(folder)
        self._read_due_s = self._last_window_s = clock.now_s()
        self._processes: set[str] = set()
        self._edited = (False, False)

    @property
    def name(self) -> str:
        return self.header.config or " ".join(self.header.argv)

    @property
    def pid(self) -> int:
        pid = self.header.owner.get("pid")
        return pid if isinstance(pid, int) else 0

    @property
    def is_slow(self) -> bool:
        return self._watch.is_slow

    def document(self) -> dict[str, Any]:
        confirmed = self.header.confirmed
        return {
            "id": self.folder.name,
            "name": self.name,
            "pid": self.pid,
            "started_utc": self.header.started_utc,
            "steps": self.progress.steps,
            "samples": self.progress.samples,
            "samples_per_s": self.progress.samples_per_s,
            "is_slow": self.is_slow,
            "confirmed_samples_per_s": confirmed.samples_per_s if confirmed else None,
            "expected": [confirmed.low, confirmed.high] if confirmed else None,
        }

    def is_gone(self) -> bool:
        """Return whether its process has ended, in this or an earlier boot."""
        owner, this = self.header.owner, self._this
        if self.header.is_over(this) or owner.get("host") != this.get("host"):
            return self.header.is_over(this)
        is_hidden = owner.get("pid_namespace") != this.get("pid_namespace")  # in another container
        return is_hidden and self._clock.now_s() - self._last_window_s > UNSEEN_S

    def ended_unseen(self) -> bool:
        """Return whether it ended unwatched, and so has no events."""
        return not self._reported and self.is_gone()

    def poll(self, machine_state: ReadMachine) -> list[TrainingEvent]:
        now_s = self._clock.now_s()
        gone = self.is_gone()
        if now_s < self._read_due_s and not gone:
            return []
        self._read_due_s = now_s + 5.0  # trainings report every 10 s
        if not gone:
            config_changed, code_changed = self._edited
            reading = machine_state(self)
            self._watch.note(now_s, replace(reading, config_changed=config_changed, code_changed=code_changed))
        events = [event for window in self._reader.poll() for event in self._add_window(window)]
        if gone:
            self.is_over = True
            events += self._ended_event(now_s)
        return events

    def _add_window(self, window: PaceWindow) -> list[TrainingEvent]:
        self._last_window_s = self._clock.now_s()
        if window.process not in self._processes:
            if self._processes:  # a restart reads the current files
                self._edited = self._find_edits()
            self._processes.add(window.process)
        confirmed = self.header.confirmed
        events = [] if self.progress.steps else self._started_event(window.t1_s)
        self.progress.add(window, confirmed.samples_per_step if confirmed else None)
        for change in self._watch.add(window):
            events += self._change_event(change)
        return events

    def _started_event(self, t_s: float) -> list[TrainingEvent]:
        speed = self.header.confirmed.samples_per_s if self.header.confirmed else None
        unknown = "no confirmed speed for its values, comparing with its own earlier speed"
        known = f"confirmed speed for its values: {speed:.3g} samples/s" if speed else unknown
        text = f"is training (process {self.pid}); {known}."
        facts = {"config": self.header.config, "confirmed_samples_per_s": speed}
        return self._event("started", "training_started", t_s, text, facts)

    def _change_event(self, change: PaceChange) -> list[TrainingEvent]:
        facts: dict[str, Any] = {"speed_ratio": change.speed_ratio}
        percent = f"{100 * change.speed_ratio:.0f} %"
        kind, text = change.turn.value, f"has recovered to {percent} of its usual speed."
        confirmed = self.header.confirmed
        if change.turn is Turn.SLOW_START and confirmed is not None:
            kind = "slower_than_confirmed"
            text = (
                f"trains at {percent} of the measured speed, interval {100 * confirmed.low:.0f}-"
                f"{100 * confirmed.high:.0f} % ({change.samples_per_s:.3g} samples/s; {confirmed.samples_per_s:.3g} in "
                f"{confirmed.trials} trials)."
            )
            facts |= {
                **{"low": confirmed.low, "high": confirmed.high, "samples_per_s": change.samples_per_s},
                **{"confirmed_samples_per_s": confirmed.samples_per_s, "trials": confirmed.trials},
            }
        elif change.turn is Turn.SLOWER:
            for_s = change.t_s - change.since_s
            facts |= {"since_utc": self._utc(change.since_s), "for_s": for_s}
            text = f"has trained at {percent} of its usual speed for {format_duration(for_s)}."
        if change.turn is not Turn.RECOVERED:
            cause = change.cause
            facts["cause"] = cause and asdict(cause)
            likely = f"Likely cause: {cause.kind.value} ({cause.text})." if cause else ""
            text += f" {likely or 'Cause unknown: no watched reading changed with it.'}"
        return self._event(f"{change.turn.value} {change.t_s:.0f}", kind, change.t_s, text, facts)

    def _ended_event(self, t_s: float) -> list[TrainingEvent]:
        slow = ", slower than its usual speed at the end" if self.is_slow else ""
        progress = self.progress
        text = f"has ended after {progress.steps:,} steps in {format_duration(progress.train_s)}{slow}."
        if not progress.steps:
            text = "has ended; no step was recorded."
        facts = {"steps": progress.steps, "train_s": progress.train_s, "was_slow": self.is_slow}
        return self._event("ended", "training_ended", t_s, text, facts)

    def _event(self, key: str, kind: str, t_s: float, text: str, facts: Mapping[str, Any]) -> list[TrainingEvent]:
        """Return and log an event, unless reported before or not watched."""
        if key in self._reported or not self.header.is_watched:
            return []
        self._reported.add(key)
        about = {"training": self.folder.name, "name": self.name, "pid": self.pid, "utc": self._utc(t_s)}
        event = {"format": 1, "event": kind, **about, **facts, "message": f"{self.name} {text}"}
        # With a full disk, a later daemon may report it again.
        with suppress(OSError), open_regular(self.folder / EVENTS, append=True, create=True) as file:
            file.write(json.dumps({"key": key, **event}).encode() + b"\n")
        return [event]

    def _utc(self, t_s: float) -> str:
        then = self._clock.utc() - timedelta(seconds=max(self._clock.now_s() - t_s, 0.0))
        return then.isoformat(timespec="seconds")

    def _find_edits(self) -> tuple[bool, bool]:
        header = self.header
        config = header.config is not None and file_sha256(Path(header.config), 16 << 20) != header.config_sha256
        code = header.code is not None and code_state(header.argv, Path(header.cwd)) != dict(header.code)
        return config, code


def _reported_keys(folder: Path) -> set[str]:
    keys = (json_object(line).get("key") for line in read_beginning(folder / EVENTS, 1 << 20).splitlines())
    return {key for key in keys if isinstance(key, str)}


EVENTS = "told.jsonl"
"""File in a training's folder with the reported events, one per line."""


class MachineReader:
    """Reader of the machine's state around trainings; `close` it when done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gpus = OccupancyWatch(clock)
        self._watches: dict[str, MachineWatch] = {}

    def __call__(self, training: WatchedTraining) -> MachineState:
        """Return the state around a training, without its own processes."""
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
            gpu_neighbour=float(any(gpu.foreign for gpu in used)) if used else None,
            throttled=max(throttled, default=None),
            gpu_memory_fraction=max(memory, default=None),
            disk_pressure=io_pressure(),
        )

    def forget(self, alive: Collection[WatchedTraining]) -> None:
        names = {training.folder.name for training in alive}
        self._watches = {name: watch for name, watch in self._watches.items() if name in names}

    def close(self) -> None:
        self._gpus.close()
