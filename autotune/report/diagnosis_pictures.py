"""Pictures of a diagnosis, as one SVG: what changes gain, where a step's time goes, and how long batches take."""

import io
from collections.abc import Callable, Sequence

from autotune.diagnose.findings import Evidence, Recommendation
from autotune.diagnose.pipeline_profile import PipelineProfile
from autotune.diagnose.step_profile import StepProfile
from autotune.report.html.pictures import Axes, Figure, rc_context
from autotune.report.plain_text import plain, value_text

_WIDTH, _TITLE, _ROW = 8.0, 0.9, 0.28  # inches
_LONGEST = 60
_COLOUR, _OTHER = "#0072b2", "#999999"  # of Okabe and Ito's palette, told apart by everybody


def diagnosis_pictures(
    recommendations: Sequence[Recommendation], step: StepProfile | None, pipeline: PipelineProfile | None
) -> str | None:
    """Draw what was measured.

    Args:
        recommendations: What a diagnosis recommends; those that were measured are drawn.
        step: Profile of the step; None for none.
        pipeline: Profile of the input pipeline; None for none.

    Returns:
        The text of the SVG; None if there is nothing to draw.
    """
    gains = [one for one in recommendations if one.evidence is Evidence.MEASURED and one.gain][:12]
    parts: list[tuple[int, Callable[[Axes], None]]] = []
    if gains:
        parts.append((len(gains), lambda axes: _draw_gains(axes, gains)))
    if step is not None and any(phase.mean_ms is not None for phase in step.phases):
        parts.append((len(step.phases), lambda axes: _draw_phases(axes, step)))
    if pipeline is not None:
        parts.append((4, lambda axes: _draw_batches(axes, pipeline)))
    if not parts:
        return None
    heights = [_TITLE + _ROW * rows for rows, _ in parts]
    # The same numbers make the same bytes, and the text is drawn as it is, whatever fonts the reader has.
    with rc_context({"svg.hashsalt": "autotune", "svg.fonttype": "path", "font.size": 9.0}):
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        for axes, (_, draw) in zip(
            figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0], parts, strict=True
        ):
            draw(axes)
            axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw_gains(axes: Axes, gains: Sequence[Recommendation]) -> None:
    names = [", ".join(f"{path}: {value_text(value)}" for path, value in one.values.items()) for one in gains]
    ratios = [one.gain.ratio for one in gains if one.gain]
    lows = [one.gain.ratio - one.gain.low for one in gains if one.gain]
    highs = [one.gain.high - one.gain.ratio for one in gains if one.gain]
    axes.errorbar(ratios, range(len(gains)), xerr=(lows, highs), fmt="o", color=_COLOUR, capsize=3)
    axes.axvline(1.0, color=_OTHER, linestyle="--")
    _name_rows(axes, [plain(name, longest=_LONGEST) for name in names])
    axes.set_title("What each change gains, with its 95 % interval", loc="left")
    axes.set_xlabel("times as fast as today's config")


def _draw_phases(axes: Axes, step: StepProfile) -> None:
    phases = [phase for phase in step.phases if phase.mean_ms is not None]
    times_ms = [max(0.0, phase.mean_ms or 0.0) for phase in phases]  # below 0 it is lost in the noise
    bars = axes.barh(range(len(phases)), times_ms, color=_COLOUR)
    axes.bar_label(bars, [f"{time_ms:.3g}" if time_ms else "about 0" for time_ms in times_ms], padding=3)
    _name_rows(axes, [plain(phase.name, longest=_LONGEST) for phase in phases])
    whole = f", of {step.step.mean_ms:.3g} ms" if step.step.mean_ms is not None else ""
    axes.set_title(f"Where the time of a step goes{whole}", loc="left")
    axes.set_xlabel("ms")


def _draw_batches(axes: Axes, pipeline: PipelineProfile) -> None:
    rows = {
        "loader alone": pipeline.loading,
        "waits in training": pipeline.waits,
        "steps of training": pipeline.steps,
        "steps, data for free": pipeline.replayed,
    }
    for place, times in enumerate(rows.values()):
        if times is None:
            axes.annotate("not measured", (0.0, place), color=_OTHER, va="center")
            continue
        axes.plot((times.min_ms, times.p95_ms), (place, place), color=_OTHER, linewidth=2)
        axes.plot(times.median_ms, place, "o", color=_COLOUR)
    axes.set_xlim(left=0.0)
    _name_rows(axes, list(rows))
    axes.set_title("Batches: median, from the shortest to the 95th percentile", loc="left")
    axes.set_xlabel("ms a batch")


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
