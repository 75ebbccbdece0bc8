"""Benchmark of the benchmarks: statistics of the landscapes of simulated trainers, beside those of measured systems."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np

from scripts.bench.landscape_statistics import NEAR, Landscape, ruggedness
from scripts.bench.markdown import markdown_table
from scripts.bench.simulation.changed_scenarios import Change, ChangedScenario
from scripts.bench.simulation.scenarios import Grid, scenario
from scripts.bench.tables.table import Table, read_tables

_HEADS = (
    "landscape",
    "points that run",
    f"within {NEAR:.0%} of the best",
    "off the best: optimum of the main effects",
    f"greedy descents that end over {NEAR:.0%} off",
)


def benchmark_landscapes(*, folder: Path | None, seeds: Sequence[int]) -> str:
    """Compute the statistics of all landscapes.

    Args:
        folder: Folder of measured tables; None for the simulator alone.
        seeds: Numbers of the scenarios.

    Returns:
        The report, as Markdown.

    Raises:
        ConfigError: A table cannot be used.
    """
    rows = []
    if folder is not None:
        measured = {table.name: landscape_of_table(table) for table in read_tables(folder)}
        rows += [_row(name, [landscape]) for name, landscape in measured.items()]
        rows.append(_row(f"*{len(measured)} measured tables*", list(measured.values())))
    scenarios = [scenario(seed) for seed in seeds]
    rows.append(_row("*simulator*", [landscape_of_grid(one.grid) for one in scenarios]))
    for change in Change:
        grids = (ChangedScenario(scenario=one, change=change).grid for one in scenarios)
        rows.append(_row(f"*simulator: {change.value}*", [landscape_of_grid(grid) for grid in grids]))
    return f"{len(scenarios)} scenarios; of several landscapes medians, means in brackets\n\n" + markdown_table(
        _HEADS, rows
    )


def landscape_of_table(table: Table) -> Landscape:
    """Return the landscape of a measured system."""
    places = [{choice: place for place, choice in enumerate(option.choices)} for option in table.options]
    return Landscape(
        positions=np.array(
            [[place[value] for place, value in zip(places, row, strict=True)] for row in table.throughputs]
        ),
        logs=np.log(list(table.throughputs.values())),
    )


def landscape_of_grid(grid: Grid) -> Landscape:
    """Return the landscape of a scenario."""
    runs = grid.speeds > 0
    return Landscape(positions=grid.positions[runs], logs=np.log(grid.speeds[runs]))


def _row(name: str, landscapes: Sequence[Landscape]) -> Sequence[str]:
    found = [ruggedness(landscape) for landscape in landscapes]
    return [
        name,
        f"{median(len(landscape.logs) for landscape in landscapes):,.0f}",
        _cell(one.near_best for one in found),
        _cell(one.main_effects_regret for one in found),
        _cell(one.stuck for one in found),
    ]


def _cell(figures: Iterable[float]) -> str:
    """Return the median, and the mean in brackets if there are several."""
    shares = list(figures)
    return f"{median(shares):.1%}" + (f" ({fmean(shares):.1%})" if len(shares) > 1 else "")
