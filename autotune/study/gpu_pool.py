"""GPUs of a point pooled over its comparable trials, and the effective utilization of a study."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from autotune.measure.statistics import weighted_mean
from autotune.measure.utilization import (
    LEAST_BUSY_TRIALS,
    LEAST_SWING,
    MEANINGS,
    REFERENCES,
    Oscillation,
    Pattern,
    Segment,
    Utilization,
    against_reference,
    best_busy_rate,
    describe,
    pooled_utilization,
)
from autotune.records import GpuFigures, GpuMeasurement, Measurement, PooledGpu, PooledGpus, TrialRecord

_Seen = Sequence[tuple[Measurement, GpuMeasurement | None]]  # trials of a point, with one device
_BY_TIME = (
    *("power_w", "sm_activity", "tensor_activity", "dram_activity"),
    *("own_fraction", "foreign_fraction", "throttled_fraction"),
)
_Shown = Sequence[tuple[Measurement, GpuFigures]]  # those in which it was measured


def pooled_gpus(trials: Sequence[Measurement], best_rate: float | None) -> PooledGpus | None:
    """Pool the GPUs of a point's trials, if any were measured.

    Args:
        best_rate: ``r*`` of `study_busy_rate`.
    """
    seen = _by_device(trials)
    if not seen:
        return None
    rate = best_rate if any(trial.gpu_utilization is not None for trial in trials) else None
    return PooledGpus(
        devices=tuple(_pooled(device) for device in seen),
        utilization=_scored_utilization(seen),
        # E = U · (T / U) / r*: slower kernels that keep the GPU busier don't raise it. May exceed 1, as r* is a lower
        # bound.
        effective_utilization=rate and median(trial.samples_per_s for trial in trials) / rate,
    )


def study_busy_rate(records: Iterable[TrialRecord]) -> float | None:
    """Return ``r*``: the highest rate of samples per busy second of any point, if one qualifies."""
    points: dict[str, list[Measurement]] = {}
    for record in records:
        if measured := record.comparable:
            points.setdefault(record.point, []).append(measured)
    return best_busy_rate(_busy_point(trials) for trials in points.values())


def _busy_point(trials: Sequence[Measurement]) -> tuple[float | None, Sequence[float]]:
    rates = [trial.samples_per_s / trial.gpu_utilization for trial in trials if trial.gpu_utilization]
    enough = len(rates) >= LEAST_BUSY_TRIALS
    return _scored_utilization(_by_device(trials)) if enough else None, rates


def _by_device(trials: Sequence[Measurement]) -> list[_Seen]:
    uuids = dict.fromkeys(gpu.figures.uuid for trial in trials for gpu in trial.gpus)
    return [
        [(trial, next((gpu for gpu in trial.gpus if gpu.figures.uuid == uuid), None)) for trial in trials]
        for uuid in uuids
    ]


def _scored_utilization(seen: Sequence[_Seen]) -> float | None:
    scored = [_utilization(device).mean for device in seen if _is_scored(device)]
    known = [mean for mean in scored if mean is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(scored) else None


def _is_scored(seen: _Seen) -> bool:
    return any(gpu.scored for _, gpu in seen if gpu)


def _utilization(seen: _Seen) -> Utilization:
    step_s = median(trial.step_p50_s for trial, _ in seen)
    return pooled_utilization([_segment(trial, gpu) for trial, gpu in seen], step_s=step_s)


def _segment(trial: Measurement, gpu: GpuMeasurement | None) -> Segment:
    # windows of a rejected utilization don't count
    windows = gpu.busy_windows if gpu is not None and gpu.figures.utilization is not None else ()
    ends_s, lengths_s, busy = np.array(windows, dtype=float).reshape(-1, 3).T
    covered_s = float(lengths_s.sum())
    # steps exclude pauses, but the GPU was sampled during them
    covered_fraction = gpu.figures.covered_fraction if gpu else 0.0
    asked_s = covered_s / covered_fraction if covered_s and covered_fraction else trial.window_s
    return Segment(asked_s=asked_s, ends_s=ends_s, lengths_s=lengths_s, busy=busy)


def _pooled(seen: _Seen) -> PooledGpu:
    shown = [(trial, gpu.figures) for trial, gpu in seen if gpu is not None]
    utilization = _utilization(seen)
    enough = utilization.missing is None
    role = next((gpu.role for _, gpu in seen if gpu and gpu.role), None)
    mean = utilization.mean
    wave = utilization.oscillation if enough else Oscillation(pattern=Pattern.INSUFFICIENT)
    has_two_levels = wave.low is not None and wave.high is not None and wave.high - wave.low >= LEAST_SWING
    return PooledGpu(
        figures=_pooled_figures(shown, utilization),
        scored=_is_scored(seen),
        text=describe(utilization) if utilization.samples else "not measured",
        role=role and role.value,
        reference=REFERENCES[role] if role else None,
        against_reference=None if role is None or mean is None else against_reference(mean, role),
        verdict=wave.pattern.value if enough else None,
        meaning=MEANINGS[wave.pattern] if enough else None,
        samples=utilization.samples,
        p10=wave.p10,
        idle_fraction=wave.idle,
        duty_fraction=wave.duty if has_two_levels else None,
        low=wave.low,
        high=wave.high,
        period_s=wave.period_s,
        energy_per_sample_j=_energy_per_sample_j(shown),
    )


def _pooled_figures(shown: _Shown, utilization: Utilization) -> GpuFigures:
    """Pool the figures of one device: shares and power by time, energy as a sum, memory by its peak."""
    _, first = shown[0]
    return GpuFigures(
        uuid=first.uuid,
        name=first.name,
        utilization=utilization.mean,
        covered_fraction=utilization.covered_fraction,
        memory_total_bytes=_most(figures.memory_total_bytes for _, figures in shown),
        peak_memory_bytes=_most(figures.peak_memory_bytes for _, figures in shown),
        energy_j=_sum(figures.energy_j for _, figures in shown),
        **{name: weighted_mean((getattr(one, name), trial.window_s) for trial, one in shown) for name in _BY_TIME},
    )


def _energy_per_sample_j(shown: _Shown) -> float | None:
    known = [trial for trial, figures in shown if figures.energy_j is not None]
    samples = math.fsum(trial.samples_per_s * trial.window_s for trial in known)
    energy_j = _sum(figures.energy_j for _, figures in shown)
    return None if energy_j is None else energy_j / samples


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
