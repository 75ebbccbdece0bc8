"""What the GPUs showed over all comparable trials of a point, and how far their time was turned into samples."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import numpy as np

from autotune.measure.oscillation import LEAST_SWING, Oscillation, Pattern, Segment
from autotune.measure.utilization import (
    LEAST_BUSY_TRIALS,
    MEANINGS,
    BusyPoint,
    Utilization,
    best_busy_rate,
    busy_rate,
    describe,
    effective_utilization,
    pooled_utilization,
)
from autotune.records import GpuMeasurement, Measurement, TrialRecord
from autotune.results import PooledGpu, PooledGpus

_Seen = Sequence[tuple[Measurement, GpuMeasurement | None]]  # each trial of a point, and what it showed of one device


def pooled_gpus(trials: Sequence[Measurement], best_rate: float | None) -> PooledGpus | None:
    """Puts together what the trials of a point showed of their GPUs.

    Args:
        trials: The comparable trials of one point.
        best_rate: ``r*`` of the study, from `study_busy_rate`; None while it is not known.

    Returns:
        None where no trial showed any.
    """
    seen = _by_device(trials)
    if not seen:
        return None
    rate = best_rate if any(trial.gpu_utilization is not None for trial in trials) else None
    return PooledGpus(
        devices=tuple(_pooled(device) for device in seen),
        utilization=_scored_utilization(seen),
        effective_utilization=rate and effective_utilization(median(trial.samples_per_s for trial in trials), rate),
    )


def study_busy_rate(records: Iterable[TrialRecord]) -> float | None:
    """The most samples that a second of GPU time has shown to be good for, over all points: ``r*``.

    Args:
        records: All trials of the study.

    Returns:
        See `measure.utilization.best_busy_rate`; None while no point qualifies.
    """
    points: dict[str, list[Measurement]] = {}
    for record in records:
        if measured := record.comparable:
            points.setdefault(record.point, []).append(measured)
    return best_busy_rate(_busy_point(trials) for trials in points.values())


def _busy_point(trials: Sequence[Measurement]) -> BusyPoint:
    rates = [busy_rate(trial.samples_per_s, trial.gpu_utilization) for trial in trials if trial.gpu_utilization]
    enough = len(rates) >= LEAST_BUSY_TRIALS  # else the trials are not worth pooling
    return BusyPoint(utilization=_scored_utilization(_by_device(trials)) if enough else None, rates=rates)


def _by_device(trials: Sequence[Measurement]) -> list[_Seen]:
    """All trials for each device that some trial showed: of one without it the time counts as not covered."""
    uuids = dict.fromkeys(gpu.uuid for trial in trials for gpu in trial.gpus)
    return [
        [(trial, next((gpu for gpu in trial.gpus if gpu.uuid == uuid), None)) for trial in trials] for uuid in uuids
    ]


def _scored_utilization(seen: Sequence[_Seen]) -> float | None:
    """Mean of the scored devices; None unless enough is known of each."""
    scored = [_utilization(device).mean for device in seen if _is_scored(device)]
    known = [mean for mean in scored if mean is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(scored) else None


def _is_scored(seen: _Seen) -> bool:
    return any(gpu.scored for _, gpu in seen if gpu)


def _utilization(seen: _Seen) -> Utilization:
    step_s = median(trial.step_p50_s for trial, _ in seen)
    return pooled_utilization([_segment(trial, gpu) for trial, gpu in seen], step_s=step_s)


def _segment(trial: Measurement, gpu: GpuMeasurement | None) -> Segment:
    # Windows of a utilization that is not believed are none.
    windows = gpu.busy_windows if gpu is not None and gpu.utilization is not None else ()
    ends_s, lengths_s, busy = np.array(windows, dtype=float).reshape(-1, 3).T
    covered_s = float(lengths_s.sum())
    # The steps add up to less than the window where pauses were left out of them; the GPU was watched in those too.
    asked_s = covered_s / gpu.covered_fraction if gpu and covered_s and gpu.covered_fraction else trial.window_s
    return Segment(asked_s=asked_s, ends_s=ends_s, lengths_s=lengths_s, busy=busy)


def _pooled(seen: _Seen) -> PooledGpu:
    """One device over the trials of a point."""
    shown = [(trial, gpu) for trial, gpu in seen if gpu is not None]
    first, utilization = shown[0][1], _utilization(seen)
    enough = utilization.missing is None
    wave = utilization.oscillation if enough else Oscillation(pattern=Pattern.INSUFFICIENT)
    memory = [gpu.peak_memory_bytes for _, gpu in shown if gpu.peak_memory_bytes is not None]
    return PooledGpu(
        uuid=first.uuid,
        name=first.name,
        scored=_is_scored(seen),
        text=describe(utilization) if utilization.samples else "not measured",
        verdict=wave.pattern.value if enough else None,
        meaning=MEANINGS[wave.pattern] if enough else None,
        samples=utilization.samples,
        covered_fraction=utilization.covered_fraction,
        utilization=utilization.mean,
        p10=wave.p10,
        duty_fraction=wave.duty if _has_two_levels(wave) else None,
        low=wave.low,
        high=wave.high,
        period_s=wave.period_s,
        peak_memory_bytes=max(memory, default=None),
        energy_per_sample_j=_energy_per_sample_j(shown),
        sm_activity=_mean(shown, lambda gpu: gpu.sm_activity),
        tensor_activity=_mean(shown, lambda gpu: gpu.tensor_activity),
        dram_activity=_mean(shown, lambda gpu: gpu.dram_activity),
        foreign_fraction=_mean(shown, lambda gpu: gpu.foreign_fraction),
        throttled_fraction=_mean(shown, lambda gpu: gpu.throttled_fraction),
    )


def _has_two_levels(wave: Oscillation) -> bool:
    return wave.low is not None and wave.high is not None and wave.high - wave.low >= LEAST_SWING


def _energy_per_sample_j(shown: Sequence[tuple[Measurement, GpuMeasurement]]) -> float | None:
    known = [(trial, gpu.energy_j) for trial, gpu in shown if gpu.energy_j is not None]
    samples = math.fsum(trial.samples_per_s * trial.window_s for trial, _ in known)
    return math.fsum(energy_j for _, energy_j in known) / samples if known else None


def _mean(
    shown: Sequence[tuple[Measurement, GpuMeasurement]], share: Callable[[GpuMeasurement], float | None]
) -> float | None:
    """Mean of a share of time over the trials that know it, each by its length."""
    known = [(value, trial.window_s) for trial, gpu in shown if (value := share(gpu)) is not None]
    total_s = math.fsum(length_s for _, length_s in known)
    return math.fsum(value * length_s for value, length_s in known) / total_s if known else None
