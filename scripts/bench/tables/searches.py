"""Searches on the trainer of a table: our tuner, other samplers in its place, and the peers as they are.

All make trials of the same kind on the same runner, and each start of the trainer counts as one: the tuner's warm-up,
repeats and confirmation, failures too. Our tuner appears twice. `OURS` is a whole search of so many trials, whose
answer is what it confirmed, else the baseline. `EXPLORING` explores with all of them, as if the confirmation came on
top, and its answer is the point that is believed to be best: the peers spend nothing on being sure. Other samplers "in
our tuner" propose the points instead, and explore in the same way: feasibility and what is believed stay ours.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import ConfigError
from autotune.sampler.other_samplers import OURS as OUR_SAMPLER
from autotune.sampler.other_samplers import SamplerChoice
from autotune.search.confirm import MOST_PAIRS
from autotune.space.space import Space
from scripts.bench.peers.anytime_curve import OURS
from scripts.bench.peers.harness import Harness
from scripts.bench.peers.local_search import iterated_local_search
from scripts.bench.peers.methods import Proposals, coordinate_descent, gaussian_process, random_search, tpe
from scripts.bench.peers.peer_sampler import PeerSampler
from scripts.bench.tables.table_trainer import TableTrainer
from scripts.bench.tables.trials_budget import TrialsBudget

EXPLORING = f"{OURS}, exploring"
ENDLESS_S = 1e7
"""Virtual time that is more than any number of trials takes."""

_KEPT_TRIALS = 3 * MOST_PAIRS  # at least what a tuner keeps for a confirmation


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of one search.

    Attributes:
        regrets: Regret of the answer after so many trials, by that number.
        trials: Trials that were made.
        failed: Those of them that gave no number.
        cpu_s: CPU time of the search, its simulated trials included.
    """

    regrets: Mapping[int, float]
    trials: int
    failed: int
    cpu_s: float


def _forest(space: Space, seed: int) -> Proposals:
    from scripts.bench.peers.forest import forest  # needs scikit-learn

    return forest(space, seed)


_PEERS: Mapping[str, Callable[[Space, int], Proposals]] = {
    "TPE": tpe,
    "forest": _forest,
    "iterated local search": iterated_local_search,
    "GP": gaussian_process,
    "random": random_search,
    "coordinate descent": coordinate_descent,
}
_INSIDE = " in our tuner"
_SAMPLERS: Mapping[str, Callable[[Space, int], SamplerChoice]] = {
    EXPLORING: lambda _space, _seed: OUR_SAMPLER,
    f"TPE{_INSIDE}": lambda _space, _seed: "tpe",
    f"forest{_INSIDE}": partial(PeerSampler, _forest),
    f"iterated local search{_INSIDE}": partial(PeerSampler, iterated_local_search),
    f"GP{_INSIDE}": lambda _space, _seed: "gp",
    f"random{_INSIDE}": lambda _space, _seed: "random",
    f"coordinate descent{_INSIDE}": partial(PeerSampler, coordinate_descent),
}
_NEEDS: Mapping[str, Sequence[str]] = {"forest": ("sklearn",), "GP": ("torch", "scipy")}

METHODS: Sequence[str] = (OURS, *_SAMPLERS, *_PEERS)
"""Names of all methods."""


def missing_packages(method: str) -> Sequence[str]:
    """Return the packages that a method needs and that are not installed."""
    return [package for package in _NEEDS.get(method.removesuffix(_INSIDE), ()) if find_spec(package) is None]


def make_search(method: str, trainer: TableTrainer, trials: Sequence[int], folder: Path) -> Answers:
    """Make the searches of one method.

    Args:
        method: Its name.
        trainer: The trainer.
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
            sampler = make(harness.problem.space, trainer.seed) if make else OUR_SAMPLER
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


def budget_of(harness: Harness, *, trials: int, whole: bool) -> TrialsBudget:
    """Return the budget of a search of so many trials: a whole one, or one that explores with all of them."""
    beyond = 0 if whole else _KEPT_TRIALS
    return TrialsBudget(harness.clock, trials=trials, beyond=beyond, runner=harness.runner)


def tune(harness: Harness, sampler: SamplerChoice, *, trials: int, whole: bool) -> None:
    """Run our tuner on a budget in trials; its answers are the harness's."""
    budget = budget_of(harness, trials=trials, whole=whole)
    harness.search(budget, [budget.note], sampler=sampler, only_confirmed=whole)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
