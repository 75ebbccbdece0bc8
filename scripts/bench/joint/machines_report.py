"""Tables of searches of several machines, as Markdown."""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from autotune.clock import format_duration
from scripts.bench.joint.made_searches import Ground, MadeSearch
from scripts.bench.markdown import markdown_table
from scripts.bench.peers.anytime_curve import CLOSE


def machines_report(searches: Sequence[MadeSearch]) -> str:
    """Return the tables of all kinds of searches that were made."""
    parts = []
    for ground, title, table in (
        (Ground.FINDS, f"Time to within {CLOSE:.0%} of the best point", times_table),
        (Ground.NULL, "Searches with nothing to find (A/A)", false_wins_table),
        (Ground.BLACK_HOLE, "One machine on which every trial fails", black_holes_table),
    ):
        some = [search for search in searches if search.piece.ground is ground]
        if some:
            parts.append(f"## {title}\n\n{table(some)}")
    return "\n\n".join(parts) + "\n"


def times_table(searches: Sequence[MadeSearch]) -> str:
    """Return a table with a line for each number of machines: times, and how much shorter than on one they are.

    A search that never finds such a point counts with its whole budget. Scenarios whose baseline is one are left out.
    """
    unsolved = [search for search in searches if not search.is_solved]
    by_machines = _by_machines(unsolved)
    single = {search.piece.seed: search for search in by_machines.get(1, [])}
    rows = []
    for machines, some in by_machines.items():
        measured_s = [search.baseline_s for search in some if search.baseline_s is not None]
        cells = [str(machines), str(len(some)), format_duration(median(measured_s)) if measured_s else "-"]
        cells += _times([search.time_s() for search in some])
        if single:
            cells += _shorter(some, [single[search.piece.seed] for search in some])
        cells += _times([search.time_s(answered=True) for search in some])
        cells.append(f"{sum(search.answered_s is not None for search in some) / len(some):.0%}")
        cells.append(f"{median(search.trials for search in some):.0f}")
        cells.append(f"{sum(search.doubles for search in some) / sum(search.trials for search in some):.1%}")
        rows.append(cells)
    heads = ["machines", "searches", "first baseline, median", "found: median, mean, p90"]
    heads += ["times shorter than on one: median, mean, p90; median of ratios"] if single else []
    heads += ["answered for good: median, mean, p90", "ever", "trials", "doubles"]
    return markdown_table(heads, rows)


def false_wins_table(searches: Sequence[MadeSearch]) -> str:
    """Return a table with a line for each number of machines: how many said that there are better values."""
    rows = [
        [
            str(machines),
            str(len(some)),
            str(wrong := sum(search.says_better for search in some)),
            f"{wrong / len(some):.1%}",
            format_duration(median(search.ended_s for search in some)),
            f"{median(search.trials for search in some):.0f}",
        ]
        for machines, some in _by_machines(searches).items()
    ]
    return markdown_table(["machines", "searches", '"better"', "share", "time used", "trials"], rows)


def black_holes_table(searches: Sequence[MadeSearch]) -> str:
    """Return a table with a line for black holes from the beginning, and one for later ones."""
    rows = []
    for name, is_late in (("from the beginning", 0), ("after one to three minutes", 1)):
        some = [search for search in searches if search.piece.seed % 2 == is_late]
        if not some:
            continue
        unsolved = [search for search in some if not search.is_solved]
        named_s = [search.named_s for search in some if search.named_s is not None]
        rows.append(
            [
                name,
                str(len(some)),
                str(sum(bool(search.named) for search in some)),
                format_duration(median(named_s)) if named_s else "-",
                f"{median(search.lost_trials for search in some):.0f}",
                str(sum(search.wronged > 0 for search in some)),
                *(_times([search.time_s() for search in unsolved]) or ["-"]),
            ]
        )
    heads = ["every trial fails", "searches", "named", "left after, median", "its failures, median"]
    return markdown_table([*heads, "with a working machine named", f"time to {CLOSE:.0%}: median, mean, p90"], rows)


def _by_machines(searches: Sequence[MadeSearch]) -> dict[int, list[MadeSearch]]:
    numbers = sorted({search.piece.machines for search in searches})
    return {number: [search for search in searches if search.piece.machines == number] for number in numbers}


def _times(times_s: Sequence[float]) -> list[str]:
    return [", ".join(map(format_duration, _figures(times_s)))] if times_s else []


def _shorter(searches: Sequence[MadeSearch], single: Sequence[MadeSearch]) -> list[str]:
    ours, theirs = ([search.time_s() for search in some] for some in (searches, single))
    figures = [other / own for own, other in zip(_figures(ours), _figures(theirs), strict=True)]
    ratios = median(other / own for own, other in zip(ours, theirs, strict=True))
    return [", ".join(f"{figure:.1f}" for figure in figures) + f"; {ratios:.1f}"]


def _figures(times_s: Sequence[float]) -> tuple[float, float, float]:
    """Return median, mean and 90th percentile."""
    middle, high = np.percentile(times_s, (50, 90))
    return float(middle), fmean(times_s), float(high)
