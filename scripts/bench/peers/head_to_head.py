"""Head-to-head comparison on one scenario: our search as the command runs it, the peers in both settings, an oracle."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path

from autotune.records import SearchResult, Values, Verdict
from autotune.space.space import Space
from scripts.bench.peers.anytime_curve import ORACLE, OURS, AnytimeCurve, Confirmation, HeadToHead, NullTrial, Setting
from scripts.bench.peers.harness import Harness, SimulatedTrainer
from scripts.bench.peers.methods import PEERS
from scripts.bench.simulation.scenarios import Scenario, null_scenario, scenario

NULL_BUDGET_S = 300.0
"""Budget of the searches with nothing to find."""

_SAMPLERS = {"TPE": "tpe", "random": "random", **({"GP": "gp"} if find_spec("torch") else {})}
_ORACLE_POINTS = 8
_ORACLE_REGRET = 0.10


def hold_head_to_head(seed: int, budgets_s: Sequence[float], folder: Path) -> HeadToHead:
    """Run all methods on one scenario.

    Args:
        seed: Number of the scenario.
        budgets_s: Budgets of our search; the other methods get the largest.
        folder: Folder for all files; must not exist yet.
    """
    before_s = _cpu_s()
    one = scenario(seed)
    longest_s = max(budgets_s)
    curves: list[AnytimeCurve] = []
    confirmations: list[Confirmation] = []
    for budget_s in budgets_s:
        curve, confirmation = tuned(one, budget_s, folder / f"search-{budget_s:g}")
        curves.append(curve)
        if confirmation is not None:
            confirmations.append(confirmation)
        for name, sampler in _SAMPLERS.items():
            curve, _ = tuned(one, budget_s, folder / f"{sampler}-{budget_s:g}", name=name, sampler=sampler)
            curves.append(replace(curve, setting=Setting.SAME_SEARCH))
    for name, peer in PEERS.items():
        harness = Harness(one, longest_s, folder / f"{name} shipped", method=name, fresh_processes=True)
        harness.follow(peer(harness.problem.space, seed), harness.measure_for_a_minute)
        curves.append(harness.curve(Setting.SHIPPED))
        harness = Harness(one, longest_s, folder / f"{name} same", method=name)
        harness.follow(peer(harness.problem.space, seed), harness.measure_as_ours)
        curves.append(harness.curve(Setting.SAME_RUNNER))
    harness = Harness(one, longest_s, folder / ORACLE, method=ORACLE)
    harness.tell_apart(_best_points(one, harness.problem.space))
    curves.append(harness.curve(None))
    return HeadToHead(
        seed=seed,
        family=one.family,
        machine=one.machine_name,
        best=one.best()[0],
        curves=curves,
        confirmations=confirmations,
        cpu_s=_cpu_s() - before_s,
    )


def hold_null_trial(seed: int, folder: Path) -> NullTrial:
    """Run our search where there is nothing to find.

    Args:
        seed: Number of the scenario.
        folder: Folder for all files; must not exist yet.
    """
    before_s = _cpu_s()
    _, confirmation = tuned(null_scenario(seed), NULL_BUDGET_S, folder)
    return NullTrial(seed=seed, confirmation=confirmation, cpu_s=_cpu_s() - before_s)


def tuned(
    one: SimulatedTrainer, budget_s: float, folder: Path, *, name: str = OURS, sampler: str = "autotune"
) -> tuple[AnytimeCurve, Confirmation | None]:
    """Run our search, assembled as the command does it.

    Args:
        one: The simulated trainer.
        budget_s: Budget of the search.
        folder: Folder for all files; must not exist yet.
        name: Name of the method in tables.
        sampler: Name of the sampler, as in a config.

    Returns:
        Its anytime curve, and what it said in the end; None if it confirmed nothing.
    """
    harness = Harness(one, budget_s, folder, method=name)
    result = harness.search(harness.budget(), sampler=sampler)
    return harness.curve(None), _confirmation(one, result)


def _confirmation(one: SimulatedTrainer, result: SearchResult | None) -> Confirmation | None:
    """Return the search's final statement with the truth; None if it confirmed nothing."""
    if result is None or result.speedup is None or result.baseline is None:
        return None
    better = result.verdict is Verdict.BETTER
    side = result.best if better else result.candidate
    baseline = one.speed(result.baseline.values)
    if side is None or baseline == 0:
        return None
    return Confirmation(
        better=better, low=result.speedup.low, high=result.speedup.high, true_ratio=one.speed(side.values) / baseline
    )


def _best_points(one: Scenario, space: Space) -> list[Values]:
    """Points of the oracle: of the best and all that differ in one or two values, the best 8 within 10 %."""
    best, best_speed = one.best()
    near = {tuple(best.values()): best}
    for first, second in combinations(space.knobs, 2):
        for one_value, other_value in product(first.choices, second.choices):
            point = {**best, first.path: one_value, second.path: other_value}
            near[tuple(point.values())] = point
    speeds = sorted(((one.speed(point), name) for name, point in near.items()), key=lambda pair: pair[0], reverse=True)
    return [near[name] for speed, name in speeds[:_ORACLE_POINTS] if speed >= (1 - _ORACLE_REGRET) * best_speed]


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
