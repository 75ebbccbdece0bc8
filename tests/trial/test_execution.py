"""Execution of trials: what their instruments are asked, when they have to start, steps without samples."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.events import Event, TrialEnded
from autotune.measure.host import HostProbe
from autotune.measure.window import WindowGoal
from autotune.records import Ending, SearchResult, Stop, TraineeEvent, TrialExit, TrialPlan, Verdict
from autotune.search.gpus import request_for
from autotune.search.parts import SearchParts
from autotune.search.problem import open_problem
from autotune.search.schedule import Budget
from autotune.search.tuner import Tuner
from autotune.study.record import Study
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.execution import TrialTools, execute
from autotune.trial.guard import Guard
from autotune.trial.instruments import Instruments
from autotune.trial.launch import ProcessRunner, Watch
from autotune.trial.stop_rule import TrialPolicy
from tests.search.simulated import CONFIG

STEP_S = 0.05


def train(_config: str) -> Training:
    """Simulate a trainer whose steps take the same time for any batch."""
    return Training(step_s=STEP_S, step_noise=0.01, epoch=20)


class BlindRunner:
    """Runner of simulated trials whose steps are seen without their samples."""

    def __init__(self, clock: VirtualClock) -> None:
        self._runner = SimulatedRunner(clock, train)

    def run(self, plan: TrialPlan, watch: Watch, deadline_s: float) -> TrialExit:
        """See `autotune.trial.launch.Runner.run`."""

        def without_samples(events: Sequence[TraineeEvent]) -> Stop | None:
            return watch([replace(event, samples=None) for event in events])

        return self._runner.run(plan, without_samples, deadline_s)


def search(config: str) -> tuple[SearchResult, list[TrialEnded]]:
    """Search the config in the working directory; return the result and the trials."""
    Path("config.yaml").write_text(config)
    clock = VirtualClock()
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    parts = SearchParts(
        name="search",
        seed=0,
        problem=problem,
        study=Study(problem.study, problem.storage),
        runner=BlindRunner(clock),
        budget=Budget(clock, started_s=clock.now_s(), budget_s=300.0),
        clock=clock,
    )
    events: list[Event] = []
    result = Tuner(parts, [events.append]).run()
    return result, [event for event in events if isinstance(event, TrialEnded)]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and no GPU, whatever this machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_samples_that_cannot_be_seen_are_those_of_the_config() -> None:
    """A larger batch in the same time is faster, and the speeds that are shown are samples per second."""
    result, trials = search(CONFIG)
    assert result.verdict is Verdict.BETTER
    assert result.best is not None
    assert result.best.values["data.batch_size"] == 32
    for trial in (ended.trial for ended in trials):
        assert trial.measurement is not None
        size = trial.values["data.batch_size"]
        assert isinstance(size, int)
        assert trial.measurement.samples_per_s == pytest.approx(size / STEP_S, rel=0.1)
    assert not any("but each step held" in caution for caution in result.cautions)


@pytest.mark.parametrize(("own_s", "limit_s"), [(None, 60.0), (20.0, 20.0)])
def test_the_first_step_has_to_come_by_the_limit_of_the_policy_or_of_the_config(
    own_s: float | None, limit_s: float
) -> None:
    """The config says a minute; a search may say less."""
    Path("config.yaml").write_text(CONFIG)
    clock = VirtualClock()
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    goal = WindowGoal(min_s=2.0, min_steps=10, target_s=2.0)
    done = execute(
        problem.trainer,
        request_for(problem, problem.space.baseline, name="one"),
        TrialPolicy(goal=goal, settles=False, deadline_s=clock.now_s() + 600.0, start_timeout_s=own_s),
        TrialTools(
            runner=SimulatedRunner(clock, lambda _config: Training(start_s=math.inf)),
            instruments=Instruments(HostProbe(clock)),
            clock=clock,
        ),
    )
    assert done.ending is Ending.NEVER_STARTED
    assert limit_s <= done.duration_s < limit_s + 1.0


@pytest.mark.parametrize(("works", "ending"), [(True, Ending.STOPPED), (False, Ending.NEVER_STARTED)])
def test_a_real_trainer_may_evaluate_for_long_before_its_first_step_but_not_sleep(works: bool, ending: Ending) -> None:
    """Its CPU time tells the one from the other, once the time is over in which others have started."""
    before = "while time.monotonic() < ready_s:\n    sum(range(1000))\n" if works else "time.sleep(1e6)\n"
    Path("train.py").write_text(
        f"import time\nfrom autotune.trainee import step\nready_s = time.monotonic() + 3.0\n{before}"
        "while True:\n    time.sleep(0.001)\n    step(samples=1)\n"
    )
    Path("config.yaml").write_text(f"batch_size: 4\nautotune: {{command: '{sys.executable} train.py {{config}}'}}\n")
    clock = SystemClock()
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    goal = WindowGoal(min_s=0.1, min_steps=10, target_s=0.1)
    with Guard() as guard:
        done = execute(
            problem.trainer,
            request_for(problem, problem.space.baseline, name="one"),
            TrialPolicy(goal=goal, settles=False, deadline_s=clock.now_s() + 60.0, start_timeout_s=1.5),
            TrialTools(runner=ProcessRunner(guard, clock), instruments=Instruments(HostProbe(clock)), clock=clock),
        )
    assert done.ending is ending
    assert works or done.detail.startswith("idle after")
