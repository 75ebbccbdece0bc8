"""Benchmark of our search against other tuners, on simulated trainers whose best config is known.

On each scenario: our search as the command runs it, the peers in both settings, and an oracle. Every finished scenario
is a line of ``results.jsonl``, so that the same command resumes after an interruption.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from optuna.samplers import RandomSampler, TPESampler

from autotune import __version__
from autotune.clock import format_duration
from autotune.records import SearchResult, Values, Verdict
from autotune.sampler.config_sampler import SamplerChoice
from autotune.space.space import Space
from scripts.bench.harness import (
    CLOSE,
    ORACLE,
    OURS,
    AnytimeCurve,
    Confirmation,
    Harness,
    HeadToHead,
    NullTrial,
    Setting,
    SimulatedTrainer,
)
from scripts.bench.peers import PEERS
from scripts.bench.results import (
    Commands,
    add_pieces,
    make_missing,
    markdown_table,
    parse_budgets_s,
    parse_seeds,
    regret_cells,
    work_folder,
)
from scripts.bench.simulation.scenarios import Scenario, null_scenario, scenario

NULL_BUDGET_S = 300.0
"""Budget of the searches with nothing to find."""

_SAMPLERS = {"TPE": TPESampler, "random": RandomSampler}
_ORACLE_POINTS = 8
_ORACLE_REGRET = 0.10


def hold_head_to_head(seed: int, budgets_s: Sequence[float], folder: Path) -> HeadToHead:
    """Run all methods on one scenario.

    Args:
        budgets_s: Budgets of our search; the other methods get the largest.
        folder: Folder for all files; must not exist yet.
    """
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
            curve, _ = tuned(one, budget_s, folder / f"{name}-{budget_s:g}", name=name, sampler=sampler(seed=one.seed))
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
    )


def hold_null_trial(seed: int, folder: Path) -> NullTrial:
    """Run our search where there is nothing to find.

    Args:
        folder: Folder for all files; must not exist yet.
    """
    _, confirmation = tuned(null_scenario(seed), NULL_BUDGET_S, folder)
    return NullTrial(seed=seed, confirmation=confirmation)


def tuned(
    one: SimulatedTrainer, budget_s: float, folder: Path, *, name: str = OURS, sampler: SamplerChoice = None
) -> tuple[AnytimeCurve, Confirmation | None]:
    """Run our search, assembled as the command does it.

    Args:
        folder: Folder for all files; must not exist yet.
        sampler: As in `SearchParts`.

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


_CLEAR_GAIN = 1.05


def report(comparisons: Sequence[HeadToHead], nulls: Sequence[NullTrial]) -> str:
    """Return all tables.

    Args:
        comparisons: At least one; all with the same budgets.
        nulls: Searches with nothing to find, possibly none.
    """
    parts = [
        f"{len(comparisons)} scenarios, {sum(c.baseline_is_close for c in comparisons)} of them with nothing to find."
    ]
    for setting in Setting:
        parts += [
            f"## {setting.value.capitalize()}",
            methods_table(comparisons, setting),
            speedups(comparisons, setting),
        ]
    parts += ["## What our search leaves", shortfalls_table(comparisons)]
    parts += ["## Confirmation", confirmations_table(comparisons, nulls)]
    return "\n\n".join(parts) + "\n"


def methods_table(comparisons: Sequence[HeadToHead], setting: Setting) -> str:
    """Return a table with a line for each method: regret after each budget, and the time until it was close.

    Scenarios whose baseline is close to the best count for the regret alone.
    """
    unsolved = [head_to_head for head_to_head in comparisons if not head_to_head.baseline_is_close]
    budgets_s = budgets_of(comparisons)
    rows = []
    for method in methods_of(comparisons, setting):
        cells = [method]
        for budget_s in budgets_s:
            regrets = [curve_of(c, method, setting, budget_s).regret_at(budget_s) for c in comparisons]
            cells.append(", ".join(regret_cells(regrets)))
        longest = [curve_of(c, method, setting, budgets_s[-1]) for c in unsolved]
        close = sum(curve.close_s() is not None for curve in longest)
        cells.append(f"{close / len(longest):.0%}" if longest else "-")
        cells.append(_time([time_s(curve) for curve in longest], budgets_s[-1]) if longest else "-")
        whole = [curve_of(head_to_head, method, setting, budgets_s[-1]) for head_to_head in comparisons]
        cells.append(f"{median(curve.trials for curve in whole):.0f}")
        cells.append(format_duration(median(curve.used_s for curve in whole)))
        rows.append(cells)
    regret_heads = [f"regret after {format_duration(budget_s)}: median, mean, p90" for budget_s in budgets_s]
    return markdown_table(
        ["method", *regret_heads, f"within {CLOSE:.0%}", f"time to {CLOSE:.0%}, median", "trials", "time used"], rows
    )


