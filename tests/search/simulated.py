"""Whole searches in virtual time, for tests: real settings, record and statistics around a simulated trainer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.clock import VirtualClock
from autotune.errors import AutotuneError
from autotune.events import Event, EventBus, PhaseChanged, TrialEnded
from autotune.measure.probe import GpuProbe
from autotune.options import SearchOptions
from autotune.records import Machine, Purpose, SearchResult, TrialRecord
from autotune.sampler.config_sampler import SamplerChoice
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem, limited, open_problem
from autotune.search.schedule import Budget
from autotune.search.tuner import Tuner
from autotune.search.warm_start import WarmStart
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from autotune.trial.instruments import Instruments
from scripts.bench.simulated_runner import SimulatedHostProbe, SimulatedRunner, Training

CONFIG = """\
data:
    batch_size: 8
    num_workers: 1
    cache: none
autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [8, 32]
        data.num_workers: [1, 2]
        data.cache: [none, memory]
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 3}
"""


@dataclass
class Searched:
    """Outcome of a search: its answer or error, its events, its duration."""

    result: SearchResult | None
    error: AutotuneError | None
    took_s: float
    tuner: Tuner
    simulator: SimulatedRunner
    study: StudyRecord
    events: list[Event] = field(default_factory=list)

    @property
    def trials(self) -> list[TrialRecord]:
        """Trials of the search, in order."""
        return [event.trial for event in self.events if isinstance(event, TrialEnded)]

    @property
    def answer(self) -> SearchResult:
        """Answer of the search."""
        assert self.result is not None, self.error
        return self.result

    def of(self, purpose: Purpose) -> list[TrialRecord]:
        """Return its trials with that purpose."""
        return [trial for trial in self.trials if trial.purpose is purpose]

    def said(self) -> str:
        """Reasons of the search for going from one phase to the next."""
        return "\n".join(event.why for event in self.events if isinstance(event, PhaseChanged))


Search = Callable[..., Searched]

Trainer = Callable[[Mapping[str, Any]], Training]


def plain(config: Mapping[str, Any]) -> Training:
    """Train so that a larger batch pays well, a second worker a little, and the cache not at all."""
    data = config["data"]
    step_s = (0.02 + 0.001 * data["batch_size"]) / (1.1 if data["num_workers"] == 2 else 1.0)
    return Training(samples=data["batch_size"], step_s=step_s, noise=0.03, epoch=20)


def search_simulated(
    problem: Problem,
    trainer: Trainer,
    *,
    clock: VirtualClock,
    name: str,
    budget_s: float,
    seed: int = 0,
    sampler: SamplerChoice = None,
    validate_s: float | None = None,
    race_s: float | None = 0.0,
    same_training: bool = False,
    warm_start: WarmStart | None = None,
    gpus: Callable[[SimulatedRunner], GpuProbe | None] = lambda _simulator: None,
    told: Callable[[Event], None] = lambda _event: None,
    joins: Callable[[StudyRecord, Problem, VirtualClock], None] = lambda _study, _problem, _clock: None,
) -> Searched:
    """Search once, in the working directory; the study stays open."""
    options = SearchOptions(
        seed=seed, sampler=sampler, validate_s=validate_s, race_s=race_s, same_training=same_training
    )
    problem = limited(problem, options) if same_training else problem
    owner = Owner(about={}, is_gone=lambda _about: False, clock=clock, ends_s=clock.now_s() + budget_s)
    study = StudyRecord(problem.study, problem.storage, owner=owner)
    joins(study, problem, clock)
    simulator = SimulatedRunner(clock, lambda text: trainer(yaml.load(text, yaml.CSafeLoader)), seed=seed)
    probe, events = gpus(simulator), list[Event]()
    started_s = clock.now_s()
    parts = SearchParts(
        name=name,
        options=options,
        problem=problem,
        study=study,
        runner=simulator,
        budget=Budget(clock, started_s=started_s, budget_s=budget_s),
        clock=clock,
        events=EventBus([events.append, told]),
        warm_start=warm_start or WarmStart(),
        instruments=lambda: Instruments(SimulatedHostProbe(simulator), probe),
    )
    tuner = Tuner(parts)
    result: SearchResult | None = None
    error: AutotuneError | None = None
    try:
        result = tuner.run()
    except AutotuneError as caught:
        error = caught
    return Searched(result, error, clock.now_s() - started_s, tuner, simulator, study, events)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    """Search the config in a folder of its own, each time with the same record."""
    with searches_in(tmp_path) as searched:
        yield searched


@contextmanager
def searches_in(folder: Path) -> Iterator[Search]:
    """Search the config in that folder, each time with the same record."""
    clock = VirtualClock()
    names = (f"search-{number}" for number in range(100))

    def searched(
        trainer: Trainer, *, config: str = CONFIG, machine: Machine | None = None, fresh: bool = False, **options: Any
    ) -> Searched:
        Path("config.yaml").write_text(config)
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None, machine=machine)
        problem.state.create()
        if fresh:
            problem.place.journal.unlink()
        return search_simulated(problem, trainer, clock=clock, name=next(names), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # To read the versions of all packages takes 0.1 s.
        patch.setattr("autotune.search.problem.framework_versions", lambda *_: {})
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # simulated trainers use no GPU, whatever this machine has
        yield searched
