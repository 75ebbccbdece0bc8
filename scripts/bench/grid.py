"""Benchmark of a grid of points: the true best, to compare a search's answer with.

Every point is measured like a trial of a search. The points are in random order and the whole grid is repeated, so
that a slow minute of the machine does not affect one point alone.
"""

import argparse
import json
import random
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

from autotune.clock import SystemClock
from autotune.errors import ConfigError
from autotune.measure.window import WindowGoal
from autotune.records import Purpose, Scalar, Validity, Values
from autotune.search.gpus import complete, watched_gpus
from autotune.search.problem import Problem, open_problem
from autotune.trial.execution import Execution, TrialSpec, execute
from autotune.trial.instruments import Instruments, gpu_collector
from autotune.trial.launch import Guard, ProcessRunner
from autotune.trial.stop_rule import StopLimits
from scripts.bench.results import Commands

_LONGEST_RUN_S = 120.0


def parse_axis(text: str) -> tuple[str, list[Scalar]]:
    """Parse ``key=v1,v2``; values that look like numbers or switches become such, others stay words."""
    path, _, values = text.partition("=")
    return path, [_scalar(value) for value in values.split(",")]


def measure_grid(
    config: Path, axes: dict[str, list[Scalar]], *, repeats: int, seed: int, state_dir: Path | None, out: Path | None
) -> None:
    """Measure all combinations and print them, fastest first.

    Args:
        config: The config; knobs that are no axis keep the baseline's values.
        out: File that gets every trial as a line of JSON; None writes none.

    Raises:
        AutotuneError: The config cannot be used, or an axis is no knob of it.
    """
    problem = open_problem(config, command=None, state_dir=state_dir)
    problem.state.create()
    problem.require_runnable()
    baseline = problem.space.baseline
    points: list[Values] = [{**baseline, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]
    for point in points:
        if set(point) != set(baseline):
            raise ConfigError(f"{', '.join(set(point) - set(baseline))}: no such knob", where=str(config))
    speeds = _measure(problem, points, repeats, random.Random(seed), out)
    print(f"{'samples/s':>10}  {'min':>7} {'max':>7}  {' '.join(axes)}")
    order = sorted(range(len(points)), key=lambda index: median(speeds[index] or [0.0]), reverse=True)
    for index in order:
        found = speeds[index] or [0.0]
        words = " ".join(str(points[index][path]) for path in axes)
        print(f"{median(found):10.1f}  {min(found):7.1f} {max(found):7.1f}  {words}")


def _measure(
    problem: Problem, points: list[Values], repeats: int, rng: random.Random, out: Path | None
) -> list[list[float]]:
    clock = SystemClock()
    limits = problem.limits
    goal = WindowGoal(min_s=limits.min_s, min_steps=limits.min_steps, target_s=limits.min_s)
    speeds: list[list[float]] = [[] for _ in points]
    stamp = f"{clock.utc():%Y%m%dT%H%M%SZ}"
    with (
        Guard() as guard,
        gpu_collector(watched_gpus(problem), guard, problem.state.searches, clock) as collector,
    ):
        runner = ProcessRunner(guard, clock)
        for repeat in range(repeats):
            for index in rng.sample(range(len(points)), len(points)):
                spec = TrialSpec(values=points[index], purpose=Purpose.EXPLORE)
                done = execute(
                    problem.trainer,
                    complete(
                        problem,
                        spec,
                        name=f"grid-{stamp}-{index:03d}-{repeat}",
                        limits=StopLimits(
                            goal=goal,
                            settles=problem.space.settles(points[index]),
                            deadline_s=clock.now_s() + _LONGEST_RUN_S,
                        ),
                    ),
                    runner=runner,
                    instruments=Instruments.of_machine(clock, collector),
                    clock=clock,
                )
                if done.measurement and done.validity is Validity.GOOD:
                    speeds[index].append(done.measurement.samples_per_s)
                if out is not None:
                    with out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(_line(done, points[index])) + "\n")
                done.folder.delete()
    return speeds


def _line(done: Execution, point: Values) -> dict[str, object]:
    return {
        "format": 1,
        "values": point,
        "ending": done.ending.value,
        "validity": done.validity.value,
        "duration_s": round(done.duration_s, 3),
        "measurement": asdict(done.measurement) if done.measurement else None,
    }


def _scalar(text: str) -> Scalar:
    words: dict[str, Scalar] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def add_grid(commands: Commands) -> None:
    """Add the parser of ``grid``."""
    parser = commands.add_parser("grid", help="measure every combination of some values, in random order")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2, help="trials of each point (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--out", type=Path, help="where the raw numbers go, as JSON lines")
    parser.add_argument(
        "axes", nargs="+", metavar="KEY=V1,V2", help="e.g. data.batch_size=8,32; data.cache=none,memory"
    )
    parser.set_defaults(run=_grid)


def _grid(arguments: argparse.Namespace) -> None:
    measure_grid(
        arguments.config,
        dict(parse_axis(axis) for axis in arguments.axes),
        repeats=arguments.repeats,
        seed=arguments.seed,
        state_dir=arguments.state_dir,
        out=arguments.out,
    )
