"""Pictures of a report: SVG that takes its colours of text and lines from the page, by day and by night.

Colours are those of Okabe and Ito's palette that have a contrast of 3 to 1 against white and against near-black; what a
colour says is said by a shape as well.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.clock import format_duration
from autotune.records import Ending, PooledGpu, Purpose, RaceArm, RaceLeg, Ratio, TrialRecord
from autotune.report.html.contents import ConfirmingPair, Html, text
from autotune.report.plain_text import changes_text, plain

_INK = "#123456"  # stands for the colour of the page's text
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#808080"
_ROW, _FRAME = 0.34, 0.75  # inches
_MOST_POINTS = 1500
_MOST_TICKS = 6
_TIME_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
_MARKS = {
    Purpose.BASELINE: ("today's config", "s", _GREY, True),
    Purpose.EXPLORE: ("a new point", "o", _BLUE, False),
    Purpose.REPEAT: ("a point once more", "o", _BLUE, True),
    Purpose.CONFIRM: ("confirming pair", "D", _GREEN, False),
}
_ARMS = {
    RaceArm.BASELINE: ("today", _GREY, "-"),
    RaceArm.WINNER: ("the new values", _BLUE, "-"),
    RaceArm.SCALED: ("with the learning rate scaled", _ORANGE, "--"),
}


def draw_ratios(name: str, title: str, rows: Sequence[tuple[str, Ratio]], label: str) -> Html:
    """Draw ratios with their 95 % intervals, a row each.

    Args:
        name: Name of the picture, of which there is one on a page.
        title: What it shows, for those who do not see it.
    """

    def draw(axes: Axes) -> None:
        for place, (_, ratio) in enumerate(rows):
            axes.plot((ratio.low, ratio.high), (place, place), color=_BLUE, linewidth=2)
            axes.plot(ratio.ratio, place, "o", color=_BLUE)
        axes.axvline(1.0, color=_GREY, linestyle="--")
        _name_rows(axes, [name for name, _ in rows])
        axes.set_xlabel(label)

    return _svg(name, title, _FRAME + _ROW * len(rows), draw)


def draw_trials(points: Sequence[TrialPoint], best: Sequence[tuple[float, float]]) -> Html:
    """Draw all trials, and the best speed so far, against search time."""

    def draw(axes: Axes) -> None:
        for purpose, (label, mark, colour, is_filled) in _MARKS.items():
            some = [point for point in points if point.trial.purpose is purpose and point.ratio is not None]
            if some:
                thin = some[:: 1 + len(some) // _MOST_POINTS]
                face = colour if is_filled else "none"
                style = {"marker": mark, "markersize": 4, "markerfacecolor": face, "linestyle": "none"}
                axes.plot([p.t_s for p in thin], [p.ratio for p in thin], color=colour, label=label, **style)  # type: ignore[arg-type]
        failed = [point for point in points if point.has_failed]
        if failed:
            if not best:
                axes.set_ylim(0, 1)  # of nothing: the marks stand at the bottom
            low = axes.get_ylim()[0]
            axes.plot([p.t_s for p in failed], [low] * len(failed), "x", color=_ORANGE, label="failed", clip_on=False)
            for point in _apart(failed, max(point.t_s for point in points)):
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
            axes.set_yticks([])  # nothing gave a speed: failures stand on the time alone
            axes.spines["left"].set_visible(False)
        _time_axis(axes, "search time")
        _legend(axes, columns=3)

    return _svg("trials", "All trials, and the best speed so far", 3.4 if best else 2.0, draw)


def draw_utilization(sides: Sequence[tuple[str, PooledGpu, Sequence[tuple[float, float, float]]]]) -> Html:
    """Draw the utilization of a GPU on each side: its driver windows, its mean, and the band between its levels."""

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
        axes.set_xlabel("s of one trial" if place == len(sides) - 1 else "")

    parts: list[Callable[[Axes], None]] = [
        (lambda axes, place=place: draw(axes, place))  # type: ignore[misc]  # mypy cannot infer the default
        for place in range(len(sides))
    ]
    return _svg("utilization", "GPU utilization over a trial", 1.7 * len(sides), *parts)


def draw_step_times(sides: Sequence[tuple[str, Sequence[float]]]) -> Html:
    """Draw how many steps took how long, on each side."""

    def draw(axes: Axes) -> None:
        longest = max(_high(times) for _, times in sides) * 1000
        for (name, times), colour, line in zip(sides, (_GREY, _BLUE), ("--", "-"), strict=False):
            shown = [min(1000 * time_s, longest) for time_s in times]
            axes.hist(shown, bins=40, range=(0, longest), density=True, histtype="step", color=colour, linestyle=line)
            axes.plot([], [], color=colour, linestyle=line, label=f"{name} ({len(times)} steps)")
        axes.set_xlabel("time of a step, ms (longer ones at the right end)")
        axes.set_yticks([])
        axes.set_ylabel("share of steps")
        _legend(axes, columns=2)

    return _svg("steps", "How long steps take", 2.4, draw)


def draw_time_parts(sides: Sequence[tuple[str, float, float]]) -> Html:
    """Draw the time for 1,000 samples on each side: waiting for data, and the rest of the steps, in seconds."""

    def draw(axes: Axes) -> None:
        for place, (_, waiting_s, rest_s) in enumerate(sides):
            axes.barh(place, waiting_s, color=_ORANGE, hatch="///", edgecolor=_INK, linewidth=0.5)
            axes.barh(place, rest_s, left=waiting_s, color=_BLUE, linewidth=0.5, edgecolor=_INK)
        axes.barh(0, 0, color=_ORANGE, hatch="///", edgecolor=_INK, label="waiting for data")
        axes.barh(0, 0, color=_BLUE, label="the rest of the step")
        _name_rows(axes, [name for name, _, _ in sides])
        axes.set_xlabel("s for 1,000 samples")
        _legend(axes, columns=2)

    return _svg("parts", "Where the time goes", 1.1 + _ROW * len(sides), draw)


def draw_step_parts(parts: Sequence[tuple[str, float]]) -> Html:
    """Draw the parts of a step, in ms; those that are lost in the noise as nothing."""

    def draw(axes: Axes) -> None:
        times_ms = [max(0.0, mean_ms) for _, mean_ms in parts]
        bars = axes.barh(range(len(parts)), times_ms, color=_BLUE)
        axes.bar_label(bars, [f"{time_ms:.3g}" if time_ms else "about 0" for time_ms in times_ms], padding=3)
        axes.margins(x=0.15)
        _name_rows(axes, [name for name, _ in parts])
        axes.set_xlabel("ms of a step of today's config")

    return _svg("step-parts", "Parts of a step of today's config", _FRAME + _ROW * len(parts), draw)


def draw_pairs(pairs: Sequence[ConfirmingPair], name: str) -> Html:
    """Draw the speeds of both halves of each confirming pair, in samples a second; a cross where it is left out."""

    def draw(axes: Axes) -> None:
        for place, pair in enumerate(pairs, 1):
            line = ":" if pair.is_left_out else "-"
            axes.plot((place, place), (pair.today, pair.other), color=_GREY, linewidth=1, linestyle=line)
            axes.plot(place, pair.today, "s", color=_GREY, label="today" if place == 1 else None)
            axes.plot(place, pair.other, "D", color=_GREEN, markerfacecolor="none", label=name if place == 1 else None)
        left_out = [place for place, pair in enumerate(pairs, 1) if pair.is_left_out]
        if left_out:
            middles = [(pairs[place - 1].today + pairs[place - 1].other) / 2 for place in left_out]
            axes.plot(left_out, middles, "x", color=_ORANGE, label="left out")
        axes.set_xticks(range(1, len(pairs) + 1))
        axes.set_xlabel("pair")
        axes.set_ylabel("samples/s")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.1)
        _legend(axes, columns=3)

    return _svg("pairs", "Confirming pairs", 2.6, draw)


def draw_race(legs: Sequence[RaceLeg]) -> Html:
    """Draw the losses of a race's trainings against time."""

    def draw(axes: Axes) -> None:
        named: set[RaceArm] = set()
        for leg in legs:
            if leg.curve is not None:
                name, colour, line = _ARMS[leg.arm]
                label = None if leg.arm in named else name
                axes.plot(leg.curve.ends_s, leg.curve.losses, color=colour, linestyle=line, linewidth=1.2, label=label)
                named.add(leg.arm)
        axes.set_xlabel("s of training")
        axes.set_ylabel("loss")
        shown = _shown_of_race(legs)
        if shown is not None:
            axes.set_ylim(shown)
            axes.set_xlabel("s of training (the beginning lies above)")
        _legend(axes, columns=3)

    return _svg("race", "Losses of the race", 2.6, draw)


