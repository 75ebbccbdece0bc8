"""Standing answers over many searches: ``python -m tests.soak standing --sequences 500`` checks that they get no worse.

Each sequence is a study of a simulated trainer of its own, searched a few times in virtual time: on a noisy machine
whose speed changes from search to search and may be disturbed for a while, with budgets from too short to ample, asked
for everything or for less, and with the answer applied, or the config edited by hand, in between. Whenever another
point takes the place of the standing answer, the truth of the simulation says whether it is worse. Prints each
violation with what led there; ``--seed N --first K --sequences 1`` makes that sequence again.
"""

import argparse
import contextlib
import math
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotune.clock import VirtualClock
from autotune.measure.score import THROUGHPUT
from autotune.records import OUTSIDE, Purpose, TrialRecord, Values, Verdict
from autotune.search.batch_limits import limited
from autotune.search.known import Study
from autotune.search.problem import open_problem
from autotune.study.answer import Standing, judged_finalists, standing_answer
from autotune.testing.simulated_runner import Training
from tests.search.simulated import search_simulated

BATCH = "data.batch_size"
CHOICES: Mapping[str, tuple[Any, ...]] = {
    BATCH: (4, 8, 16, 24, 32),
    "data.num_workers": (1, 2, 4),
    "data.prefetch_factor": (1, 2, 4, 8),
    "data.persistent_workers": (False, True),
    "data.use_xla": (False, True),
}
"""Knobs, with values that somebody may give them by hand."""

CONFIG = """\
autotune:
    command: "./python train.py {config}"
    objective: throughput
    trial: {start_timeout_s: 60, min_s: 0.7, min_steps: 5, max_s: 2}
"""
"""Config whose knobs are found by name, so that nothing but what is typed allows a change of the training."""

KINDS: Mapping[str, dict[str, Any]] = {
    "search": {},
    "search --same-training": {"same_training": True},
    "search --batch same": {"batch": "same"},
    "search --batch 4x": {"batch": "4x"},
}
_WORSE, _BETTER = 0.95, 1.05  # true ratios that are worth counting


@dataclass
class Landscape:
    """True speeds of one simulated trainer on one machine, and what disturbs their measurement."""

    rng: random.Random
    clock: VirtualClock
    noise: float = 0.0
    state: float = 1.0
    disturbed_s: tuple[float, float] = (0.0, 0.0)
    disturbed_speed: float = 1.0

    def __post_init__(self) -> None:
        self._name = self.rng.random()
        self._exponent = self.rng.uniform(-0.2, 0.6)
        self.noise = self.rng.uniform(0.03, 0.15)

    def speed(self, values: Values) -> float:
        """Return the true samples per second of a point, on the machine at rest."""
        ln = self._exponent * math.log(float(values[BATCH] or 0))
        for path in values.keys() - {BATCH}:
            ln += random.Random(f"{self._name} {path} {values[path]}").gauss(0.0, 0.2)
        ln += random.Random(f"{self._name} {sorted(values.items())}").gauss(0.0, 0.06)
        return 200.0 * math.exp(ln)

    def training(self, config: Mapping[str, Any]) -> Training:
        """Return the trial of a config that starts now."""
        values = {f"data.{name}": value for name, value in config["data"].items()}
        began_s, ended_s = self.disturbed_s
        is_disturbed = began_s <= self.clock.now_s() < ended_s
        speed = self.speed(values) * self.state * (self.disturbed_speed if is_disturbed else 1.0)
        return Training(samples=values[BATCH], step_s=values[BATCH] / speed, start_s=0.3, noise=self.noise)

    def changes(self, budget_s: float) -> str:
        """Change the state of the machine before a search, and say how."""
        self.state = math.exp(self.rng.gauss(0.0, 0.15))
        said = f"machine at {self.state:.2f}"
        if self.rng.random() < 0.25:
            began_s = self.clock.now_s() + self.rng.uniform(0.0, 0.8) * budget_s
            self.disturbed_s = began_s, began_s + self.rng.uniform(0.1, 0.5) * budget_s
            self.disturbed_speed = self.rng.uniform(0.5, 0.85)
            said += f", for a while at {self.disturbed_speed:.2f} of that"
        return said


