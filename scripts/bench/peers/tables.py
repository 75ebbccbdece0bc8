"""Tables of the results, as Markdown."""

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from autotune.clock import format_duration
from scripts.bench.markdown import markdown_table
from scripts.bench.peers.anytime_curve import (
    CLOSE,
    ORACLE,
    OURS,
    AnytimeCurve,
    Confirmation,
    HeadToHead,
    NullTrial,
    Setting,
)

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
            low, middle, high = np.percentile(regrets, (25, 50, 75))
            cells.append(f"{middle:.1%} ({low:.1%} to {high:.1%})")
        longest = [curve_of(c, method, setting, budgets_s[-1]) for c in unsolved]
        close = sum(curve.close_s() is not None for curve in longest)
        cells.append(f"{close / len(longest):.0%}" if longest else "-")
        cells.append(_time([time_s(curve) for curve in longest], budgets_s[-1]) if longest else "-")
        whole = [curve_of(head_to_head, method, setting, budgets_s[-1]) for head_to_head in comparisons]
        cells.append(f"{median(curve.trials for curve in whole):.0f}")
        cells.append(format_duration(median(curve.used_s for curve in whole)))
        rows.append(cells)
    regret_heads = [f"regret after {format_duration(budget_s)}, median (quartiles)" for budget_s in budgets_s]
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