def _shown_of_race(legs: Sequence[RaceLeg]) -> tuple[float, float] | None:
    """Return the losses to draw, where those of the beginning would leave no room for the others; None for all."""
    curves = [leg.curve for leg in legs if leg.curve is not None]
    begins_s = 0.1 * max(curve.ends_s[-1] for curve in curves)  # of a race
    low, high = min(min(curve.losses) for curve in curves), max(max(curve.losses) for curve in curves)
    later = [loss for curve in curves for t_s, loss in zip(curve.ends_s, curve.losses, strict=True) if t_s >= begins_s]
    height = max(later, default=high) - low
    # times as high as what comes later
    return (low - 0.1 * height, low + 1.3 * height) if 0.0 < 3.0 * height < high - low else None


def _apart(points: Sequence[TrialPoint], end_s: float) -> list[TrialPoint]:
    """Return those whose names do not hide each other on a time axis of that length."""
    shown: list[TrialPoint] = []
    for point in points:
        if not shown or point.t_s - shown[-1].t_s >= 0.05 * end_s:  # of a time axis: the height of a line of small text
            shown.append(point)
    return shown


def _high(times: Sequence[float]) -> float:
    ordered = sorted(times)
    return 1.2 * ordered[min(len(ordered) - 1, int(0.98 * len(ordered)))]


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [plain(name, longest=34) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _time_axis(axes: Axes, label: str) -> None:
    axes.set_xlim(left=0.0)
    end_s = axes.get_xlim()[1]
    step_s = next((step_s for step_s in _TIME_STEPS_S if end_s / step_s <= _MOST_TICKS), end_s)
    ticks_s = [step_s * place for place in range(int(end_s / step_s) + 1)]
    axes.set_xticks(ticks_s, [format_duration(t_s) if t_s else "0" for t_s in ticks_s])
    axes.set_xlabel(label)


def _legend(axes: Axes, columns: int) -> None:
    """Put the legend below the picture, where it hides nothing."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _svg(name: str, title: str, height: float, *parts: Callable[[Axes], None]) -> Html:
    """Return a picture as an element of a page; the same numbers make the same bytes."""
    settings: dict[Any, Any] = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
        "svg.hashsalt": f"autotune {name}",
        "svg.fonttype": "none",  # text that can be read out, searched and copied
        "font.size": 9.0,
        "font.family": "sans-serif",
        "hatch.linewidth": 0.6,
    }
    with rc_context(settings):
        # inches: at 400 px of a telephone its text is still 10 px high
        figure = Figure(figsize=(4.6, height), layout="constrained")
        figure.patch.set_alpha(0.0)
        for axes, draw in zip(
            figure.subplots(len(parts), squeeze=False, sharex=len(parts) > 1)[:, 0], parts, strict=True
        ):
            axes.patch.set_alpha(0.0)
            draw(axes)
            axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _in_page(file.getvalue(), name, title)


def _in_page(svg: str, name: str, title: str) -> Html:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    viewed = re.search(r'viewBox="[^"]*"', svg)
    assert viewed is not None, "matplotlib writes one"
    head = f'<svg class="picture" role="img" aria-label="{text(title)}" {viewed.group()} xmlns:xlink="http://www.w3.org/1999/xlink">'
    return Html(head + svg[svg.index(">") + 1 :].replace(_INK, "currentColor").rstrip())


# Matplotlib, imported without starting a program that the PATH names: it looks for fonts with ``fc-list``, once.


_path = os.environ.get("PATH")
os.environ["PATH"] = os.defpath  # that of the system: a project may have put programs of its own before these


try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
finally:
    if _path is None:
        del os.environ["PATH"]
    else:
        os.environ["PATH"] = _path


__all__ = ["Axes", "Figure", "rc_context"]


@contextmanager
def rc_context(settings: dict[Any, Any]) -> Iterator[None]:
    """Draw with these settings and otherwise matplotlib's own, for a while.

    Those of a ``matplotlibrc`` do not count: it is looked for in the working directory first, and can have text set by
    LaTeX, which is started from the PATH.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """One trial.

    Attributes:
        t_s: Its end, in seconds of search time: what lies between two searches is left out.
        ratio: Its speed over that of today's config on its machine; None where it cannot be compared.
    """

    trial: TrialRecord
    t_s: float
    ratio: float | None
    changes: str
    has_failed: bool


def trial_points(trials: Sequence[TrialRecord]) -> list[TrialPoint]:
    """Return the trials of a study's searches, in the order of their ends, without those of diagnoses."""
    firsts = {trial.search: trial for trial in reversed(trials)}
    # A diagnosis begins with a trial of its own, and goes on with trials that are named as those of a search are.
    diagnoses = {search for search, first in firsts.items() if first.purpose is Purpose.DIAGNOSE}
    made = [trial for trial in trials if trial.search not in diagnoses and trial.purpose is not Purpose.DIAGNOSE]
    baseline = next((trial for trial in made if trial.purpose is Purpose.BASELINE), None)
    if baseline is None:
        return []
    today_s = {machine: _today(made, baseline.point, machine) for machine in {trial.machine for trial in made}}
    points: list[TrialPoint] = []
    zero_s: dict[str, float] = {}  # by search, the time of day that is 0 in search time
    for trial in made:
        ended_s = _stamp(trial)
        if trial.search not in zero_s:
            zero_s[trial.search] = ended_s - trial.duration_s - (points[-1].t_s if points else 0.0)
        today = today_s[trial.machine]
        measured = trial.comparable
        points.append(
            TrialPoint(
                trial=trial,
                t_s=max(0.0, ended_s - zero_s[trial.search]),
                ratio=measured.speed / today if measured is not None and today else None,
                changes=changes_text(
                    {path: value for path, value in trial.values.items() if baseline.values.get(path) != value}
                ),
                has_failed=trial.ending not in _NO_FAILURE,
            )
        )
    return points


def best_over_time(points: Iterable[TrialPoint]) -> list[tuple[float, float]]:
    """Return the mean speed of the fastest point so far, at the times from which it holds; 1.0 is today's config."""
    speeds: dict[str, list[float]] = {}
    steps: list[tuple[float, float]] = []
    for point in points:
        if point.ratio is None:
            continue
        baseline = point.trial.purpose is Purpose.BASELINE or point.changes == changes_text({})
        speeds.setdefault("" if baseline else point.trial.point, []).append(math.log(point.ratio))
        best = max([0.0, *(math.fsum(some) / len(some) for name, some in speeds.items() if name)])
        if not steps or not math.isclose(steps[-1][1], math.exp(best), rel_tol=1e-6):
            steps.append((point.t_s, math.exp(best)))
    return steps


def _today(trials: Sequence[TrialRecord], baseline: str, machine: str) -> float | None:
    """Return the geometric mean speed of today's config on a machine; None where it was not measured there."""
    speeds = [
        math.log(trial.comparable.speed)
        for trial in trials
        if trial.comparable is not None and trial.point == baseline and trial.machine == machine
    ]
    return math.exp(math.fsum(speeds) / len(speeds)) if speeds else None


def _stamp(trial: TrialRecord) -> float:
    try:
        return datetime.fromisoformat(trial.ended_utc).timestamp()
    except ValueError:
        return 0.0
