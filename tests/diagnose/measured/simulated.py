"""Whole diagnoses in virtual time, for tests: real settings, record and statistics around a simulated trainer."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.clock import VirtualClock
from autotune.diagnose.diagnoser import Diagnoser, Measured
from autotune.diagnose.findings import Diagnosis, DiagnosisVerdict
from autotune.diagnose.shares import time_shares
from autotune.diagnose.verdict import verdict_of
from autotune.events import Event, EventBus
from autotune.measure.window import WindowGoal
from autotune.options import SearchOptions
from autotune.records import Purpose, TrialRecord
from autotune.search.parts import SearchParts
from autotune.search.problem import open_problem
from autotune.search.schedule import Budget
from autotune.search.state import SearchState
from autotune.search.trial_maker import TrialMaker
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from autotune.trial.execution import TrialSpec
from autotune.trial.instruments import Instruments
from scripts.bench.simulated_runner import SimulatedHostProbe, SimulatedRunner, Training

CONFIG = """\
data:
    batch_size: 8
    num_workers: 1
    prefetch_buffer_size: 1
training:
    enable_graph_mode: true
autotune:
    command: "{python} train.py {config}"
    trial: {start_timeout_s: 60, min_s: 1, min_steps: 10, max_s: 3}
"""


class Diagnosed:
    """Outcome of a simulated diagnosis.

    Attributes:
        measured: What the trials showed.
        diagnosis: The whole of it.
        trials: All trials on record.
        took_s: Virtual time that it took.
    """

    def __init__(self, measured: Measured, trials: list[TrialRecord], took_s: float) -> None:
        self.measured = measured
        shares = time_shares(measured.results, measured.bounds, ()) if measured.bounds else []
        self.diagnosis = Diagnosis(
            verdict=verdict_of(measured.results, measured.why_not_seen, (), shares),
            results=measured.results,
            shares=tuple(shares),
        )
        self.trials = trials
        self.took_s = took_s

    @property
    def verdict(self) -> DiagnosisVerdict:
        """The verdict."""
        return self.diagnosis.verdict

    def result(self, check: str) -> Any:
        """Return the result of a check."""
        return next(result for result in self.measured.results if result.check == check)


Diagnose = Callable[..., Diagnosed]
Trainer = Callable[[Mapping[str, Any]], Training]


@pytest.fixture
def diagnose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    """Diagnose a config in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clock = VirtualClock()

    def diagnosed(
        trainer: Trainer,
        *,
        budget_s: float = 180.0,
        config: str = CONFIG,
        seed: int = 0,
        busy_s: Callable[[VirtualClock], float | None] = lambda _clock: None,
        told: Callable[[Event], None] = lambda _event: None,
        is_brief: bool = False,
        confirmed: Mapping[str, Any] | None = None,
    ) -> Diagnosed:
        Path("config.yaml").write_text(config)
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
        problem.state.create()
        owner = Owner(about={}, is_gone=lambda _about: False, clock=clock, ends_s=clock.now_s() + budget_s)
        study = StudyRecord(problem.study, problem.storage, owner=owner)
        simulator = SimulatedRunner(clock, lambda text: trainer(yaml.safe_load(text)), seed=seed)
        started_s = clock.now_s()
        parts = SearchParts(
            name="diagnosis",
            options=SearchOptions(seed=seed),
            problem=problem,
            study=study,
            runner=simulator,
            budget=Budget(clock, started_s=started_s, budget_s=budget_s),
            clock=clock,
            events=EventBus([told]),
            instruments=lambda: Instruments(SimulatedHostProbe(simulator)),
        )
        if confirmed is not None:
            trials = TrialMaker(parts, SearchState(parts))
            for values in 3 * [problem.space.baseline, {**problem.space.baseline, **confirmed}]:
                goal = WindowGoal(min_s=1.0, min_steps=10, target_s=3.0)
                trials.make_once(TrialSpec(values=values, purpose=Purpose.CONFIRM, goal=goal))
        measured = Diagnoser(parts, busy_s=lambda: busy_s(clock), cores=2.0, is_brief=is_brief).run()
        return Diagnosed(measured, list(study.records()), clock.now_s() - started_s)

    return diagnosed
