"""One watched training: what it reports becomes events, each told once, also by a daemon that was started anew."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.daemon.drift.pace_window import PaceWindow
from autotune.daemon.drift.slowdown import Change, Turn
from autotune.daemon.drift.surroundings import Surroundings
from autotune.daemon.drift.training_watch import Finding, TrainingWatch
from autotune.daemon.trainings.code_state import code_state
from autotune.daemon.trainings.pace_reader import PaceReader
from autotune.daemon.trainings.training_events import (
    Recovered,
    Slower,
    SlowerThanConfirmed,
    TrainingEnded,
    TrainingEvent,
    TrainingStarted,
)
from autotune.daemon.trainings.training_header import TrainingHeader
from autotune.files import file_sha256, open_regular, read_beginning
from autotune.process.owner import is_gone
from autotune.records import Scalar

_TOLD = "told.jsonl"
_TOLD_BYTES = 1 << 20
_CONFIG_BYTES = 16 << 20
_READ_EVERY_S = 5.0  # what is reported comes every 10 s
_SILENT_S = 900.0  # of a process that cannot be looked at, after which it counts as gone

ReadSurroundings = Callable[["WatchedTraining"], Surroundings]
"""Reader of what goes on beside a training now."""


class WatchedTraining:
    """Training that was started to be watched.

    Args:
        folder: Its folder.
        header: What was started.
        this: Identity of this process, see `process.owner.this_process`.
        clock: Source of time.

    Attributes:
        folder: See above.
        header: See above.
        steps: Steps that were seen so far.
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
        """Its process."""
        pid = self.header.owner.get("pid")
        return pid if isinstance(pid, int) else 0

    @property
    def is_slow(self) -> bool:
        """True while it is slower than itself."""
        return self._watch.is_slow

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
        return is_unseen and self._clock.now_s() - self._heard_s > _SILENT_S

    def ended_unseen(self) -> bool:
        """Return whether it ended before anybody watched; nothing is told of it then."""
        return not self._told and self.is_gone()

    def poll(self, surroundings: ReadSurroundings) -> list[TrainingEvent]:
        """Read what was reported since, and return what is to be told."""
        now_s = self._clock.now_s()
        gone = self.is_gone()
        if now_s < self._read_due_s and not gone:
            return []
        self._read_due_s = now_s + _READ_EVERY_S
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
            with open_regular(self.folder / _TOLD, append=True, create=True) as file:
                file.write(line.encode())
        except OSError:  # a full disk: it may be told again by the next daemon
            pass
        return [event]

    def _look_for_edits(self) -> tuple[bool, bool]:
        """Return whether config and code differ from those that the training began with."""
        header = self.header
        config = header.config is not None and file_sha256(Path(header.config), _CONFIG_BYTES) != header.config_sha256
        code = header.code is not None and code_state(header.argv, Path(header.cwd)) != dict(header.code)
        return config, code


def _told(folder: Path) -> set[str]:
    """Return what was told of a training by this daemon or an earlier one."""
    keys = set()
    for line in read_beginning(folder / _TOLD, _TOLD_BYTES).splitlines():
        try:
            key = json.loads(line)["key"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(key, str):
            keys.add(key)
    return keys
