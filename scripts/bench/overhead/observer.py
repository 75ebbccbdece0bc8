"""Overhead and accuracy of the observer on unchanged trainers.

Each style of trainer (observed_trainers.py) trains once with a slow loader, and the observer's report is compared with
the trainer's own numbers; then several times with a fast loader, in alternating blocks of steps with and without the
observer. The cost of a step is given in two ways. "In our functions" is their time besides the framework's own: exact
to a microsecond, but without the counting in graphs and without cache effects. "In all" is the difference between the
blocks, with a trainer for each: nothing is left out, but equal trainers differ by some percent, too.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autotune.clock import Clock, SystemClock
from autotune.errors import TrialError
from autotune.records import TraineeEvent, TrialPlan
from autotune.trial.folders import TrialFolder
from autotune.trial.launch import Guard, ProcessRunner
from scripts.bench.results import Commands, markdown_table

_TRAINERS = Path(__file__).with_name("observed_trainers.py")  # a script, not for importing
_LONGEST_RUN_S = 300.0
_TURNS = 20  # blocks of each kind in one training
_RIGHT = 0.1  # tolerated relative difference between a wait and the trainer's own number
_HEADS = (
    "style",
    "steps seen",
    "samples seen",
    "data wait",
    "within 10 %",
    "step, us",
    "in our functions, us",
    "in all, us",
)

STYLES = {
    "tensorflow": (
        "fit",
        "fit-several-steps",
        "fit-xla",
        "fit-eager",
        "fit-mirrored",
        "train-on-batch",
        "loop-compiled",
        "loop-eager",
        "loop-mirrored",
        "loop-mirrored-eager",
        "loop-own-batches",
        "next-inside",
        "loop-inside",
    ),
    "torch": ("torch", "torch-workers", "torch-own-batches"),
    "jax": ("jax",),
}
"""Styles of trainers by the package that they need."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    facts: Mapping[str, Any]
    events: Sequence[TraineeEvent]


class _Trainers:
    """Trials of observed_trainers.py."""

    def __init__(self, runner: ProcessRunner, clock: Clock, folder: Path, python: str) -> None:
        self._runner = runner
        self._clock = clock
        self._folder = folder
        self._python = python
        self._trials = 0

    def train(self, style: str, **options: float) -> _Seen:
        """Run a trainer of a style.

        Raises:
            TrialError: The trainer failed.
        """
        self._trials += 1
        trial = f"{self._trials}-{style}"
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", f"{value:g}")]
        plan = TrialPlan(
            trial_id=f"observe/{trial}",
            folder=self._folder / trial,
            argv=(self._python, str(_TRAINERS), style, *words),
            cwd=self._folder,
            env={"TF_CPP_MIN_LOG_LEVEL": "2"},
            config_text="",
        )
        events: list[TraineeEvent] = []
        ended = self._runner.run(plan, events.extend, self._clock.now_s() + _LONGEST_RUN_S)
        folder = TrialFolder(plan.folder)
        if ended.exit_code != 0:
            raise TrialError(f"{style} cannot train: {(folder.stderr_tail().splitlines() or ['?'])[-1]}")
        facts = json.loads(folder.stdout.read_text(encoding="utf-8").splitlines()[-1])
        folder.delete()
        return _Seen(facts=facts, events=events)


def benchmark_observer(*, python: str, styles: Sequence[str], pairs: int, steps: int) -> None:
    """Print the table of accuracy and overhead.

    Args:
        styles: Styles to run; an empty list means all whose framework this interpreter has (found out by trying).
        pairs: Number of pairs of trainings, one observed and one not, that alternate in one process; the median
            difference of their blocks is the cost of a step.
    """
    clock = SystemClock()
    rows: list[tuple[str, ...]] = []
    with Guard() as guard, tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        trainers = _Trainers(ProcessRunner(guard, clock), clock, Path(folder), python)
        for style in styles or [style for package in STYLES.values() for style in package]:
            print(style, file=sys.stderr, flush=True)
            try:
                rows.append(
                    (style, *_correct(trainers.train(style, sleep_ms=40.0)), *_cost(trainers, style, pairs, steps))
                )
            except TrialError as error:
                rows.append((style, error.message, *("",) * (len(_HEADS) - 2)))
    print(markdown_table(_HEADS, rows))


def _correct(seen: _Seen) -> tuple[str, str, str, str]:
    steps = [event for event in seen.events if event.kind == "step"]
    waits_s = [event.wait_s for event in steps if event.wait_s is not None]
    samples = [event.samples for event in steps if event.samples is not None]
    known_s = seen.facts["waited_s"]
    # The mean: in a loop that makes its own batches the first wait is invisible.
    ratio = None if not waits_s or not known_s else sum(waits_s) / len(waits_s) / known_s * seen.facts["steps"]
    return (
        f"{len(steps)} of {seen.facts['steps']}",
        f"{sum(samples):g} of {seen.facts['samples']}" if samples else "not seen",
        "not seen" if not waits_s else "seen" if ratio is None else f"{ratio - 1:+.1%}",
        "" if ratio is None else "yes" if abs(ratio - 1) <= _RIGHT else "no",
    )


def _cost(trainers: _Trainers, style: str, pairs: int, steps: int) -> tuple[str, str, str]:
    """Return the time of a step and the observer's part in it: medians over trainings, with minimum and maximum."""
    steps_us, own_us, costs_us = [], [], []
    for _ in range(pairs):
        seen = trainers.train(style, sleep_ms=0.0, steps=steps, turns=_TURNS)
        pairs_us = [(1e6 * with_s / steps, 1e6 * without_s / steps) for with_s, without_s in seen.facts["pairs_s"]]
        steps_us.append(median(without for _, without in pairs_us))
        own_us.append(1e6 * median(seen.facts["own_s"]) / steps)
        costs_us.append(median(observed - without for observed, without in pairs_us))
    if not costs_us:
        return "", "not measured", "not measured"
    return f"{median(steps_us):.0f}", _spread(own_us), _spread(costs_us)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def add_observe(commands: Commands) -> None:
    """Add the parser of ``observe``."""
    parser = commands.add_parser("observe", help="what is seen of trainers that report nothing, and what that costs")
    parser.add_argument("styles", nargs="*", metavar="STYLE", help="e.g. fit loop-compiled torch (default: all)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the frameworks")
    parser.add_argument("--pairs", type=int, default=5, help="of trainings, for the cost of a step (default: 5)")
    parser.add_argument("--steps", type=int, default=200, help="in a block, of which a training has 20 (default: 200)")
    parser.set_defaults(run=_observe)


def _observe(arguments: argparse.Namespace) -> None:
    benchmark_observer(python=arguments.python, styles=arguments.styles, pairs=arguments.pairs, steps=arguments.steps)
