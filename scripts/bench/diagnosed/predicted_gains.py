"""Benchmark of recommendations: what a diagnosis says that changes gain, and what they gain in longer trainings."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

from autotune.clock import SystemClock
from autotune.diagnose.measured import Diagnoser
from autotune.diagnose.measured_switches import Gain
from autotune.errors import TrialError
from autotune.events import Event, TrialEnded
from autotune.measure.host import BusyCpu
from autotune.measure.window import WindowGoal
from autotune.records import Purpose, Values
from autotune.search.findings import Findings
from autotune.search.open import OpenParts, SearchOptions, open_parts
from autotune.search.parts import Narrator
from autotune.search.problem import open_problem
from autotune.search.schedule import Budget
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from scripts.bench.markdown import markdown_table

_FOR_ALL_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Recommendation that was compared with what it gains.

    Attributes:
        changes: Its values.
        predicted: The gain that the diagnosis told.
        ratios: Speed with the change over that without, of each pair of longer trainings.
    """

    changes: Values
    predicted: Gain
    ratios: tuple[float, ...]

    @property
    def real(self) -> float:
        """Gain in the longer trainings: the mean of the pairs."""
        return geometric_mean(self.ratios)

    @property
    def holds(self) -> bool:
        """True if the gain lies in the interval that was told."""
        gain = self.predicted.gain
        return gain is not None and gain.low <= self.real <= gain.high


def compare_gains(config: Path, *, budget_s: float, for_s: float, command: str) -> str:
    """Diagnose a training, then train with each change that was measured, and without, in turn; return the report.

    Args:
        config: The config of the trainer.
        budget_s: Budget of the diagnosis.
        for_s: Length of each of the four trainings that a change is compared by.
        command: The command, for the report.

    Raises:
        AutotuneError: No trial can be made.
    """
    clock = SystemClock()
    problem = open_problem(config, command=None, state_dir=None)
    problem.require_runnable()
    options = SearchOptions(budget_s=_FOR_ALL_S, started_s=clock.now_s(), warm_start=False)
    with open_parts(problem, options, clock, _tell) as opened:
        cpu = BusyCpu()
        within = Budget(clock, started_s=clock.now_s(), budget_s=budget_s)
        diagnoser = Diagnoser(
            replace(opened.parts, budget=within), opened.consumers, busy_s=cpu.busy_s, cores=cpu.cores
        )
        measured = [one for one in diagnoser.run().gains if one.gain is not None]
        train = _Trainer(opened, for_s)
        found = [_compared(one, train) for one in measured]
    held = sum(one.holds for one in found)
    rows = [(_text(one.changes), *_predicted(one), _real(one), "yes" if one.holds else "no") for one in found]
    table = markdown_table(("change", "predicted", "95 % interval", f"real, {for_s:g} s each (pairs)", "holds"), rows)
    return f"`{command}`\n\n{table}\n\n{held} of {len(found)} hold.\n"


def _compared(one: Gain, train: "_Trainer") -> Compared:
    """Train without, with, with and without a change."""
    switch = one.switch
    baseline = train.space.baseline
    without_1, with_1, with_2, without_2 = (train(one) for one in (baseline, switch.values, switch.values, baseline))
    return Compared(changes=switch.changes, predicted=one, ratios=(with_1 / without_1, with_2 / without_2))


class _Trainer:
    """Trainer of points for a given time."""

    def __init__(self, opened: OpenParts, for_s: float) -> None:
        parts = opened.parts
        findings = Findings(parts.problem, parts.clock)
        state = SearchState(parts.problem, parts.study, findings, sampler=parts.sampler, seed=parts.seed)
        self._trials = TrialMaker(parts, state, findings, Narrator(opened.consumers, findings.remarks))
        self._goal = WindowGoal(min_s=for_s, min_steps=10, target_s=for_s)
        self.space = parts.problem.space

    def __call__(self, values: Values) -> float:
        """Train a point; return its speed."""
        record = self._trials.make_once(PlannedTrial(values=values, purpose=Purpose.DIAGNOSE, goal=self._goal))
        if record.measurement is None:
            raise TrialError(f"a longer training gave no numbers: {record.ending.value}", where=str(values), remedy="")
        return record.measurement.speed


def _tell(event: Event) -> None:
    if isinstance(event, TrialEnded):
        speed = event.trial.measurement.samples_per_s if event.trial.measurement else math.nan
        print(f"trial {event.trial.number} {event.trial.purpose.value} {speed:.1f}/s {dict(event.changes)}", flush=True)


def _text(changes: Values) -> str:
    return ", ".join(f"{path}: {value}" for path, value in changes.items())


def _predicted(one: Compared) -> tuple[str, str]:
    gain = one.predicted.gain
    assert gain is not None, "only measured ones are compared"
    return f"{gain.ratio:.3f}x", f"{gain.low:.3f} to {gain.high:.3f}"


def _real(one: Compared) -> str:
    pairs = ", ".join(f"{ratio:.3f}" for ratio in one.ratios)
    return f"{one.real:.3f}x ({pairs})"