def speedups(comparisons: Sequence[HeadToHead], setting: Setting) -> str:
    """Return how many times sooner than the best peer our search was close: over all, by family, by machine.

    The best peer is the one with the shortest median time; within a family, the best one of that family. The speedup is
    the median over the scenarios of its time over ours. A method that never comes close is counted with its whole
    budget. Scenarios whose baseline is close to the best are left out.
    """
    unsolved = [head_to_head for head_to_head in comparisons if not head_to_head.baseline_is_close]
    groups = {"all": unsolved}
    for head_to_head in sorted(unsolved, key=lambda head_to_head: head_to_head.family):
        groups.setdefault(head_to_head.family, []).append(head_to_head)
    for head_to_head in unsolved:
        groups.setdefault(head_to_head.machine, []).append(head_to_head)
    rows = []
    for name, some in groups.items():
        if not some:
            continue
        longest_s = budgets_of(some)[-1]
        times = {
            method: [time_s(curve_of(c, method, setting, longest_s)) for c in some]
            for method in methods_of(some, setting)
        }
        peers = [method for method in times if method not in (OURS, ORACLE)]
        best = min(peers, key=lambda method: (median(times[method]), sum(times[method])))
        ratios = [theirs / ours for theirs, ours in zip(times[best], times[OURS], strict=True)]
        low, middle, high = np.percentile(ratios, (25, 50, 75))
        rows.append(
            [
                name,
                str(len(some)),
                best,
                _time(times[best], longest_s),
                _time(times[OURS], longest_s),
                f"{middle:.1f} ({low:.1f} to {high:.1f})",
                *(
                    f"{median(curve_of(c, method, setting, longest_s).regret_at(longest_s) for c in some):.1%}"
                    for method in (best, OURS)
                ),
            ]
        )
    heads = ["", "scenarios", "best peer", "its time", "our time", "speed-up (quartiles)"]
    return markdown_table([*heads, "its regret", "our regret"], rows)


def shortfalls_table(comparisons: Sequence[HeadToHead]) -> str:
    """Return the number of scenarios in which our answer is not close, by cause: each is counted once."""
    rows = []
    for budget_s in budgets_of(comparisons):
        counts = dict.fromkeys(("close", "today's config kept", "had been close", "never close"), 0)
        for head_to_head in comparisons:
            curve = curve_of(head_to_head, OURS, Setting.SAME_RUNNER, budget_s)
            regrets = [regret for _, regret in curve.regrets]
            if regrets[-1] <= CLOSE:
                counts["close"] += 1
            elif regrets[-1] == regrets[0]:
                counts["today's config kept"] += 1
            elif min(regrets) <= CLOSE:
                counts["had been close"] += 1
            else:
                counts["never close"] += 1
        heads = ["budget", *counts]
        rows.append([format_duration(budget_s), *(str(count) for count in counts.values())])
    return markdown_table(heads, rows)


def confirmations_table(comparisons: Sequence[HeadToHead], nulls: Sequence[NullTrial]) -> str:
    """Return how often our search says ``better`` wrongly, and how often its interval holds the truth."""
    found = [confirmation for head_to_head in comparisons for confirmation in head_to_head.confirmations]
    searches = sum(curve.method == OURS for head_to_head in comparisons for curve in head_to_head.curves)
    rows = [
        _coverage("searches of the contests", searches, found),
        _coverage(
            f"... of truly {_CLEAR_GAIN - 1:.0%} or more", None, [c for c in found if c.true_ratio >= _CLEAR_GAIN]
        ),
        _coverage("... said to be better", None, [c for c in found if c.better]),
    ]
    if nulls:
        same = [null.confirmation for null in nulls if null.confirmation is not None]
        rows.append(_coverage("nothing to find (A/A)", len(nulls), same))
    return markdown_table(
        ["", "searches", "confirmations", "better", "better, in truth not faster", "95 % interval holds"], rows
    )


