"""Usage of a trial's GPUs as its record keeps it, made from the usage of devices."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.gpu.throttling import THROTTLING
from autotune.gpu.usage import MOST_FOREIGN, MOST_THROTTLED, DevicesUsage, DeviceUsage
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.records import GpuMeasurement, GpuRole, Validity

LEAST_COVERED = 0.5
"""Share of the window that driver windows must cover for the utilization of a single trial to be given."""

NOT_MEASURED = "gpu_not_measured"
"""Name of a trial's condition: the reason, for people, why its utilization is not known; None where it is."""


def usage_of_trial(usage: DevicesUsage, trial: TrialGpus, trouble: str | None = None) -> GpuUsage:
    """Condense the usage of devices over a trial's window.

    A GPU that the trial may use, and on which nothing of it ran, says nothing about the trial: it is measured, and
    neither scored nor asked for others who use it.

    Args:
        usage: Usage of the GPUs that the trial may use, in the order in which it sees them, at least one.
        trial: The trial's GPUs, as far as the trial and its config name them.
        trouble: Reason, for people, why the collector is silent at present; None if it is not.
    """
    used = [device for device in usage.devices if trial.reported or _works(device)] or list(usage.devices)
    has_model = trial.model is not None and trial.model < len(usage.devices)
    scored = [usage.devices[trial.model]] if trial.model is not None and has_model else used
    why_none = usage.lost or _why_none(scored)
    if why_none and trouble:
        why_none = trouble
    roles = _roles(trial, len(usage.devices))
    spoiled, how = _spoiled(used)
    memory = [
        device.figures.peak_memory_bytes for device in usage.devices if device.figures.peak_memory_bytes is not None
    ]
    return GpuUsage(
        utilization=None if why_none else replace(usage, devices=tuple(scored)).utilization,
        peak_memory_bytes=max(memory, default=None),
        power_w=replace(usage, devices=tuple(used)).power_w,
        devices=tuple(
            _measurement(device, scored=device in scored, role=roles.get(place))
            for place, device in enumerate(usage.devices)
        ),
        spoiled=spoiled,
        remark="; ".join(part for part in (why_none and f"GPU utilization not measured: {why_none}", how) if part),
        conditions={**usage.conditions, NOT_MEASURED: why_none},
    )


def _works(device: DeviceUsage) -> bool:
    """Return True if something of the trial ran there, as far as that can be told."""
    return bool(device.figures.utilization if device.figures.own_fraction is None else device.figures.own_fraction)


def _why_none(scored: Sequence[DeviceUsage]) -> str | None:
    for device in scored:
        if why := device.invalid or device.why_no_utilization:
            return why
        if device.figures.covered_fraction < LEAST_COVERED:
            return f"{device.figures.name}: only {device.figures.covered_fraction:.0%} of the window was seen"
    return None


def _spoiled(used: Sequence[DeviceUsage]) -> tuple[Validity | None, str]:
    """Return what spoiled the trial, as far as that is known, and a sentence about it."""
    worst = max(used, key=lambda device: device.figures.foreign_fraction or 0.0)
    if (worst.figures.foreign_fraction or 0.0) > MOST_FOREIGN:
        pids = ", ".join(map(str, worst.foreign_pids))
        share = f"{worst.figures.foreign_fraction:.0%}"
        return Validity.CONTAMINATED, f"{worst.figures.name}: others (process {pids}) used it for {share} of the time"
    worst = max(used, key=lambda device: device.figures.throttled_fraction or 0.0)
    if (worst.figures.throttled_fraction or 0.0) > MOST_THROTTLED:
        why = ", ".join(sorted(THROTTLING.intersection(worst.clock_reasons)))
        share = f"{worst.figures.throttled_fraction:.0%}"
        return Validity.THROTTLED, f"{worst.figures.name}: its clocks were held down for {share} of the time ({why})"
    return None, ""


def _roles(trial: TrialGpus, devices: int) -> dict[int, GpuRole]:
    """Return the work of each GPU, by its place; nothing where data and model do not have one each."""
    if trial.data is None or trial.model is None or trial.data == trial.model:
        return {}
    roles = {trial.data: GpuRole.DATA, trial.model: GpuRole.MODEL}
    return roles if max(roles) < devices else {}


def _measurement(device: DeviceUsage, *, scored: bool, role: GpuRole | None) -> GpuMeasurement:
    windows = []
    for end_s, length_s, busy in device.windows:
        since_s = round(end_s - device.t0_s, 6)
        windows.append((since_s, min(round(length_s, 6), since_s), busy))  # no rounding puts one outside
    return GpuMeasurement(
        figures=replace(device.figures, utilization=None) if device.invalid else device.figures,
        scored=scored,
        busy_windows=tuple(windows),
        role=role,
    )
