"""Files of a daemon with a search, a queue, advice and trainings, written by what writes them in a daemon."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.clock import VirtualClock
from autotune.daemon.advice import Recommendations
from autotune.daemon.drift import MachineState
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import EntryState, Queue, QueueEntry, SearchAnswerSummary
from autotune.daemon.trainings import Trainings, WatchedTraining
from autotune.daemon.web.state import PageState, Sample, View
from autotune.events import (
    Event,
    IncumbentChanged,
    KnobsRated,
    PhaseChanged,
    Remark,
    SearchStarted,
    TrialEnded,
    TrialStarted,
)
from autotune.records import Ending, Purpose, Ratio, Scalar, TrialRecord, Validity, Values
from autotune.search.open import EventLog
from autotune.space.space import point_name
from autotune.trial.process_identity import this_process
from autotune.trial.trainings import ConfirmedSpeed, TrainingHeader
from tests.daemon.advised import advice
from tests.daemon.queue.entries import entry
from tests.runs import measured

GIB = 1 << 30
CONFIRMED = ConfirmedSpeed(samples_per_s=100.0, low=0.93, high=1.07, trials=8)
HEADER = TrainingHeader(
    argv=("python", "train.py"), cwd="/", owner=this_process(), started_utc="2030-01-01T00:00:00+00:00"
)
BASELINE: dict[str, Scalar] = {"data.batch_size": 16, "data.num_workers": 1, "training.xla": False}


def quiet(_training: object) -> MachineState:
    """Return what the machine does while nothing else runs."""
    return MachineState(foreign_cores=0.1, cores=4)


class Searching:
    """Search that writes its events.

    Args:
        path: Its event file.
        clock: Stamps them.
        study: Name of its study.
    """

    def __init__(self, path: Path, clock: VirtualClock, study: str = "config-1") -> None:
        self.path, self.clock, self.study = path, clock, study
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = EventLog(path, clock)
        self._best = 1.0

    def tell(self, event: Event) -> None:
        """Write an event."""
        self._log(event)

    def begin(self, trials_found: int = 0) -> None:
        """Write the start."""
        self.tell(Remark(text="no utilization is measured on MIG instances"))
        about = {"search": self.path.name, "study": self.study, "config": "/project/config.yaml", "baseline": BASELINE}
        measures, size = "effective utilization and steadiness", {"points": 480, "budget_s": 1800.0}
        self.tell(SearchStarted(trials_found=trials_found, measures=measures, **about, **size))  # type: ignore[arg-type]

    def trial(
        self, number: int, ratio: float | None, purpose: Purpose = Purpose.EXPLORE, *, takes_s: float = 10.0,
        pair: int | None = None, stderr_tail: str = "", detail: str = "", **changes: Scalar,
    ) -> None:  # fmt: skip
        """Write the start and the end of a trial of that speed over today's; None for one that failed."""
        values: Values = {**BASELINE, **changes}
        self.tell(TrialStarted(number=number, purpose=purpose, changes=changes, pair=pair))
        self.clock.wait(takes_s)
        found = ratio and replace(measured(400.0 * ratio), gpu_utilization=min(1.0, 0.3 * ratio))
        trial = TrialRecord(
            **{"number": number, "search": self.path.name, "point": point_name(values), "values": values},
            **{"purpose": purpose, "pair": pair, "duration_s": takes_s, "detail": detail, "measurement": found},
            ending=Ending.STOPPED if found else Ending.OUT_OF_GPU_MEMORY,
            validity=Validity.GOOD if found else Validity.UNMEASURED,
            ended_utc=self.clock.utc().isoformat(timespec="seconds"),
        )
        self.tell(TrialEnded(trial=trial, changes=changes, speedup=ratio, stderr_tail=stderr_tail))
        if ratio is not None and ratio > self._best and purpose is Purpose.EXPLORE:
            self._best = ratio
            self.tell(IncumbentChanged(values=values, changes=changes, speedup=ratio))