def budgets_of(comparisons: Iterable[HeadToHead]) -> list[float]:
    """Return the budgets of our search, shortest first."""
    return sorted(
        {curve.budget_s for head_to_head in comparisons for curve in head_to_head.curves if curve.method == OURS}
    )


def methods_of(comparisons: Sequence[HeadToHead], setting: Setting) -> list[str]:
    """Return the names of the methods in a setting, ours first."""
    curves = (curve for head_to_head in comparisons for curve in head_to_head.curves)
    return list(dict.fromkeys(curve.method for curve in curves if curve.setting in (setting, None)))


def curve_of(head_to_head: HeadToHead, method: str, setting: Setting, budget_s: float) -> AnytimeCurve:
    """Return a method's anytime curve: that of a search with just that budget, else of one that went on longer."""
    curves = [curve for curve in head_to_head.curves if curve.method == method and curve.setting in (setting, None)]
    return next((curve for curve in curves if curve.budget_s == budget_s), curves[-1])


def time_s(curve: AnytimeCurve) -> float:
    """Return the time from which a method was close to the best for good; its whole budget if it never was."""
    close_s = curve.close_s()
    return curve.budget_s if close_s is None else close_s


def _time(times_s: Sequence[float], longest_s: float) -> str:
    middle_s = median(times_s)
    return format_duration(middle_s) if middle_s < longest_s else f"over {format_duration(longest_s)}"


def _coverage(name: str, searches: int | None, confirmations: Sequence[Confirmation]) -> list[str]:
    better = [c for c in confirmations if c.better]
    wrong = sum(c.true_ratio <= 1.0 for c in better)
    holds = sum(c.holds for c in confirmations)
    share = f"{holds / len(confirmations):.1%}" if confirmations else "-"
    return [
        name,
        "" if searches is None else str(searches),
        str(len(confirmations)),
        str(len(better)),
        str(wrong),
        share,
    ]


_LEAST_REGRET = 1e-3  # lower end of the logarithmic axis
_POINTS = 300
_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#000000",
)  # Okabe & Ito: told apart by everybody


def plot_regrets(comparisons: Sequence[HeadToHead], path: Path) -> None:
    """Plot the median regret against time for each method in each setting, with quartiles in thin lines.

    Args:
        comparisons: At least one; all with the same budgets.
    """
    from matplotlib.figure import Figure  # of the extra `bench`, which other benchmarks do without

    figure = Figure(figsize=(6 * len(Setting), 5.5), layout="constrained")
    panels = figure.subplots(1, len(Setting), sharey=True)
    for axes, setting in zip(panels, Setting, strict=True):
        _draw(axes, comparisons, setting)
    panels[0].set_ylabel("regret: share of the best possible speed left unused")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=120)