@dataclass
class Outcome:
    """Outcome of many sequences: how often what happened, and what must not happen with the steps that led there."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def report(self) -> str:
        """Return both as text."""
        lines = [f"{count:6d}  {name}" for name, count in sorted(self.counts.items())]
        return "\n".join([*lines, *self.violations, f"{len(self.violations)} violations"])


def lay_out_trainer(text: str = "") -> None:
    """Write a trainer into the working directory, and a program that would start it, which has no packages to read."""
    Path("train.py").write_text(text)
    Path("python").touch(mode=0o700)


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """Work in a new folder, in memory where there is such a file system, on a machine without GPUs."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the simulated trainers use none
    try:
        with tempfile.TemporaryDirectory(prefix="autotune soak ", dir=memory) as name, contextlib.chdir(name):
            yield Path(name)
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def make_sequences(count: int, *, seed: int, first: int = 0) -> Outcome:
    """Make so many sequences, from the one of that number on."""
    outcome = Outcome()
    for number in range(first, first + count):
        with folder_of_its_own():
            _Sequence(random.Random(f"{seed} {number}"), f"sequence {number} of seed {seed}", outcome).make()
    return outcome


class _Sequence:
    """One study, and the searches that it is made of."""

    def __init__(self, rng: random.Random, name: str, outcome: Outcome) -> None:
        self._rng = rng
        self._clock = VirtualClock()
        self._landscape = Landscape(rng, self._clock)
        self._values: Values = {path: choices[1 if path == BATCH else 0] for path, choices in CHOICES.items()}
        self._steps = [f"{name}, noise {self._landscape.noise:.2f}"]
        self._outcome = outcome

    def make(self) -> None:
        """Search a few times, and judge each."""
        lay_out_trainer()
        standing: Standing | None = None
        for number in range(self._rng.randint(3, 6)):
            self._edit(standing)
            standing = self._search(number, standing)

    def _edit(self, standing: Standing | None) -> None:
        chance = self._rng.random()
        if standing is not None and chance < 0.35:
            self._values = dict(standing.trial.values)
            self._steps.append(f"applied: {_text(self._values)}")
        elif chance > 0.8:
            path = self._rng.choice(list(CHOICES))
            self._values = {**self._values, path: self._rng.choice(CHOICES[path])}
            self._steps.append(f"edited: {_text(self._values)}")

    def _search(self, number: int, before: Standing | None) -> Standing | None:
        kind = self._rng.choices(list(KINDS), (3, 2, 1, 3))[0]
        budget_s = math.exp(self._rng.triangular(math.log(12.0), math.log(160.0 if number else 50.0), math.log(40.0)))
        machine = self._landscape.changes(budget_s)
        data = {path.removeprefix("data."): value for path, value in self._values.items()}
        Path("config.yaml").write_text(CONFIG + yaml.safe_dump({"data": data}))
        whole = open_problem(Path("config.yaml"), command=None, state_dir=None)
        whole.state.create()
        done = search_simulated(
            limited(whole, **KINDS[kind]),
            self._landscape.training,
            clock=self._clock,
            name=f"search-{number}",
            budget_s=budget_s,
            seed=self._rng.randrange(1 << 30),
        )
        done.study.close()
        records = done.study.records()
        after = standing_answer(records, whole.objective)
        self._steps.append(f"{kind} of {budget_s:.0f} s, {machine}, {len(done.trials)} trials: {self._said(after)}")
        self._outcome.counts["searches"] += 1
        trials = [trial for trial in records if trial.search == f"search-{number}"]
        if trials:
            self._judge(trials, records, before, after, kind)
        if after is not None and (known := Study(Path("config.yaml")).answer()).verdict is Verdict.BETTER:
            told = known.best.point if known.best else None
            if told != after.point:
                self._violated(f"status tells another answer: {known.best and _text(known.best.values)}")
        return after

    def _judge(
        self,
        trials: Sequence[TrialRecord],
        records: Sequence[TrialRecord],
        before: Standing | None,
        after: Standing | None,
        kind: str,
    ) -> None:
        counts, search, objective = self._outcome.counts, trials[0].search, THROUGHPUT
        judged = judged_finalists(records, search, objective)
        true = self._landscape.speed
        if before is None and after is not None:
            counts["first answers"] += 1
            counts["first answers that are truly no better"] += true(after.trial.values) <= true(trials[0].values)
        elif before is not None and after is None:
            counts["withdrawn"] += 1
            counts["withdrawn, and truly better than the config"] += true(before.trial.values) > true(trials[0].values)
        elif before is not None and after is not None and before.point != after.point:
            how = _how(before, trials)
            against = None if how == "it was the config" else before.point
            pairs = judged if against is None else judged_finalists(records, search, objective, against=against)
            own = next((one for finalist, one in pairs if finalist.trial.point == after.point), None)
            ratio = true(after.trial.values) / true(before.trial.values)
            counts[f"replaced, {how}"] += 1
            if how == "it was not met":
                self._violated("replaced by one that it was not compared with, and it has not failed")
            elif how.startswith("it"):
                least = own.speed.low / own.speed.ratio if own else 1.0
                if ratio < least:
                    shown = f"{own.speed.ratio:.2f} ({own.speed.low:.2f} to {own.speed.high:.2f})" if own else "none"
                    self._violated(f"replaced by {ratio:.3f} of it; shown: {shown}")
            else:
                counts[f"replaced, {how}, by a truly worse one"] += ratio < _WORSE
            self._require_kinds(before, after, trials, kind)
        self._count_missed(trials, judged, after)

    def _require_kinds(self, before: Standing, after: Standing, trials: Sequence[TrialRecord], kind: str) -> None:
        """Require that a replacement changes the batch only where the one before did, or that was typed."""
        had = before.point != trials[0].point and before.trial.values[BATCH] != self._baselines()[before.search][BATCH]
        if after.trial.values[BATCH] != trials[0].values[BATCH] and not had and "4x" not in kind:
            self._violated("replaced by one that changes the batch, which nobody has allowed")

    def _baselines(self) -> dict[str, Values]:
        return {trial.search: trial.values for trial in reversed(Study(Path("config.yaml")).trials)}

    def _count_missed(self, trials: Sequence[TrialRecord], judged: Any, after: Standing | None) -> None:
        """Count where a search has found something that is truly better, and the answer is another."""
        stands = self._landscape.speed(after.trial.values if after else trials[0].values)
        confirmed = [finalist.trial for finalist, one in judged if one is not None and one.better]
        for name, found in (("tried", [trial for trial in trials if trial.comparable]), ("confirmed", confirmed)):
            best = max((self._landscape.speed(trial.values) for trial in found), default=0.0)
            self._outcome.counts[f"a better one by 5 % was {name}, and is not the answer"] += best > _BETTER * stands

    def _said(self, standing: Standing | None) -> str:
        if standing is None:
            return "nothing stands"
        ratio = self._landscape.speed(standing.trial.values) / self._landscape.speed(self._values)
        return f"{_text(standing.trial.values)} stands, truly {ratio:.2f} of the config"

    def _violated(self, what: str) -> None:
        self._outcome.violations.append("\n    ".join([f"VIOLATION: {what}", *self._steps]))


