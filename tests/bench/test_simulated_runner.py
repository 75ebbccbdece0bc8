"""Simulated trials keep what every runner promises, and vary as real ones do."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from autotune.clock import VirtualClock
from autotune.records import Ending, Stop, TraineeEvent, TrialExit, TrialPlan
from autotune.trial.launch import Runner
from autotune.trial.outcome import ending_of
from scripts.bench.simulated_runner import Drift, SimulatedRunner, Training
from tests.trial.runner_contract import Behaviour, RunnerContract

TRAININGS = {
    Behaviour.ENDS_WELL: Training(steps=5),
    Behaviour.FAILS: Training(steps=5, exit_code=3),
    Behaviour.TRAINS_ON: Training(),
    Behaviour.IS_SILENT: Training(start_s=inf),
}

Steps = Sequence[TraineeEvent]


def _plan(text: str, folder: Path) -> TrialPlan:
    return TrialPlan(trial_id="study/run", folder=folder, argv=("train",), cwd=folder, env={}, config_text=text)


class TestSimulatedRunner(RunnerContract):
    """The contract, in virtual time."""

    clock = VirtualClock()

    @contextmanager
    def opened(self) -> Iterator[Runner]:
        """See `RunnerContract.opened`."""
        yield SimulatedRunner(self.clock, lambda text: TRAININGS[Behaviour(text)])

    def plan(self, behaviour: Behaviour, folder: Path) -> TrialPlan:
        """See `RunnerContract.plan`."""
        return _plan(behaviour.value, folder)


Make = Callable[..., tuple[list[TraineeEvent], TrialExit]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the n-th run of a training, for so many seconds; gives its events and its end."""

    def run(
        training: Training, seconds: float = 100.0, *, seed: int = 0, nth: int = 0, drift: Drift | None = None
    ) -> tuple[list[TraineeEvent], TrialExit]:
        clock = VirtualClock()
        runner = SimulatedRunner(clock, lambda _text: training, seed=seed, drift=drift)
        for _ in range(nth):
            runner.run(_plan("", tmp_path), lambda _events: None, clock.now_s() + 1e-9)
        seen: list[TraineeEvent] = []
        trial_exit = runner.run(_plan("", tmp_path), seen.extend, clock.now_s() + seconds)
        return seen, trial_exit

    return run


def _durations(events: Steps) -> np.ndarray:
    """Times of the steps from the second on."""
    return np.diff([event.t_s for event in events if event.kind == "step"])


def test_one_seed_is_one_run(make: Make) -> None:
    """The same seed gives the same events, another seed or a later trial gives others."""
    training = Training(noise=0.08, work=100.0, work_spread=0.2, crash_chance=0.1, hang_chance=0.1)
    drift = Drift(spread=0.05, throttles_per_h=30.0)
    assert make(training, drift=drift) == make(training, drift=drift)
    assert make(training, seed=1)[0] != make(training)[0]
    assert make(training, nth=1)[0] != make(training)[0]


def test_runs_differ_by_their_spread_in_two_modes(make: Make) -> None:
    """The ln of speed spreads as asked, around 0; the middle between the modes is emptier than both."""
    training = Training(step_s=0.5, noise=0.08, step_noise=0.0)
    levels = np.array([-math.log(_durations(make(training, 5.0, seed=seed)[0])[0] / 0.5) for seed in range(1500)])
    assert levels.std() == pytest.approx(0.08, rel=0.06)
    assert levels.mean() == pytest.approx(0.0, abs=0.006)
    slow, between, fast = (np.mean(np.abs(levels / 0.08 - centre) < 0.2) for centre in (-1.36, -0.45, 0.58))
    assert between < 0.5 * slow
    assert slow < fast


def test_neighbouring_steps_are_alike_as_asked(make: Make) -> None:
    """Steps have the spread and the autocorrelation that was asked for, across the chunks they are made in."""
    training = Training(step_s=0.05, step_noise=0.06, autocorrelation=0.7)
    logs = np.log(_durations(make(training, 600.0)[0]))
    assert logs.std() == pytest.approx(0.06, rel=0.1)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.7, abs=0.05)


def test_noise_leaves_the_mean_alone(make: Make) -> None:
    """Long steps, noise and work of all sizes: on average a step takes what was said."""
    training = Training(
        step_s=0.02, step_noise=0.1, long_steps=0.02, long_step=6.0, work=500.0, work_spread=0.4, work_weight=0.9
    )
    events, _ = make(training, 1000.0)
    assert _durations(events).mean() == pytest.approx(0.02, rel=0.01)
    assert np.mean([event.work for event in events if event.work]) == pytest.approx(500.0, rel=0.01)


