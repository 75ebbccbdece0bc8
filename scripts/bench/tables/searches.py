"""Searches on the trainer of a table: our tuner, other samplers in its place, and the peers as they are.

All make trials of the same kind on the same runner, and each start of the trainer counts as one: the tuner's warm-up,
repeats and confirmation, failures too. Our tuner appears twice. `OURS` is a whole search of so many trials, whose
answer is what it confirmed, else the baseline. `EXPLORING` explores with all of them, as if the confirmation came on
top, and its answer is the point that is believed to be best: the peers spend nothing on being sure. Other samplers "in
our tuner" propose the points instead, and explore in the same way: feasibility and what is believed stay ours.

The forest is slow, and searches less often: `FOREST_SEARCHES` times in all, from each start in turn. Noises other than
the usual one are tried on `NOISY_TABLES` tables.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from optuna.samplers import RandomSampler, TPESampler

from autotune.clock import Clock
from autotune.errors import ConfigError
from autotune.events import Event, TrialEnded
from autotune.records import TrialRecord
from autotune.sampler.config_sampler import SamplerChoice
from autotune.search.schedule import Budget, expected_trial_s
from autotune.space.space import Space
from scripts.bench.harness import OURS, Harness
from scripts.bench.peers import (
    PeerSampler,
    Proposals,
    cma_es,
    coordinate_descent,
    forest,
    gaussian_process,
    iterated_local_search,
    random_search,
    tpe,
)
from scripts.bench.simulated_runner import SimulatedRunner
from scripts.bench.tables.table import USUAL, Table, TableTrainer

_FIRST_S = 6.0  # guess at a trial's length before the first one
_SLACK = 0.9  # of a trial: one that is a little longer than usual must not be cut off


class TrialsBudget(Budget):
    """Budget of a number of trials.

    Args:
        runner: Runner of the trials, which has a plan for each.
    """

    def __init__(self, clock: Clock, *, trials: int, runner: SimulatedRunner) -> None:
        super().__init__(clock, started_s=clock.now_s(), budget_s=trials * _FIRST_S)
        self._trials = trials
        self._runner = runner
        self._records: list[TrialRecord] = []

    def note(self, event: Event) -> None:
        """Note each finished trial: its length tells what the others are worth."""
        if isinstance(event, TrialEnded):
            self._records.append(event.trial)

    @property
    def wall_s(self) -> float:
        """See `Budget.wall_s`."""
        return self._clock.now_s() + self.left_s()

    def left_s(self) -> float:
        """See `Budget.left_s`."""
        left = self._trials - len(self._runner.plans)
        usual_s = expected_trial_s(self._records) if self._records else _FIRST_S
        return (left + _SLACK) * usual_s if left > 0 else 0.0


EXPLORING = f"{OURS}, exploring"
ENDLESS_S = 1e7
"""Virtual time that is more than any number of trials takes."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of one search.

    Attributes:
        regrets: Regret of the answer after so many trials, by that number.
        cpu_s: CPU time of the search, its simulated trials included.
    """

    regrets: Mapping[int, float]
    trials: int
    failed: int
    cpu_s: float


_PEERS: Mapping[str, Callable[[Space, int], Proposals]] = {
    "TPE": tpe,
    "GP": gaussian_process,
    "CMA-ES": cma_es,
    "forest": forest,
    "iterated local search": iterated_local_search,
    "random": random_search,
    "coordinate descent": coordinate_descent,
}
_INSIDE = " in our tuner"
_SAMPLERS: Mapping[str, Callable[[Space, int], SamplerChoice]] = {
    EXPLORING: lambda _space, _seed: None,
    f"TPE{_INSIDE}": lambda _space, seed: TPESampler(seed=seed),
    f"forest{_INSIDE}": partial(PeerSampler, forest),
    f"iterated local search{_INSIDE}": partial(PeerSampler, iterated_local_search),
    f"random{_INSIDE}": lambda _space, seed: RandomSampler(seed=seed),
    f"coordinate descent{_INSIDE}": partial(PeerSampler, coordinate_descent),
}
_NEEDS: Mapping[str, Sequence[str]] = {
    "forest": ("sklearn",),
    "GP": ("torch", "scipy"),
    "CMA-ES": ("cmaes",),
}

METHODS: Sequence[str] = (OURS, *_SAMPLERS, *_PEERS)
"""Names of all methods."""


def missing_packages(method: str) -> Sequence[str]:
    """Return the packages that a method needs and that are not installed."""
    return [package for package in _NEEDS.get(method.removesuffix(_INSIDE), ()) if find_spec(package) is None]


def make_search(method: str, trainer: TableTrainer, trials: Sequence[int], folder: Path) -> Answers:
    """Make the searches of one method.

    Args:
        trials: Numbers of trials after which the answer counts. For our tuner each is a search of its own, which plans
            for so many; the peers do not plan.
        folder: Folder for all files; must not exist yet.

    Raises:
        ConfigError: There is no such method.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}", remedy=f"There are: {', '.join(METHODS)}.")
    before_s = _cpu_s()
    harnesses: list[Harness] = []
    regrets: dict[int, float] = {}
    plans_ahead = method not in _PEERS
    for most in trials if plans_ahead else (max(trials),):
        harness = Harness(trainer, ENDLESS_S, folder / str(most), method=method)
        if plans_ahead:
            make = _SAMPLERS.get(method)
            sampler = make(harness.problem.space, trainer.seed) if make else None
            tune(harness, sampler, trials=most, whole=method == OURS)
        else:
            peer = _PEERS[method](harness.problem.space, trainer.seed)
            harness.follow(peer, harness.measure_as_ours, most_trials=most)
        for number in (most,) if plans_ahead else trials:
            regrets[number] = trainer.regret(harness.answer_after(number))
        harnesses.append(harness)
    configs = [plan.config_text for harness in harnesses for plan in harness.runner.plans]
    return Answers(
        regrets=regrets,
        trials=len(configs),
        failed=sum(trainer.fails(config) for config in configs),
        cpu_s=_cpu_s() - before_s,
    )


