"""Plot of the anytime curves: regret against time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.bench.peers.anytime_curve import CLOSE, ORACLE, OURS, HeadToHead, Setting
from scripts.bench.peers.tables import budgets_of, curve_of, methods_of

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
        path: The PNG file.
    """
    figure = Figure(figsize=(6 * len(Setting), 5.5), layout="constrained")
    panels = figure.subplots(1, len(Setting), sharey=True)
    for axes, setting in zip(panels, Setting, strict=True):
        _draw(axes, comparisons, setting)
    panels[0].set_ylabel("regret: share of the best possible speed left unused")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=120)


def _draw(axes: Axes, comparisons: Sequence[HeadToHead], setting: Setting) -> None:
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
