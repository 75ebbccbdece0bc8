"""Trial maker of a search: single trials, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.events import Event, IncumbentChanged, TrialEnded, TrialStarted
from autotune.measure.probe import GpuUsage
from autotune.measure.window import WindowGoal
from autotune.records import Ending, Purpose, Validity
from autotune.search.findings import Findings
from autotune.search.parts import Narrator, SearchParts
from autotune.search.problem import open_problem
from autotune.search.schedule import Budget
from autotune.search.state import SearchState
from autotune.search.trial_maker import MOST_REPEATS, PlannedTrial, TrialMaker
from autotune.study.record import Study
from autotune.testing.simulated_probes import SimulatedHostProbe
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.instruments import Instruments
from tests.search.simulated import CONFIG
from tests.search.test_disturbances import LOST, OTHERS, Shows

BUDGET_S = 600.0
CRASH = Training(steps=0, exit_code=1, stderr="Traceback (most recent call last):\nValueError: no such layer")


@dataclass
class Bench:
    """A trial maker, and what the test decides of its trials: how they train, and what its GPU shows."""

    maker: TrialMaker
    baseline: PlannedTrial
    clock: VirtualClock
    wall_s: float
    training: list[Training]
    events: list[Event]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Make a trial maker in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)

    def make(shown: Callable[[int], GpuUsage | str] = lambda _trial: GpuUsage()) -> Bench:
        clock = VirtualClock()
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
        problem.state.create()
        training = [Training(step_noise=0.0)]
        runner = SimulatedRunner(clock, lambda _text: training[0])
        gpus = Shows(lambda trial, _window_s: shown(trial))
        events: list[Event] = []
        parts = SearchParts(
            name="s",
            seed=0,
            problem=problem,
            study=Study(problem.study, problem.storage),
            runner=runner,
            budget=Budget(clock, started_s=clock.now_s(), budget_s=BUDGET_S),
            clock=clock,
            instruments=lambda: Instruments(SimulatedHostProbe(runner), gpus),
        )
        findings = Findings(problem, clock)
        state = SearchState(problem, parts.study, findings, sampler=parts.sampler, seed=0)
        maker = TrialMaker(parts, state, findings, Narrator([events.append], findings.remarks))
        baseline = PlannedTrial(values=problem.space.baseline, purpose=Purpose.BASELINE)
        return Bench(maker, baseline, clock, parts.budget.wall_s, training, events)

    return make


def test_a_trial_is_told_and_written_down(bench: Callable[..., Bench]) -> None:
    """Its number, its name and its values are those of the record."""
    made = bench()
    record = made.maker.make_once(made.baseline)
    assert (record.number, record.search, record.values) == (0, "s", made.baseline.values)
    assert record.validity is Validity.GOOD
    assert isinstance(made.events[0], TrialStarted)
    ended = made.events[-1]
    assert isinstance(ended, TrialEnded)
    assert ended.trial == record
    assert not any(isinstance(event, IncumbentChanged) for event in made.events)


def test_a_trial_that_warms_up_is_not_compared(bench: Callable[..., Bench]) -> None:
    """Its numbers are those of a cold machine; and what it says is of no interest."""
    made = bench()
    goal = WindowGoal(min_s=0.0, min_steps=5, target_s=0.0)
    record = made.maker.make_once(replace(made.baseline, goal=goal, warms_up=True))
    assert (record.validity, record.comparable, record.detail) == (Validity.COLD, None, "")
    assert made.maker.failures == {}


def test_a_trial_is_stopped_at_its_limit(bench: Callable[..., Bench]) -> None:
    """It is judged by what it has shown; the wall is far away."""
    made = bench()
    goal = WindowGoal(min_s=1.0, min_steps=5, target_s=300.0)
    record = made.maker.make_once(replace(made.baseline, goal=goal, limit_s=20.0))
    assert record.comparable
    assert record.duration_s == pytest.approx(20.0, abs=1.0)


def test_the_first_failure_of_a_kind_is_kept(bench: Callable[..., Bench]) -> None:
    """Later ones say the same."""
    made = bench()
    made.training[0] = CRASH
    first, _second = made.maker.make(made.baseline), made.maker.make(made.baseline)
    failed = made.maker.failures[Ending.CRASHED]
    assert failed.record == first
    assert "no such layer" in failed.stderr_tail


@pytest.mark.parametrize(("left_s", "trials"), [(20.0, 2), (19.99, 1)])
def test_a_disturbed_trial_is_repeated_if_two_fit(bench: Callable[..., Bench], left_s: float, trials: int) -> None:
    """The first trial is expected to take ten seconds. With time for one only, it counts as it is, and that is said."""
    made = bench(lambda trial: GpuUsage() if trial else OTHERS)
    record = made.maker.make(made.baseline, kept_s=made.wall_s - made.clock.now_s() - left_s)
    assert sum(isinstance(event, TrialEnded) for event in made.events) == trials
    assert record.comparable
    assert bool(made.maker.cautions) is (trials == 1)


@pytest.mark.parametrize("lost_trials", [1, 100])
def test_a_gpu_that_is_lost_may_come_back(bench: Callable[..., Bench], lost_trials: int) -> None:
    """After some time; where it does not, no further trial can be made, and the reason is told."""
    made = bench(lambda trial: LOST if trial < lost_trials else GpuUsage())
    record = made.maker.make(made.baseline)
    if lost_trials == 1:
        assert record.comparable
        assert made.maker.gpu_lost is None
    else:
        assert record.ending is Ending.GPU_LOST
        assert made.maker.gpu_lost == f"the GPU does not come back ({LOST})"
        assert sum(isinstance(event, TrialEnded) for event in made.events) == 1 + MOST_REPEATS