def _how(before: Standing, trials: Sequence[TrialRecord]) -> str:
    """Return why an answer could be replaced in a search."""
    if trials[0].point == before.point:
        return "it was the config"
    if trials[0].conditions.get(OUTSIDE) == before.point:
        return "outside the domains that the edited config has"
    pairs = {trial.pair for trial in trials if trial.point == before.point and trial.purpose is Purpose.CONFIRM}
    speeds = {
        (trial.pair, trial.point): trial.comparable.speed
        for trial in trials
        if trial.purpose is Purpose.CONFIRM and trial.comparable
    }
    ratios = [
        math.log(speeds[pair, before.point] / speeds[pair, trials[0].point])
        for pair in pairs
        if (pair, before.point) in speeds and (pair, trials[0].point) in speeds
    ]
    if not ratios:
        own = [trial for trial in trials if trial.point == before.point]
        return "failed" if own and not any(trial.comparable for trial in own) else "it was not met"
    return "slower than the config" if sum(ratios) < 0.0 else "it was met in pairs"


def _text(values: Values) -> str:
    return " ".join(f"{path.removeprefix('data.')}={values[path]}" for path in CHOICES)


def main(arguments: list[str]) -> int:
    """Make the sequences, and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak standing", description=__doc__)
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    wanted = parser.parse_args(arguments)
    outcome = make_sequences(wanted.sequences, seed=wanted.seed, first=wanted.first)
    print(outcome.report())
    return 1 if outcome.violations else 0
