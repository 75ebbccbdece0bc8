"""Picture of the throughput of a pipeline over two devices against its bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

_COLOURS = ("#999999", "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00")  # Okabe & Ito: told apart by everybody


def plot_throughput(ratios: Sequence[float], shares: Mapping[int, Sequence[float]], path: Path) -> None:
    """Plot throughput as a share of 1/max(f, s) against f/s, a line for each size of the buffer.

    Args:
        ratios: Values of f/s.
        shares: Throughput at each of them by size of the buffer; 0 means one stage after the other.
        path: The PNG file.
    """
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    fine = np.geomspace(min(ratios), max(ratios), 200)
    axes.axhline(1.0, color="#000000", linewidth=1, label="bound, 1/max(f, s)")
    axes.plot(fine, np.maximum(fine, 1) / (1 + fine), "--", color="#777777", linewidth=1, label="1/(f + s)")
    for colour, (depth, values) in zip(_COLOURS, shares.items(), strict=False):
        label = f"buffer of {depth}" if depth else "in turn, measured"
        axes.plot(ratios, values, "o-", color=colour, linewidth=1.6, markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axes.minorticks_off()
    axes.set_xlabel("time of the features over that of the step, f/s")
    axes.set_ylabel("throughput as a share of 1/max(f, s)")
    axes.set_ylim(0.45, 1.05)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    figure.savefig(path, dpi=120)
