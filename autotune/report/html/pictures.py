"""Plots of a report as SVG, for light and dark mode.

Colours from Okabe and Ito's palette, contrast 3:1 on white and near-black; shapes repeat their meaning.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup, escape

from autotune.clock import format_duration
from autotune.records import NOT_COMPARED, PooledGpu, Purpose, RaceArm, RaceLeg, Ratio
from autotune.report.html.contents import StepPart, TrialPoint, best_over_time, quantile
from autotune.report.plain_text import plain

_INK = "#123456"  # placeholder of the page's text colour
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#808080"
_ROW, _FRAME = 0.34, 0.75  # inches
_MARKS = {
    Purpose.BASELINE: ("today's config", "s", _GREY, True),
    Purpose.EXPLORE: ("new point", "o", _BLUE, False),
    Purpose.REPEAT: ("repeated point", "o", _BLUE, True),
    Purpose.TAKE_BACK: ("simplified point", "^", _BLUE, False),
    Purpose.CONFIRM: ("confirming pair", "D", _GREEN, False),
}
_ARMS = {
    RaceArm.BASELINE: ("today", _GREY, "-"),
    RaceArm.WINNER: ("new values", _BLUE, "-"),
    RaceArm.SCALED: ("new values, scaled learning rate", _ORANGE, "--"),
}


def draw_ratios(name: str, title: str, rows: Sequence[tuple[str, Ratio]], label: str) -> Markup:
    """Draw ratios with 95 % intervals.

    Args:
        name: Unique on the page.
        title: For screen readers.
    """

    def draw(axes: Axes) -> None:
        for place, (_, ratio) in enumerate(rows):
            axes.plot((ratio.low, ratio.high), (place, place), color=_BLUE, linewidth=2)
            axes.plot(ratio.ratio, place, "o", color=_BLUE)
        axes.axvline(1.0, color=_GREY, linestyle="--")
        name_rows(axes, [name for name, _ in rows])
        axes.set_xlabel(label)

    return _in_page(name, title, _FRAME + _ROW * len(rows), draw)


def draw_trials(made: Sequence[TrialPoint]) -> Markup | None:
    """Draw trials and the best speed over search time."""
    points = [point for point in made if point.trial.purpose not in NOT_COMPARED]
    best, failed = best_over_time(points), [point for point in points if point.has_failed]
    if not best and not failed:
        return None

    def draw(axes: Axes) -> None:
        for purpose, (label, mark, colour, is_filled) in _MARKS.items():
            some = [point for point in points if point.trial.purpose is purpose and point.ratio is not None]
            if some:
                thin = some[:: 1 + len(some) // 1500]  # more are indistinguishable, and each takes 100 bytes
                face = colour if is_filled else "none"
                style = {"marker": mark, "markersize": 4, "markerfacecolor": face, "linestyle": "none"}
                axes.plot([p.t_s for p in thin], [p.ratio for p in thin], color=colour, label=label, **style)  # type: ignore[arg-type]
        if failed:
            if not best:
                axes.set_ylim(0, 1)  # no speeds: the marks are at the bottom
            low = axes.get_ylim()[0]
            axes.plot([p.t_s for p in failed], [low] * len(failed), "x", color=_ORANGE, label="failed", clip_on=False)
            for point in _without_overlap(failed, max(point.t_s for point in points)):
                axes.annotate(
                    plain(point.trial.ending.value, longest=24),
                    (point.t_s, low),
                    xytext=(0, 5),
                    textcoords="offset points",
                    rotation=90,
                    fontsize=7,
                    ha="center",
                    va="bottom",
                )
        if best:
            end_s = max(point.t_s for point in points)
            times, speeds = [*(t_s for t_s, _ in best), end_s], [*(ratio for _, ratio in best), best[-1][1]]
            axes.step(times, speeds, where="post", color=_GREEN, linewidth=1.8, label="best so far", zorder=1)
            axes.axhline(1.0, color=_GREY, linestyle="--", linewidth=1)
            axes.set_ylabel("times today's speed")
        else:
            axes.set_yticks([])  # no speeds: only failures over time
            axes.spines["left"].set_visible(False)
        _time_axis(axes, "search time")
        _legend(axes, columns=3)

    return _in_page("trials", "All trials and the best speed so far", 3.4 if best else 2.0, draw)


def draw_utilization(sides: Sequence[tuple[str, PooledGpu, Sequence[tuple[float, float, float]]]]) -> Markup:
    """Draw each side's utilization: driver windows, mean and band."""

    def draw(axes: Axes, place: int) -> None:
        name, gpu, windows = sides[place]
        times = [end_s - length_s for end_s, length_s, _ in windows]
        axes.step(times, [100 * busy for _, _, busy in windows], where="post", color=_BLUE, linewidth=1)
        if gpu.low is not None and gpu.high is not None:
            axes.axhspan(100 * gpu.low, 100 * gpu.high, color=_GREEN, alpha=0.18, linewidth=0)
        if gpu.figures.utilization is not None:
            axes.axhline(100 * gpu.figures.utilization, color=_ORANGE, linestyle="--", linewidth=1.2)
        axes.set_ylim(0, 105)
        axes.set_ylabel("busy, %")
        axes.set_title(f"{name}: {plain(gpu.text, longest=60)}", loc="left", fontsize=8.5)
        axes.set_xlabel("time in one trial, s" if place == len(sides) - 1 else "")

    parts = [partial(draw, place=place) for place in range(len(sides))]
    return _in_page("utilization", "GPU utilization over a trial", 1.7 * len(sides), *parts)


