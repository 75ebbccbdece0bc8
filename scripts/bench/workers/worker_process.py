"""Worker of the benchmark: a process of its own that searches one study, with trials that only wait."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import SystemClock
from autotune.errors import AutotuneError
from autotune.events import Event, TrialEnded, TrialProgress
from autotune.records import TrialRecord
from autotune.search.open import SearchOptions, open_search
from autotune.search.problem import Problem, open_problem
from autotune.trial.termination import take_signals
from scripts.bench.workers.waiting_runner import SECTION, WaitingRunner

_KNOBS = ("a", "b", "c", "d", "e")
_CHOICES = range(1, 9)


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """What one worker is to do.

    Attributes:
        number: Its number among the workers, from 0 on.
        study: Tells one study from another.
        storage: Where it is kept, as typed; None for what the environment says.
        budget_s: Budget of its search.
        folder: Folder of its own, which exists.
    """

    number: int
    study: str
    storage: str | None
    budget_s: float
    folder: Path

    @property
    def announced(self) -> Path:
        """File of the trials that it has announced."""
        return self.folder / "announced.jsonl"

    @property
    def log(self) -> Path:
        """File of what it says."""
        return self.folder / "log"

    def remarks(self) -> list[str]:
        """Return its remarks, each with its number in front."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return [f"{self.number}: {line}" for line in lines if " Remark(" in line]

    def problem(self) -> Problem:
        """Open what is searched: a config with 8 values for each of 5 knobs, which uses no GPU.

        Raises:
            AutotuneError: The storage cannot be used.
        """
        config = self.folder / "config.yaml"
        numbers = "".join(f"    {name}: 4\n" for name in _KNOBS)
        domains = "".join(f"        {SECTION}.{name}: {list(_CHOICES)}\n" for name in _KNOBS)
        config.write_text(
            f"{SECTION}:\n{numbers}study: {self.study}\nautotune:\n"
            f'    command: "{{python}} train.py --config {{config}}"\n'
            f'    env: {{CUDA_VISIBLE_DEVICES: ""}}\n    objective: throughput\n'
            f"    trial: {{min_s: 0.3, min_steps: 5, max_s: 0.5}}\n    knobs:\n{domains}",
            encoding="utf-8",
        )
        return open_problem(config, command=None, state_dir=self.folder / "state", storage=self.storage)


@dataclass(frozen=True, kw_only=True)
class Announced:
    """Trial that a worker has announced as finished.

    Attributes:
        t_s: Time of that, on the machine's monotonic clock.
        key: Names the trial: its point, and a duration that no other has.
        duration_s: Time that it took.
    """

    t_s: float
    key: str
    duration_s: float


def key_of(record: TrialRecord) -> str:
    """Return what names a trial, whatever number it gets."""
    return f"{record.point} {record.duration_s!r}"


def announced_by(job: WorkerJob) -> list[Announced]:
    """Return what a worker has announced so far; a line that is being written is left out."""
    if not job.announced.exists():
        return []
    lines = job.announced.read_bytes().split(b"\n")[:-1]
    return [Announced(**json.loads(line)) for line in lines]


def work(job: WorkerJob) -> None:
    """Search until the budget, or SIGTERM, ends it; the whole life of the process."""
    take_signals()
    os.chdir(job.folder)
    clock = SystemClock()
    started_s = clock.now_s()
    with job.log.open("a", buffering=1, encoding="utf-8") as log, job.announced.open("a", encoding="utf-8") as out:

        def tell(event: Event) -> None:
            if isinstance(event, TrialEnded):
                trial = event.trial
                line = {"t_s": clock.now_s(), "key": key_of(trial), "duration_s": trial.duration_s}
                out.write(json.dumps(line) + "\n")
                out.flush()
            elif not isinstance(event, TrialProgress):
                log.write(f"{clock.now_s():.2f} {event}\n")

        options = SearchOptions(budget_s=job.budget_s, started_s=started_s, seed=job.number)
        try:
            with open_search(job.problem(), options, clock, tell, runner=WaitingRunner(clock, job.number)) as search:
                search.run()
                if search.tuner.ended_by or search.tuner.left_because:
                    log.write(f"ended: {search.tuner.ended_by or search.tuner.left_because}\n")
        except AutotuneError as error:
            log.write(f"{error}\n")
            sys.exit(1)
        except KeyboardInterrupt:
            log.write("told to leave\n")
            sys.exit(143)