class Training:
    """Watched training that writes its pace.

    Args:
        folder: Its folder.
        clock: The machine's clock, which goes on while it trains.
        header: What was started.
    """

    def __init__(self, folder: Path, clock: VirtualClock, header: TrainingHeader) -> None:
        folder.mkdir(parents=True)
        header.write(folder)
        self.clock = clock
        self.file = folder / "pace.4711.0.0.jsonl"
        self.file.write_text('{"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 900.0, "source": "observer"}\n')
        self._rng = random.Random(0)

    def trains(self, windows: int, speed: float = 100.0) -> None:
        """Train for so many times 10 s."""
        for _ in range(windows):
            self.window(speed)

    def window(self, samples_per_s: float) -> None:
        """Train for 10 s."""
        t0_s = self.clock.now_s()
        self.clock.wait(10.0)
        line: dict[str, Any] = {"k": "pace", "t0_s": t0_s, "t1_s": t0_s + 10.0, "steps": 50, "train_s": 10.0}
        line |= {"samples": 10.0 * samples_per_s * self._rng.gauss(1.0, 0.02), "wait_s": 1.0, "waits": 50}
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")


class BusyDaemon:
    """Daemon of which there is something to see in each section of the page.

    Args:
        home: Its folders.
        project: Folder of the config that it searches.
    """

    def __init__(self, home: DaemonHome, project: Path) -> None:
        self.home, self.project = home, project
        self.clock = VirtualClock()
        self.queue = Queue(home.queue, self.clock)
        self.recommendations = Recommendations(home.advice)
        self.page = PageState(home, self.clock)
        self.trainings = Trainings(home.trainings, self.clock)
        owner = this_process()
        project.mkdir(parents=True, exist_ok=True)
        (project / "config.yaml").write_text("data: {batch_size: 16}\n")
        self.events = (
            project / ".autotune" / "searches" / f"20300101T000000Z-{owner['host']}-{owner['pid']}.events.jsonl"
        )
        self.searching = Searching(self.events, self.clock)
        self._owner = owner

    def add(self, **changes: Any) -> QueueEntry:
        """Add an entry to the queue."""
        return self.queue.add(lambda number, _entries: entry(number, **changes))

    def add_running(self, **changes: Any) -> QueueEntry:
        """Add the entry whose search runs."""
        config = str(self.project / "config.yaml")
        fields = {"config": config, "state": EntryState.RUNNING, "owner": self._owner, "running_s": 390.0}
        return self.add(**{**fields, "budget_s": 1800.0, **changes})

    def fill(self) -> None:
        """Do something of everything: an hour on two GPUs with a training, a search with trials of all kinds."""
        self.recommendations.keep(advice())
        given = self.recommendations.all()[0].id
        summary = SearchAnswerSummary(verdict="better", ratio=(1.5, 1.2, 1.8), advice=given)
        self.add(state=EntryState.DONE, used_s=580.0, answer=summary, note="confirmed by 4 interleaved pairs")
        self.add_running()
        self.add(budget_s=3600.0)
        self.add(state=EntryState.PAUSED)
        self.add(state=EntryState.FAILED, note="config.yaml: there is no such layer")
        header = replace(HEADER, config="/project/tts/config.yaml", confirmed=CONFIRMED)
        training = Training(self.home.trainings / "20300101T000000Z-1-0123abcd", self.clock, header)
        for place in range(400):
            training.window(100.0 if place < 330 else 70.0)
            beside = MachineState(foreign_cores=0.1 if place < 330 else 2.5, cores=4)
            if place % 5 == 4:
                self.trainings.poll(lambda _training, beside=beside: beside)
            self.note(0.55 + 0.4 * math.sin(place / 9) ** 2)
        self.search()
        self.note(0.97)

    def search(self) -> None:
        """Write the events of a search that confirms its finalist now."""
        searching, rng = self.searching, random.Random(1)
        searching.begin()
        searching.tell(PhaseChanged(phase="exploring", why="the initial design"))
        searching.trial(0, 1.0, Purpose.BASELINE)
        searching.trial(1, 1.01, Purpose.BASELINE)
        numbers = iter(range(2, 100))
        for workers in (2, 4, 8):
            for batch in (16, 32, 64):
                gain = workers**0.2 * (batch / 16) ** 0.15 * rng.gauss(1.0, 0.03)
                searching.trial(next(numbers), gain, **{"data.num_workers": workers, "data.batch_size": batch})
        oom = "ResourceExhaustedError: OOM when allocating tensor"
        said = {"detail": oom, "stderr_tail": f"Traceback (most recent call last):\n  {oom}\n"}
        searching.trial(next(numbers), None, **said, **{"data.batch_size": 4096})
        searching.trial(next(numbers), 1.83, Purpose.REPEAT, **{"data.num_workers": 8, "data.batch_size": 64})
        searching.tell(PhaseChanged(phase="confirming", why="nothing left can pay"))
        kept: dict[str, Scalar] = {**BASELINE, "data.num_workers": 8, "data.batch_size": 64}
        as_fast, slower = Ratio(ratio=1.0, low=0.9, high=1.1), Ratio(ratio=0.7, low=0.6, high=0.8)
        changed = {path: [(BASELINE[path], slower), (kept[path], as_fast)] for path in list(kept)[:2]}
        searching.tell(KnobsRated(around=kept, effects={"training.xla": [(False, as_fast)], **changed}))
        for pair in range(3):
            searching.trial(next(numbers), 0.99, Purpose.CONFIRM, pair=pair)
            best: dict[str, Scalar] = {"data.num_workers": 8, "data.batch_size": 64}
            searching.trial(next(numbers), 1.8 * rng.gauss(1.0, 0.03), Purpose.CONFIRM, pair=pair, **best)
        number = next(numbers)
        searching.tell(TrialStarted(number=number, purpose=Purpose.CONFIRM, changes={}, pair=3))

    def note(self, utilization: float | None, **changes: Any) -> None:
        """Tell the page what the daemon knows now."""
        self.page.note(self.view(utilization, **changes))

    def view(
        self,
        utilization: float | None = 0.5,
        *,
        gpus: Sequence[Sample] | None = None,
        why_no_gpus: str | None = None,
        **changes: Any,
    ) -> View:
        """Return what the daemon knows now, with these changes of its status."""
        entries = self.queue.entries()
        running = next((one for one in entries if one.state is EntryState.RUNNING), None)
        waiting = [one for one in entries if one.state is EntryState.WAITING]
        status: dict[str, Any] = {
            "autotune": "0.1.0",
            "pid": 4242,
            "started_utc": "2030-01-01T00:00:00+00:00",
            "hosted": "a tmux session: stops with the session or the machine",
            "machine": "running a search" if running else "idle",
            "running": running.number if running else None,
            "reasons": {one.id: "one search at a time: after entry 2" for one in waiting},
            "trainings": [training.document() for training in self.alive],
            "trouble": None,
        }
        known = self.gpus(utilization) if gpus is None else tuple(gpus)
        return View(status={**status, **changes}, gpus=known, why_no_gpus=why_no_gpus)

    @property
    def alive(self) -> Sequence[WatchedTraining]:
        """Trainings that go on."""
        return self.trainings.alive

    def gpus(self, utilization: float | None) -> tuple[Sample, ...]:
        """Return the readings of two GPUs: one of which all is known, one of which little is."""
        training = next((one.pid for one in self.alive), 1)
        power_w = None if utilization is None else 150.0 + 500.0 * utilization
        memory = {"memory_used_bytes": round((90 + 30 * (utilization or 0.0)) * GIB), "memory_total_bytes": 141 * GIB}
        first = {
            **{"utilization": utilization, "power_w": power_w, "power_limit_w": 700.0, **memory},
            **{"sm_clock_mhz": 1980, "temperature_c": 61, "throttled_by": []},
            "users": [
                {"pid": 5151, "name": "python", "memory_bytes": 12 * GIB, "is_own": True},
                {"pid": training, "name": "python", "memory_bytes": 80 * GIB, "is_own": False},
                {"pid": 777, "name": "ollama", "memory_bytes": None, "is_own": False},
            ],
        }
        second = {**dict.fromkeys(first), "memory_total_bytes": None, "users": []}
        known = {"t_s": self.clock.now_s(), "energy_j": None, "why_unknown": None}
        one = {"index": 0, "uuid": "GPU-5f1c", "name": "NVIDIA H200"}
        other = {"index": 1, "uuid": "MIG-77", "name": "NVIDIA A30 MIG 1g.6gb"}
        return {**known, **one, **first}, {**known, **other, **second}
