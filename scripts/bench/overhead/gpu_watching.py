"""Overhead of what watches the GPU: the collector's CPU time and its effect on training, and `autotune monitor`'s.

Both use the driver of the machine. Where there is none, use one of the tests' fake machines (from a checkout)::

    python -m tests.fake_nvml busy -- python -m scripts.bench collector --config configs/config.yaml
    python -m tests.fake_nvml eight -- python -m scripts.bench monitor
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import MappingProxyType

from autotune.clock import Clock, SystemClock
from autotune.errors import GpuError, TrialError
from autotune.measure.gpu import collector as gpu_process
from autotune.measure.gpu.driver import GpuFacts, gpus
from autotune.measure.statistics import moderated_interval
from autotune.records import Stop, TraineeEvent, TrialPlan
from autotune.search.problem import open_problem
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder
from autotune.trial.instruments import GpuCollector
from autotune.trial.launch import Guard, ProcessRunner, Runner
from autotune.trial.warm import ZygoteRunner
from scripts.bench.results import Commands, markdown_table

_STARTS = 3


def process_cost(
    command: Callable[[Path], Sequence[str]],
    *,
    start_s: float,
    seconds: float,
    env: Mapping[str, str] = MappingProxyType({}),
) -> tuple[float, float]:
    """Return the CPU seconds of a process's start, and its CPU share of one core from then on.

    Computed from short runs of it and a long one: the kernel's account of a process is exact at its end.

    Args:
        command: Returns its command line; it may write into the folder that it is given.
        start_s: Length of a short run, which covers the start.

    Raises:
        TrialError: The process ended by itself.
    """
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as name, Guard() as guard:
        runner = ProcessRunner(guard, clock)

        def life(length_s: float) -> tuple[float, float]:
            """Return its real duration and its CPU seconds."""
            folder = Path(tempfile.mkdtemp(dir=name))
            argv = tuple(command(folder))
            plan = TrialPlan(
                trial_id=folder.name, folder=folder / "run", argv=argv, cwd=folder, env=env, config_text=""
            )
            ended = runner.run(plan, lambda _events: None, clock.now_s() + length_s)
            if ended.stop is not Stop.DEADLINE or ended.cpu_s is None:
                raise TrialError(f"it ended by itself: {ended.stderr_tail}", where=" ".join(argv))
            return ended.ended_s - ended.started_s, ended.cpu_s

        life(start_s)  # its files are read from the disk
        starts = [life(start_s) for _ in range(_STARTS)]
        short_s, short_cpu_s = (median(values) for values in zip(*starts, strict=True))
        long_s, long_cpu_s = life(start_s + seconds)
    cores = (long_cpu_s - short_cpu_s) / (long_s - short_s)
    return short_cpu_s - cores * short_s, cores


_COLLECTOR_START_S = 1.0  # the collector has started and found its devices; reported separately
_WARM_UP_S = 5.0  # of training, after the first step
_LONGEST_START_S = 120.0


def measure_collector(
    *, seconds: float, config: Path | None, pairs: int, train_s: float, state_dir: Path | None
) -> str:
    """Measure the collector on the GPUs of this machine.

    Args:
        config: A config to train with; None leaves the effect on training out.
        pairs: Pairs of trainings, with and without the collector.

    Returns:
        The result, as Markdown.

    Raises:
        AutotuneError: There is no GPU, or the config cannot be trained with.
    """
    found = require_gpus()
    uuids = [gpu.uuid for gpu in found]

    def command(_folder: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", gpu_process.__name__, *uuids)

    start_cpu_s, cores = process_cost(command, start_s=_COLLECTOR_START_S, seconds=seconds)
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
            watch = _Speed(clock, train_s)
            with GpuCollector(guard, uuids, problem.state.path, clock) if is_watched else nullcontext():
                problem.trainer.run(runner, plan, watch, clock.now_s() + _LONGEST_START_S + train_s)
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


_MONITOR_START_S = 4.0  # it is imported, and has drawn its first screens
_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50", "PYTHONUTF8": "1"}
_LOG = {"FORCE_COLOR": "", "NO_COLOR": "1"}


def measure_monitor(*, seconds: float) -> str:
    """Measure the monitor's CPU time.

    Returns:
        The result, as Markdown.

    Raises:
        AutotuneError: There is no GPU.
    """
    gpus = require_gpus()

    def command(_folder: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", "autotune", "monitor")

    rows = []
    for shown, env in (("on a terminal", _TERMINAL), ("in a log file", _LOG)):
        start_cpu_s, cores = process_cost(command, start_s=_MONITOR_START_S, seconds=seconds, env=env)
        rows.append([f"{len(gpus)} ({names_of(gpus)})", shown, f"{start_cpu_s:.2f} s", f"{cores:.2%}"])
    return markdown_table(["GPUs", "shown", "CPU time to start", "share of a core from then on"], rows)


def add_collector(commands: Commands) -> None:
    """Add the parser of ``collector``."""
    parser = commands.add_parser("collector", help="measure what the GPU collector costs, itself and a training")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is watched (default: 60)")
    parser.add_argument("--config", type=Path, help="train with this config, with the collector and without in turn")
    parser.add_argument("--pairs", type=int, default=10, help="trainings of each kind (default: 10)")
    parser.add_argument("--train", type=float, default=20.0, help="seconds of each that count (default: 20)")
    parser.add_argument("--state-dir", type=Path)
    parser.set_defaults(run=_collector)


def _collector(arguments: argparse.Namespace) -> None:
    print(
        measure_collector(
            seconds=arguments.seconds,
            config=arguments.config,
            pairs=arguments.pairs,
            train_s=arguments.train,
            state_dir=arguments.state_dir,
        )
    )


def add_monitor(commands: Commands) -> None:
    """Add the parser of ``monitor``."""
    parser = commands.add_parser("monitor", help="measure what `autotune monitor` costs")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is watched (default: 60)")
    parser.set_defaults(run=lambda arguments: print(measure_monitor(seconds=arguments.seconds)))