def _draw(axes: Any, comparisons: Sequence[HeadToHead], setting: Setting) -> None:
    longest_s = budgets_of(comparisons)[-1]
    times_s = np.geomspace(longest_s / 200, longest_s, _POINTS)
    named = [method for other in Setting for method in methods_of(comparisons, other) if method != ORACLE]
    colours = dict(zip(dict.fromkeys(named), _COLOURS, strict=False))
    for method in methods_of(comparisons, setting):
        curves = [curve_of(head_to_head, method, setting, longest_s) for head_to_head in comparisons]
        regrets = [[max(curve.regret_at(time_s), _LEAST_REGRET) for curve in curves] for time_s in times_s]
        low, middle, high = np.percentile(regrets, (25, 50, 75), axis=1)
        colour = "#777777" if method == ORACLE else colours[method]
        width = 2.5 if method == OURS else 1.4
        line = "--" if method == ORACLE else "-"
        axes.plot(times_s / 60, middle, line, color=colour, linewidth=width, label=method)
        if method == OURS:
            axes.fill_between(times_s / 60, low, high, color=colour, alpha=0.12, linewidth=0)
        else:  # seven overlapping shaded areas would be illegible
            for quartile in (low, high):
                axes.plot(times_s / 60, quartile, line, color=colour, linewidth=0.4, alpha=0.5)
    axes.axhline(CLOSE, color="black", linewidth=0.6, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_REGRET, 1.0)
    axes.set_xlim(times_s[0] / 60, longest_s / 60)
    minutes = [m for m in (0.25, 0.5, 1, 2, 5, 10, 20, 30, 60) if times_s[0] / 60 <= m <= longest_s / 60]
    axes.set_xticks(minutes, [f"{m:g}" for m in minutes])
    axes.minorticks_off()
    axes.set_yticks([0.001, 0.01, 0.05, 0.1, 0.5, 1.0], ["0.1 %", "1 %", "5 %", "10 %", "50 %", "100 %"])
    axes.set_xlabel("minutes")
    axes.set_title(f"peers {setting.value}")


FORMAT = 4
"""Version of the lines of ``results.jsonl``."""

REPORT_SEEDS = range(1000, 1200)
"""Scenarios reserved for reports: the search is developed on those below 100."""

REPORT_NULLS = 2000


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Scenario that was made: a comparison, or a search with nothing to find."""

    contest: HeadToHead | None = None
    null: NullTrial | None = None

    @property
    def piece(self) -> tuple[str, int]:
        """Its kind and number."""
        made = self.contest or self.null
        assert made
        return "contest" if self.contest else "null", made.seed


def benchmark_search(*, seeds: range, nulls: int, budgets_s: Sequence[float], jobs: int, out: Path) -> None:
    """Run the missing scenarios, print the tables, and plot the regrets.

    Args:
        budgets_s: Budgets of our search; the other methods get the largest.
        out: Folder of the results; an existing one is resumed.

    Raises:
        ConfigError: The folder holds results of another benchmark.
    """
    wanted = [("contest", seed) for seed in seeds]
    wanted += [("null", seed) for seed in range(seeds.start, seeds.start + nulls)]
    made = make_missing(
        partial(_make, budgets_s=budgets_s),
        wanted,
        path=out / "results.jsonl",
        head={"format": FORMAT, "autotune": __version__, "budgets_s": list(budgets_s)},
        kind=_Made,
        jobs=jobs,
        describe=lambda one: "{} {}".format(*one.piece),
    )
    comparisons = [one.contest for one in made if one.contest]
    text = report(comparisons, [one.null for one in made if one.null])
    print(text)
    (out / "tables.md").write_text(text, encoding="utf-8")
    plot_regrets(comparisons, out / "regret.png")


def _make(piece: tuple[str, int], budgets_s: Sequence[float]) -> _Made:
    kind, seed = piece
    with work_folder() as folder:
        if kind == "contest":
            return _Made(contest=hold_head_to_head(seed, budgets_s, folder))
        return _Made(null=hold_null_trial(seed, folder))


def add_search(commands: Commands) -> None:
    """Add the parser of ``search``."""
    parser = commands.add_parser("search", help="compare the search with other ways to tune, on simulated trainers")
    parser.add_argument(
        "--seeds", type=parse_seeds, default=range(100), metavar="0-31", help="scenarios (default: 0-99)"
    )
    parser.add_argument("--aa", type=int, default=0, metavar="N", help="searches with nothing to find (default: 0)")
    parser.add_argument("--report", action="store_true", help="the scenarios that are kept for reports, and 2,000 A/A")
    parser.add_argument("--budgets", type=parse_budgets_s, default="5m,30m", help="default: %(default)s")
    add_pieces(parser, out="bench-search")
    parser.set_defaults(run=_search)


def _search(arguments: argparse.Namespace) -> None:
    benchmark_search(
        seeds=REPORT_SEEDS if arguments.report else arguments.seeds,
        nulls=REPORT_NULLS if arguments.report else arguments.aa,
        budgets_s=arguments.budgets,
        jobs=arguments.jobs,
        out=arguments.out,
    )
