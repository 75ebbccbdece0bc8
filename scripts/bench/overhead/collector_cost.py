"""Overhead of the GPU collector: CPU time of its process, and its effect on training speed.

It uses the driver of the machine. Where there is none, use one of the tests' fake machines (from a checkout)::

    python -m tests.fake_nvml busy -- python -m scripts.bench collector --config configs/config.yaml
"""

import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from autotune.clock import Clock, SystemClock
from autotune.errors import GpuError, TrialError
from autotune.measure.gpu import process as gpu_process
from autotune.measure.gpu.driver import GpuFacts, gpus
from autotune.measure.statistics import moderated_interval
from autotune.records import Stop, TraineeEvent
from autotune.search.problem import open_problem
from autotune.trial.folder import TrialFolder
from autotune.trial.gpu_collector import CollectorFiles, GpuCollector
from autotune.trial.guard import Guard
from autotune.trial.launch import Runner
from autotune.trial.plan import plan_trial
from autotune.trial.warm import ZygoteRunner
from scripts.bench.markdown import markdown_table
from scripts.bench.overhead.process_cost import process_cost

_START_S = 1.0  # the collector has started and found its devices; reported separately
_WARM_UP_S = 5.0  # of training, after the first step
_LONGEST_START_S = 120.0


def measure_collector(
    *, seconds: float, config: Path | None, pairs: int, train_s: float, state_dir: Path | None
) -> str:
    """Measure the collector on the GPUs of this machine.

    Args:
        seconds: Time for which its process is watched.
        config: A config to train with; None leaves the effect on training out.
        pairs: Pairs of trainings, with and without the collector.
        train_s: Time for which the speed of each is measured.
        state_dir: As for the search.

    Returns:
        The result, as Markdown.

    Raises:
        AutotuneError: There is no GPU, or the config cannot be trained with.
    """
    found = require_gpus()
    uuids = [gpu.uuid for gpu in found]

    def command(folder: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", gpu_process.__name__, str(folder / "samples.jsonl"), *uuids)

    start_cpu_s, cores = process_cost(command, start_s=_START_S, seconds=seconds)
    cost = markdown_table(
        ["GPUs", "CPU time to start", "CPU time for each second"],
        [[f"{len(found)} ({names_of(found)})", f"{start_cpu_s:.2f} s", f"{1e3 * cores:.2f} ms"]],
    )
    if config is None:
        return cost
    ratios = _ratios(config, uuids, pairs=pairs, train_s=train_s, state_dir=state_dir)
    return f"{cost}\n\n{_effect(ratios)}"


def require_gpus() -> tuple[GpuFacts, ...]:
    """Return the GPUs of this machine.

    Raises:
        GpuError: There is none.
    """
    inventory = gpus()
    if inventory.why_none:
        raise GpuError(inventory.why_none, remedy="The tests have fake ones: python -m tests.fake_nvml busy -- COMMAND")
    return inventory.gpus


def names_of(found: Sequence[GpuFacts]) -> str:
    """Return the product names of the GPUs, without repetition."""
    return ", ".join(sorted({gpu.name for gpu in found}))


class _Speed:
    """Watch of a training that stops it after the measuring time."""

    def __init__(self, clock: Clock, train_s: float) -> None:
        self._clock = clock
        self._train_s = train_s
        self._give_up_s = clock.now_s() + _LONGEST_START_S + train_s
        self._steps: list[TraineeEvent] = []

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        self._steps += (event for event in events if event.kind == "step")
        if self._steps and self._steps[-1].t_s > self._steps[0].t_s + _WARM_UP_S + self._train_s:
            return Stop.ENOUGH
        return Stop.NEVER_STARTED if self._clock.now_s() > self._give_up_s else None

    def steps_per_s(self) -> float | None:
        """Steps per second after the warm-up; None if there were too few."""
        measured = [step.t_s for step in self._steps if step.t_s >= self._steps[0].t_s + _WARM_UP_S]
        return (len(measured) - 1) / (measured[-1] - measured[0]) if len(measured) > 2 else None


def _ratios(config: Path, uuids: Sequence[str], *, pairs: int, train_s: float, state_dir: Path | None) -> list[float]:
    """Return the ratio of the speeds with and without the collector for each pair; their order alternates."""
    clock = SystemClock()
    problem = open_problem(config, command=None, state_dir=state_dir)
    problem.state.create()
    problem.require_runnable()
    stamp = f"{clock.utc():%Y%m%dT%H%M%SZ}"
    ratios = []
    with Guard() as guard:
        runner: Runner = ZygoteRunner(guard, clock)

        def speed(trial: str, *, is_watched: bool) -> float:
            plan = plan_trial(problem.trainer, problem.space.keys(problem.space.baseline), trial=trial)
            folder = TrialFolder(plan.folder)
            problem.trainer.create_folder(folder)
            stream = problem.state.path / f"{trial}.readings"
            watch = _Speed(clock, train_s)
            with GpuCollector(guard, uuids, CollectorFiles(stream), clock) if is_watched else nullcontext():
                runner.run(plan, watch, clock.now_s() + _LONGEST_START_S + train_s)
            steps_per_s = watch.steps_per_s()
            if steps_per_s is None:
                raise TrialError("the trial trained for too few steps", where=str(folder.stderr))
            folder.delete()
            return steps_per_s

        speed(f"collector-{stamp}-warm-up", is_watched=True)
        for pair in range(pairs):
            speeds = {
                watched: speed(f"collector-{stamp}-{pair:02d}-{'with' if watched else 'without'}", is_watched=watched)
                for watched in ((True, False) if pair % 2 == 0 else (False, True))
            }
            ratios.append(speeds[True] / speeds[False])
            print(f"pair {pair + 1}: {ratios[-1]:.4f}", file=sys.stderr)
    return ratios


def _effect(ratios: Sequence[float]) -> str:
    middle = f"Training with the collector runs at {median(ratios):.4f} of the speed without it (median of pairs"
    if len(ratios) < 2:
        return f"{middle}, of which there is one)."
    mean, half_width = moderated_interval([math.log(ratio) for ratio in ratios], 0.0, 0.0)
    low, high = math.exp(mean - half_width), math.exp(mean + half_width)
    return f"{middle}; {len(ratios)} pairs from {min(ratios):.4f} to {max(ratios):.4f}, 95 % [{low:.4f}, {high:.4f}])."
