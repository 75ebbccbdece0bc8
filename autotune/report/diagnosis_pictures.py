"""Pictures of a diagnosis, as one SVG: what changes gain, where a step's time goes, and how long batches take."""

from collections.abc import Callable, Sequence

from autotune.diagnose.findings import Evidence, Recommendation
from autotune.diagnose.pipeline_profile import PipelineProfile
from autotune.diagnose.step_profile import StepProfile
from autotune.report.html.contents import StepPart
from autotune.report.html.pictures import Axes, name_rows, ratio_rows, step_parts, svg_text
from autotune.report.plain_text import value_text

_LONGEST = 60


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
    heights = [0.9 + 0.28 * rows for rows, _ in parts]  # inches
    # The text is drawn as it is, whatever fonts the reader has.
    settings = {"svg.hashsalt": "autotune", "svg.fonttype": "path"}
    return svg_text([draw for _, draw in parts], (8.0, sum(heights)), settings, height_ratios=heights)


def _draw_gains(axes: Axes, gains: Sequence[Recommendation]) -> None:
    rows = [
        (", ".join(f"{path}: {value_text(value)}" for path, value in one.values.items()), one.gain)
        for one in gains
        if one.gain
    ]
    ratio_rows(axes, rows, "times as fast as today's config", longest=_LONGEST)
    axes.set_title("What each change gains, with its 95 % interval", loc="left")


def _draw_phases(axes: Axes, step: StepProfile) -> None:
    parts = [StepPart(name=one.name, mean_ms=one.mean_ms) for one in step.phases if one.mean_ms is not None]
    step_parts(axes, parts, "ms", longest=_LONGEST)
    whole = f", of {step.step.mean_ms:.3g} ms" if step.step.mean_ms is not None else ""
    axes.set_title(f"Where the time of a step goes{whole}", loc="left")


def _draw_batches(axes: Axes, pipeline: PipelineProfile) -> None:
    rows = {
        "loader alone": pipeline.loading,
        "waits in training": pipeline.waits,
        "steps of training": pipeline.steps,
        "steps, data for free": pipeline.replayed,
    }
    for place, times in enumerate(rows.values()):
        if times is None:
            axes.annotate("not measured", (0.0, place), color="#808080", va="center")
            continue
        axes.plot((times.min_ms, times.p95_ms), (place, place), color="#808080", linewidth=2)
        axes.plot(times.median_ms, place, "o", color="#0072b2")
    axes.set_xlim(left=0.0)
    name_rows(axes, list(rows))
    axes.set_title("Batches: median, from the shortest to the 95th percentile", loc="left")
    axes.set_xlabel("ms a batch")
