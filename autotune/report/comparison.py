"""Comparison of today's config with the best, or with the candidate: the table of the final screen."""

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from autotune.metrics import GPU_METRICS, METRICS
from autotune.report.plain_text import plain
from autotune.results import PooledGpu, PooledGpus, Side

_NOT_MEASURED = "not measured"
_OF_THE_TRIAL = ("cv", "data_wait_fraction", "step_p95_s", "cpu_cores", "peak_memory_bytes")
_OF_THE_GPU = ("utilization", "p10", "duty_fraction", "sm_activity", "tensor_activity", "dram_activity")
_OF_THE_TRIAL_ON_A_GPU = ("energy_per_sample_j", "gpu_memory_bytes")


def metrics_table(baseline: Side, other: Side | None, column: str) -> Table:
    """Return the table of metrics.

    Args:
        baseline: Today's config.
        other: Side that it is compared with; None, or one without numbers, leaves today's alone.
        column: Heading of the other.
    """
    sides = _measured(baseline, other)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("measured")
    for side in sides:
        if side is baseline:
            table.add_column("today", justify="right")
        else:
            table.add_column(column, justify="right", style="bold")
    for row in metrics_rows(baseline, other):
        table.add_row(*row)
    return table


def metrics_rows(baseline: Side, other: Side | None) -> list[list[str]]:
    """Return the rows of that table: the name of what was measured, and its text on each side that has numbers.

    Args:
        baseline: Today's config.
        other: Side that it is compared with; None for none.
    """
    sides = _measured(baseline, other)
    return [
        _trial_row("samples_per_s", sides),
        *_gpu_rows(sides),
        *(_trial_row(name, sides) for name in _OF_THE_TRIAL),
    ]


def _measured(baseline: Side, other: Side | None) -> list[Side]:
    return [side for side in (baseline, other) if side is not None and side.metrics]


def gpu_notes(baseline: Side, why_no_gpu: str | None, other: Side | None = None) -> list[str]:
    """Return notes on the GPUs below the table: the reason for none, their names, the verdict on today's.

    Args:
        baseline: Today's config.
        why_no_gpu: Reason why utilization is not measured; None if it is.
        other: Side that it is compared with; None without one.
    """
    notes = [f"GPU utilization was not measured: {plain(why_no_gpu)}."] if why_no_gpu else []
    if baseline.gpus is None:
        return notes
    devices = baseline.gpus.devices
    if len(devices) > 1:
        names = ", ".join(f"GPU {place} is {plain(device.figures.name)}" for place, device in enumerate(devices))
        scored, later = (_scored_words(side.gpus) if side and side.gpus else "" for side in (baseline, other))
        notes.append(
            f"{names}; the score looks at {scored}{f', then at {later}' if later not in ('', scored) else ''}."
        )
    references = {
        device.role: device.reference
        for side in (baseline, other)
        for device in (side.gpus.devices if side and side.gpus else ())
        if device.role and device.reference
    }
    if references:
        stated = " and ".join(f"{_range(reference)} for {role}" for role, reference in sorted(references.items()))
        notes.append(f"Where two GPUs share the work well, users state {stated}: for comparison, no part of the score.")
    told = [device for device in devices if device.scored and device.figures.utilization is not None and device.meaning]
    if told:
        idlest = min(told, key=lambda device: device.figures.utilization or 0.0)
        notes.append(f"Today's GPU utilization is {idlest.verdict}, which usually means: {idlest.meaning}.")
    return notes


def _scored_words(gpus: PooledGpus) -> str:
    return " and ".join(f"GPU {place}" for place, device in enumerate(gpus.devices) if device.scored)


def _trial_row(name: str, sides: Sequence[Side]) -> list[str]:
    return [METRICS[name].label, *(METRICS[name].text((side.metrics or {}).get(name)) for side in sides)]


def _gpu_rows(sides: Sequence[Side]) -> list[list[str]]:
    if all(side.gpus is None for side in sides):
        return [[METRICS["gpu_utilization"].label, *(_plain_utilization(side) for side in sides)]]
    rows = [_effective_row(sides), *_utilization_rows(sides)]
    rows += [
        [GPU_METRICS[name].label, *(GPU_METRICS[name].text(_over_scored(side, name)) for side in sides)]
        for name in _OF_THE_GPU
        if any(_over_scored(side, name) is not None for side in sides)
    ]
    rows += [
        _trial_row(name, sides)
        for name in _OF_THE_TRIAL_ON_A_GPU
        if any((side.metrics or {}).get(name) is not None for side in sides)
    ]
    return rows


def _plain_utilization(side: Side) -> str:
    """Return the utilization of trials of which no driver windows were kept."""
    value = (side.metrics or {}).get("gpu_utilization")
    return _NOT_MEASURED if value is None else METRICS["gpu_utilization"].text(value)


def _effective_row(sides: Sequence[Side]) -> list[str]:
    metric = GPU_METRICS["effective_utilization"]
    known = [side.gpus.effective_utilization if side.gpus else None for side in sides]
    return [metric.label, *("not known yet" if value is None else metric.text(value) for value in known)]


def _utilization_rows(sides: Sequence[Side]) -> list[list[str]]:
    """Return the verdicts in words: one row for each GPU that some side shows."""
    devices = [{device.figures.uuid: device for device in side.gpus.devices} if side.gpus else {} for side in sides]
    uuids = list(dict.fromkeys(uuid for side in devices for uuid in side))
    some_are_not_scored = any(not device.scored for side in devices for device in side.values())
    return [
        [
            METRICS["gpu_utilization"].label if len(uuids) == 1 else f"GPU {place} utilization",
            *(_verdict(side.get(uuid), mark=some_are_not_scored) for side in devices),
        ]
        for place, uuid in enumerate(uuids)
    ]


def _verdict(device: PooledGpu | None, *, mark: bool) -> str:
    if device is None:
        return _NOT_MEASURED
    text = f"{device.role}: {device.text}" if device.role else device.text
    if device.reference and device.against_reference:
        text += f", {device.against_reference} {_range(device.reference)}"
    return f"{text} (scored)" if mark and device.scored else text


def _range(reference: tuple[float, float]) -> str:
    return "-".join(f"{100 * end:.0f}" for end in reference) + " %"


def _over_scored(side: Side, name: str) -> float | None:
    """Return the mean of a figure over the scored GPUs of a side; None unless it is known of each."""
    devices = side.gpus.devices if side.gpus else ()
    values: list[float | None] = [device.value(name) for device in devices if device.scored]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
