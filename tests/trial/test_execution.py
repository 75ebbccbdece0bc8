"""Execution of trials: what their instruments are asked, when they have to start, steps without samples."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.measure.host import HostProbe
from autotune.measure.probe import GpuUsage, HostUsage, TrialGpus
from autotune.measure.window import WindowGoal
from autotune.records import (
    Ending,
    GpuFigures,
    GpuMeasurement,
    Purpose,
    Verdict,
)
from autotune.search.gpus import complete
from autotune.search.problem import open_problem
from autotune.trial.execution import Execution, TrialSpec, execute
from autotune.trial.instruments import Instruments
from autotune.trial.stop_rule import StopLimits
from scripts.bench.simulated_runner import SimulatedHostProbe, SimulatedRunner, Training
from tests.search.simulated import CONFIG, Search

STEP_S = 0.05


def train(_config: object) -> Training:
    """Simulate a trainer whose steps take the same time for any batch, and do not tell their samples."""
    return Training(samples=None, step_s=STEP_S, step_noise=0.01, epoch=20)  # type: ignore[arg-type]


def test_samples_that_cannot_be_seen_are_those_of_the_config(search: Search) -> None:
    """A larger batch in the same time is faster, and the speeds that are shown are samples per second."""
    searched = search(train, budget_s=300.0)
    assert searched.answer.verdict is Verdict.BETTER
    assert searched.answer.best.values["data.batch_size"] == 32
    for trial in searched.trials:
        size = trial.values["data.batch_size"]
        assert trial.measurement.samples_per_s == pytest.approx(size / STEP_S, rel=0.1)
    assert not any("but each step had" in caution for caution in searched.answer.cautions)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and no GPU, whatever this machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def executed(clock: VirtualClock, instruments: Instruments, runner: SimulatedRunner, **policy: Any) -> Execution:
    """Execute one trial of today's config in the working directory."""
    Path("config.yaml").write_text(CONFIG)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    goal = WindowGoal(min_s=2.0, min_steps=10, target_s=2.0)
    return execute(
        problem.trainer,
        complete(
            problem,
            TrialSpec(values=problem.space.baseline, purpose=Purpose.EXPLORE),
            name="one",
            limits=StopLimits(goal=goal, settles=False, deadline_s=clock.now_s() + 600.0, **policy),
        ),
        runner=runner,
        instruments=instruments,
        clock=clock,
    )


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("own_s", "limit_s"), [(None, 60.0), (20.0, 20.0)])
def test_the_first_step_has_to_come_by_the_limit_of_the_policy_or_of_the_config(
    own_s: float | None, limit_s: float
) -> None:
    """The config says a minute; a search may say less."""
    clock = VirtualClock()
    runner = SimulatedRunner(clock, lambda _config: Training(start_s=math.inf))
    done = executed(clock, Instruments(HostProbe(clock)), runner, start_timeout_s=own_s)
    assert done.ending is Ending.NEVER_STARTED
    assert limit_s <= done.duration_s < limit_s + 1.0


class Reads:
    """GPU probe with one reading.

    Attributes:
        own_pids: Processes that were said to be the trial's.
    """

    def __init__(self, peak_memory_bytes: int = 0) -> None:
        figures = GpuFigures(
            uuid="GPU-1",
            name="H100",
            utilization=0.5,
            covered_fraction=1.0,
            peak_memory_bytes=peak_memory_bytes,
            memory_total_bytes=80 << 30,
        )
        self._usage = GpuUsage(utilization=0.5, devices=(GpuMeasurement(figures=figures, busy_windows=()),))
        self.own_pids: frozenset[int] = frozenset()

    def open(self, kept: Path) -> None:
        """See `GpuProbe.open`."""

    def lost(self, trial: TrialGpus) -> str | None:
        """See `GpuProbe.lost`."""

    def between(self, *_stretch: object, own_pids: Collection[int], started_s: float) -> GpuUsage:
        """See `GpuProbe.between`."""
        self.own_pids = frozenset(own_pids)
        return self._usage

    def close(self) -> None:
        """See `GpuProbe.close`."""


NO_WORKSPACE = "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("used_gib", "said", "ending"),
    [
        (79, NO_WORKSPACE, Ending.OUT_OF_GPU_MEMORY),
        (60, NO_WORKSPACE, Ending.CRASHED),
        (79, "KeyError: 'x'", Ending.CRASHED),
    ],
)
def test_a_full_gpu_names_a_failure_whose_words_do_not(used_gib: int, said: str, ending: Ending) -> None:
    """The words where memory is free are a crash; so is a full GPU alone, which frameworks fill as they start."""
    clock = VirtualClock()
    runner = SimulatedRunner(clock, lambda _config: Training(steps=5, exit_code=1, stderr=said))
    done = executed(clock, Instruments(SimulatedHostProbe(runner), Reads(used_gib << 30)), runner)
    assert (done.ending, said in done.detail) == (ending, True)


@pytest.mark.usefixtures("project")
def test_processes_that_report_nothing_are_the_trials_own_on_the_gpu_too() -> None:
    """Ranks that a launcher has started: the host's probe finds them, and their kernels are no stranger's."""
    clock = VirtualClock()
    runner = SimulatedRunner(clock, train)
    gpus = Reads()

    class Host(SimulatedHostProbe):
        def between(self, t0_s: float, t1_s: float) -> HostUsage:
            return HostUsage(cpu_cores=1.0, peak_memory_bytes=1, pids=frozenset({4711, 4712}))

    assert executed(clock, Instruments(Host(runner), gpus), runner).ending is Ending.STOPPED
    assert gpus.own_pids >= {4711, 4712}