def draw_step_times(sides: Sequence[tuple[str, Sequence[float]]]) -> Markup:
    """Draw each side's distribution of step times."""

    def draw(axes: Axes) -> None:
        longest = 1.2 * max(quantile(times, 0.98) for _, times in sides) * 1000
        for (name, times), colour, line in zip(sides, (_GREY, _BLUE), ("--", "-"), strict=False):
            shown = [min(1000 * time_s, longest) for time_s in times]
            axes.hist(shown, bins=40, range=(0, longest), density=True, histtype="step", color=colour, linestyle=line)
            axes.plot([], [], color=colour, linestyle=line, label=f"{name} ({len(times)} steps)")
        axes.set_xlabel("step time, ms (longer ones in the last bin)")
        axes.set_yticks([])
        axes.set_ylabel("share of steps")
        _legend(axes, columns=2)

    return _in_page("steps", "Step times", 2.4, draw)


def draw_time_parts(sides: Sequence[tuple[str, float, float]]) -> Markup:
    """Draw each side's seconds per 1,000 samples: data wait and the rest."""

    def draw(axes: Axes) -> None:
        for place, (_, waiting_s, rest_s) in enumerate(sides):
            axes.barh(place, waiting_s, color=_ORANGE, hatch="///", edgecolor=_INK, linewidth=0.5)
            axes.barh(place, rest_s, left=waiting_s, color=_BLUE, linewidth=0.5, edgecolor=_INK)
        axes.barh(0, 0, color=_ORANGE, hatch="///", edgecolor=_INK, label="waiting for data")
        axes.barh(0, 0, color=_BLUE, label="the rest of the step")
        name_rows(axes, [name for name, _, _ in sides])
        axes.set_xlabel("s per 1,000 samples")
        _legend(axes, columns=2)

    return _in_page("parts", "Time per 1,000 samples", 1.1 + _ROW * len(sides), draw)


def draw_step_parts(parts: Sequence[StepPart]) -> Markup:
    """Draw the parts of a step."""

    def draw(axes: Axes) -> None:
        bars = axes.barh(range(len(parts)), [part.shown_ms for part in parts], color=_BLUE)
        axes.bar_label(bars, [f"{part.shown_ms:.3g}" if part.shown_ms else "about 0" for part in parts], padding=3)
        axes.margins(x=0.15)
        name_rows(axes, [part.name for part in parts])
        axes.set_xlabel("ms per step of today's config")

    return _in_page("step-parts", "Parts of a step of today's config", _FRAME + _ROW * len(parts), draw)


def draw_pairs(pairs: Sequence[tuple[float, float]], name: str) -> Markup:
    """Draw the speeds of each confirming pair, in samples/s."""

    def draw(axes: Axes) -> None:
        for place, (today, other) in enumerate(pairs, 1):
            axes.plot((place, place), (today, other), color=_GREY, linewidth=1)
            axes.plot(place, today, "s", color=_GREY, label="today" if place == 1 else None)
            axes.plot(place, other, "D", color=_GREEN, markerfacecolor="none", label=name if place == 1 else None)
        axes.set_xticks(range(1, len(pairs) + 1))
        axes.set_xlabel("pair")
        axes.set_ylabel("samples/s")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.1)
        _legend(axes, columns=2)

    return _in_page("pairs", "Confirming pairs", 2.6, draw)