def tune(harness: Harness, sampler: SamplerChoice, *, trials: int, whole: bool) -> None:
    """Run our tuner on a budget in trials, a whole search or its exploring alone; its answers are the harness's."""
    budget = TrialsBudget(harness.clock, trials=trials, runner=harness.runner)
    harness.search(budget, [budget.note], sampler=sampler, only_confirmed=whole, only_explores=not whole)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


STARTS: Sequence[str] = ("lowest", "median")
"""Starts: the lowest values, and the point with the median throughput."""

FOREST_SEARCHES = 60
NOISY_TABLES = 4


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One search to make.

    Attributes:
        trials: Numbers of trials after which the answer counts, ascending.
    """

    method: str
    table: str
    digest: str
    noise: str
    start: str
    seed: int
    trials: tuple[int, ...]

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{self.method} on {self.table}, {self.start}, {self.noise}, seed {self.seed}"


def pieces(
    tables: Sequence[Table],
    *,
    methods: Sequence[str],
    noises: Sequence[str],
    seeds: Sequence[int],
    trials: Sequence[int],
) -> Iterator[Piece]:
    """Yield all pieces, seed by seed: an interrupted benchmark has some of everything."""
    for seed, noise, (place, start) in product(seeds, noises, enumerate(STARTS)):
        for (number, table), method in product(enumerate(_tables_of(tables, noise)), methods):
            if _has_turn(method, seed - seeds[0], (number + place) % 2, len(tables)):
                yield Piece(
                    method=method,
                    table=table.name,
                    digest=table.digest,
                    noise=noise,
                    start=start,
                    seed=seed,
                    trials=tuple(sorted(trials)),
                )


def _tables_of(tables: Sequence[Table], noise: str) -> Sequence[Table]:
    """Return the tables for a noise: of others than the usual one, a few that are spread over the names."""
    return tables if noise == USUAL else tables[:: max(1, len(tables) // NOISY_TABLES)][:NOISY_TABLES]


def trainer_of(piece: Piece, table: Table) -> TableTrainer:
    """Return the trainer of a piece on its table."""
    # From all of these: else a random search would try the same points from both starts, under the same noise.
    seed = random.Random(f"{piece.table} {piece.start} {piece.noise} {piece.seed}").getrandbits(31)
    start = table.lowest if piece.start == "lowest" else table.median
    return TableTrainer(table=table, start=start, noise=piece.noise, seed=seed)


def _has_turn(method: str, turn: int, phase: int, tables: int) -> bool:
    return not method.startswith("forest") or (turn < FOREST_SEARCHES / tables and turn % 2 == phase)