def test_the_first_steps_are_slow(make: Make) -> None:
    """The first one compiles, the next ones settle."""
    events, _ = make(Training(step_s=0.1, start_s=2.0, first_step_s=3.0, warm_up=0.8, step_noise=0.0), 10.0)
    start, first = events[0], events[1]
    assert first.t_s - start.t_s == pytest.approx(3.0)
    assert _durations(events)[:3] == pytest.approx([0.18, 0.14, 0.12])


def test_a_cache_fills_in_the_first_epoch(make: Make) -> None:
    """Steps are slow until the first epoch ends; each later epoch begins with a gap."""
    training = Training(step_s=0.1, first_pass_step_s=0.3, first_step_s=0.3, epoch=10, epoch_gap_s=0.5, step_noise=0.0)
    events, _ = make(training, 20.0)
    ends = [index for index, event in enumerate(events) if event.kind == "epoch_end"]
    assert ends[:2] == [11, 22]  # after the header and ten steps
    assert events[11].t_s == events[10].t_s
    assert _durations(events)[:20] == pytest.approx([0.3] * 9 + [0.6] + [0.1] * 9 + [0.6])


def test_steps_say_what_they_waited_for(make: Make) -> None:
    """The wait is the share of the step that was asked for; a trainer that does not say it says None."""
    waits = [event.wait_s for event in make(Training(wait_fraction=0.25), 10.0)[0] if event.kind == "step"][1:]
    assert waits == pytest.approx(list(0.25 * _durations(make(Training(wait_fraction=0.25), 10.0)[0])))
    assert all(event.wait_s is None for event in make(Training(), 10.0)[0])


def test_a_hang_goes_on_without_steps(make: Make) -> None:
    """No step, no end: only the watch or the deadline ends it."""
    events, trial_exit = make(Training(steps=7, hangs=True), 60.0)
    assert sum(event.kind == "step" for event in events) == 7
    assert trial_exit.stop is Stop.DEADLINE
    assert trial_exit.ended_s - trial_exit.started_s == pytest.approx(60.0)


@pytest.mark.services
def test_accidents_happen_as_often_as_asked(make: Make) -> None:
    """Crashes name themselves, hangs are silent, all else goes on; a training that ends sooner is spared."""
    training = Training(step_s=1.0, crash_chance=0.1, hang_chance=0.2)
    trials = [make(training, 1000.0, seed=seed) for seed in range(300)]
    crashed = [trial_exit for events, trial_exit in trials if ending_of(trial_exit, events)[0] is Ending.CRASHED]
    hung = [trial_exit for events, trial_exit in trials if trial_exit.stop and len(events) < 900]
    assert len(crashed) / 300 == pytest.approx(0.1, abs=0.05)
    assert len(hung) / 300 == pytest.approx(0.2, abs=0.07)
    assert all(trial_exit.exit_code == 1 for trial_exit in crashed)
    short = replace(training, steps=0, exit_code=0)
    assert all(make(short, seed=seed)[1].exit_code == 0 for seed in range(30))


@pytest.mark.services
def test_the_machine_drifts_and_throttles(make: Make) -> None:
    """Speed wanders slowly by its spread; throttled, it is lower by its factor, for minutes."""
    steady = Training(step_s=1.0, step_noise=0.0)
    wandering = np.log(_durations(make(steady, 40 * 3600.0, drift=Drift(spread=0.05, memory_s=300.0))[0]))
    assert wandering.std() == pytest.approx(0.05, rel=0.15)
    assert np.corrcoef(wandering[:-60], wandering[60:])[0, 1] == pytest.approx(math.exp(-60 / 300), abs=0.1)
    throttled = _durations(make(steady, 40 * 3600.0, drift=Drift(throttles_per_h=6.0, throttled_s=150.0))[0])
    assert throttled.max() == pytest.approx(1 / 0.85)
    # 6 an hour while not throttled already, 155 s each.
    assert np.mean(throttled > 1.1) == pytest.approx(0.2, abs=0.07)


def test_what_it_took_is_in_the_end(make: Make) -> None:
    """CPU time is reported as for a real process."""
    _, trial_exit = make(Training(cpu_cores=1.5), 10.0)
    assert trial_exit.cpu_s == pytest.approx(15.0)