def draw_race(legs: Sequence[RaceLeg]) -> Markup:
    """Draw a race's losses over time."""

    def draw(axes: Axes) -> None:
        named: set[RaceArm] = set()
        for leg in legs:
            if leg.curve is not None:
                name, colour, line = _ARMS[leg.arm]
                label = None if leg.arm in named else name
                axes.plot(leg.curve.ends_s, leg.curve.losses, color=colour, linestyle=line, linewidth=1.2, label=label)
                named.add(leg.arm)
        axes.set_xlabel("training time, s")
        axes.set_ylabel("loss")
        limits = _loss_limits(legs)
        if limits is not None:
            axes.set_ylim(limits)
            axes.set_xlabel("training time, s (initial losses are above)")
        _legend(axes, columns=3)

    return _in_page("race", "Losses of the race", 2.6, draw)


def _loss_limits(legs: Sequence[RaceLeg]) -> tuple[float, float] | None:
    """Return limits for the later losses if all losses span over 3 times their range."""
    curves = [leg.curve for leg in legs if leg.curve is not None]
    begins_s = 0.1 * max(curve.ends_s[-1] for curve in curves)  # initial losses: the first tenth
    low, high = min(min(curve.losses) for curve in curves), max(max(curve.losses) for curve in curves)
    later = [loss for curve in curves for t_s, loss in zip(curve.ends_s, curve.losses, strict=True) if t_s >= begins_s]
    height = max(later, default=high) - low
    return (low - 0.1 * height, low + 1.3 * height) if 0.0 < 3.0 * height < high - low else None


def _without_overlap(points: Sequence[TrialPoint], end_s: float) -> list[TrialPoint]:
    """Return points whose labels do not overlap."""
    shown: list[TrialPoint] = []
    for point in points:
        if not shown or point.t_s - shown[-1].t_s >= 0.05 * end_s:  # the height of a line of small text
            shown.append(point)
    return shown


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label rows, top to bottom."""
    axes.set_yticks(range(len(names)), [plain(name, longest=34) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _time_axis(axes: Axes, label: str) -> None:
    axes.set_xlim(left=0.0)
    end_s = axes.get_xlim()[1]
    steps_s = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
    step_s = next((step_s for step_s in steps_s if end_s / step_s <= 6), end_s)  # more labels would overlap
    ticks_s = [step_s * place for place in range(int(end_s / step_s) + 1)]
    axes.set_xticks(ticks_s, [format_duration(t_s) if t_s else "0" for t_s in ticks_s])
    axes.set_xlabel(label)


def _legend(axes: Axes, columns: int) -> None:
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _in_page(name: str, title: str, height: float, *parts: Callable[[Axes], None]) -> Markup:
    """Return stacked plots as one SVG; same numbers, same bytes.

    Ignores ``matplotlibrc``, which is read from the working directory and can start LaTeX.
    """
    settings: dict[Any, object] = {
        "font.size": 9.0,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
        "svg.hashsalt": f"autotune {name}",
        "svg.fonttype": "none",  # text stays text: searchable, and readable by screen readers
        "font.family": "sans-serif",
        "hatch.linewidth": 0.6,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        # 4.6 inches: on a phone 400 px wide, text is still 10 px high
        figure, file = Figure(figsize=(4.6, height), layout="constrained"), io.StringIO()
        rows = figure.subplots(len(parts), squeeze=False, sharex=len(parts) > 1)[:, 0]
        for axes, draw in zip(rows, parts, strict=True):
            draw(axes)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    viewed = re.search(r'viewBox="[^"]*"', svg)
    assert viewed is not None, "matplotlib writes one"
    head = f'<svg class="picture" role="img" aria-label="{escape(title)}" {viewed.group()} xmlns:xlink="http://www.w3.org/1999/xlink">'
    # matplotlib has escaped the text.
    return Markup(head + svg[svg.index(">") + 1 :].replace(_INK, "currentColor").rstrip())  # noqa: S704


# Import of matplotlib, which runs ``fc-list`` from the PATH once: use the system's PATH, not the project's.


_path = os.environ.get("PATH")
os.environ["PATH"] = os.defpath


try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
finally:
    if _path is None:
        del os.environ["PATH"]
    else:
        os.environ["PATH"] = _path
