"""Trials as searches of 13 knobs on one GPU record them, made up, for benchmarks of the record."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean

from autotune.records import (
    Ending,
    GpuFigures,
    GpuMeasurement,
    Measurement,
    Purpose,
    Scalar,
    TrialRecord,
    Validity,
    Values,
)
from autotune.space.knob import Knob, Label
from autotune.space.space import Space

TRIALS_OF_A_SEARCH = 200
"""The first is the baseline, the last are pairs that confirm the best point."""

_PAIRED = 8
_REPEATS = 0.3
_FAILURES = 0.1
_NOISE = 0.05
_WINDOW_S = 5.0
_READINGS = 30  # of the driver in that time
_SPEEDS = 8
_BEGAN = datetime(2030, 1, 1, tzinfo=UTC)

_CHOICES: dict[str, tuple[Scalar, ...]] = {
    "data.batch_size": (8, 16, 24, 32, 48, 64),
    "data.num_workers": (0, 1, 2, 3, 4, 6, 8, 12, 16),
    "data.prefetch_buffer_size": (0, 1, 2, 4, 8, 16),
    "data.use_tf_native_loading": (False, True),
    "data.cache": ("none", "memory", "disk"),
    "data.pad_to_fixed_length": (False, True),
    "data.bucket_by_length": (False, True),
    "data.prefetch_to_gpu": (False, True),
    "training.enable_graph_mode": (True, False),
    "training.enable_xla_compilation": (False, True),
    "training.mixed_precision": ("float32", "mixed_float16", "mixed_bfloat16"),
    "runtime.inter_op_threads": (0, 1, 2, 4, 8),
    "runtime.intra_op_threads": (0, 1, 2, 4, 8),
}
SPACE = Space(
    knobs=tuple(
        Knob(
            path=path,
            choices=choices,
            ordered=isinstance(choices[-1], int) and not isinstance(choices[-1], bool),
            baseline=choices[0],
            label=Label.SAME_TRAINING,
        )
        for path, choices in _CHOICES.items()
    )
)
"""Knobs of the shipped config: switches, lists of words, counts."""


@dataclass(frozen=True, kw_only=True)
class MadeUpTrial:
    """Trial that nobody has made, and what a search tells its study about it.

    Attributes:
        record: The trial.
        score: Its score over the baseline's; None if it failed.
        speeds: Its speed over time, in samples per second.
    """

    record: TrialRecord
    score: float | None
    speeds: tuple[float, ...]


def made_up_trials(count: int, *, seed: int = 0) -> Iterator[MadeUpTrial]:
    """Yield the trials of one search after the other, the same ones for the same seed."""
    rng = random.Random(seed)
    explored: list[Values] = []
    for number in range(count):
        search, place = divmod(number, TRIALS_OF_A_SEARCH)
        if place == 0:
            explored = [SPACE.baseline]
            purpose, pair, values = Purpose.BASELINE, None, SPACE.baseline
        elif place < TRIALS_OF_A_SEARCH - _PAIRED:
            purpose, pair = Purpose.EXPLORE, None
            values = rng.choice(explored) if rng.random() < _REPEATS else _anywhere(rng)
            explored.append(values)
        else:
            purpose, pair = Purpose.CONFIRM, (place - TRIALS_OF_A_SEARCH + _PAIRED) // 2
            values = SPACE.baseline if place % 2 else max(explored, key=_ln_speed)
        fails = purpose is Purpose.EXPLORE and rng.random() < _FAILURES
        yield _trial(number, f"search-{search:03d}", purpose, pair, values, None if fails else rng)


def _anywhere(rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in SPACE.knobs}


def _ln_speed(values: Values) -> float:
    return sum(0.02 * place * index for place, index in enumerate(SPACE.indices(values)))


def _trial(
    number: int, search: str, purpose: Purpose, pair: int | None, values: Values, rng: random.Random | None
) -> MadeUpTrial:
    """Return a trial; without numbers for one that failed."""
    speeds = [100.0 * math.exp(_ln_speed(values) + rng.gauss(0.0, _NOISE)) for _ in range(_SPEEDS)] if rng else []
    record = TrialRecord(
        number=number,
        search=search,
        point=SPACE.name(values),
        values=values,
        purpose=purpose,
        pair=pair,
        ending=Ending.STOPPED if rng else Ending.CRASHED,
        validity=Validity.GOOD,
        ended_utc=(_BEGAN + timedelta(seconds=9 * number)).isoformat(timespec="seconds"),
        duration_s=9.0,
        measurement=_measurement(speeds, rng) if rng else None,
        detail="" if rng else "InvalidArgumentError: Input to reshape is a tensor with 14080 values",
        conditions={
            "autotune": "1.0",
            "host": "node-17.cluster",
            "cpu_model": "AMD EPYC 7763 64-Core Processor",
            "cpu_cores": 16,
            "memory_bytes": 128 << 30,
            "gpus": "NVIDIA A100-SXM4-80GB",
            "framework.tensorflow": "2.17.0",
            "gpu_driver": "550.54.15",
            "gpu0.name": "NVIDIA A100-SXM4-80GB",
            "gpu0.sm_clock_mhz": 1410.0,
            "gpu0.temperature_start_c": 41.0,
            "gpu0.temperature_end_c": 44.0,
            "gpu0.throttled_fraction": 0.0,
            "gpu0.clock_reasons": None,
            "gpu0.foreign_fraction": 0.0,
            "gpu0.attribution": "processes",
            "gpu_not_measured": None,
        },
    )
    return MadeUpTrial(record=record, score=fmean(speeds) / 100.0 if speeds else None, speeds=tuple(speeds))


def _measurement(speeds: Sequence[float], rng: random.Random) -> Measurement:
    step_s = 16.0 / fmean(speeds)
    busy = [round(min(1.0, max(0.0, rng.gauss(0.4, 0.2))), 2) for _ in range(_READINGS)]
    reading_s = _WINDOW_S / _READINGS
    return Measurement(
        window_s=_WINDOW_S,
        steps=max(1, round(_WINDOW_S / step_s)),
        samples_per_s=fmean(speeds),
        cv=rng.uniform(0.02, 0.3),
        step_p50_s=step_s,
        step_p95_s=step_s * rng.uniform(1.1, 1.6),
        data_wait_fraction=rng.random(),
        first_step_s=rng.uniform(2.0, 4.0),
        cpu_cores=rng.uniform(1.0, 8.0),
        peak_memory_bytes=rng.randrange(1 << 30, 4 << 30),
        gpu_utilization=fmean(busy),
        gpu_memory_bytes=rng.randrange(1 << 30, 64 << 30),
        energy_per_sample_j=rng.uniform(1.0, 4.0),
        gpus=(
            GpuMeasurement(
                figures=GpuFigures(
                    uuid="GPU-7b3c1a52-9d0e-4f6a-8a51-3c2f5e9d1b70",
                    name="NVIDIA A100-SXM4-80GB",
                    utilization=fmean(busy),
                    covered_fraction=1.0,
                    memory_total_bytes=80 << 30,
                    peak_memory_bytes=rng.randrange(1 << 30, 64 << 30),
                    power_w=rng.uniform(90.0, 300.0),
                    energy_j=rng.uniform(450.0, 1500.0),
                    own_fraction=fmean(busy),
                    foreign_fraction=0.0,
                    throttled_fraction=0.0,
                ),
                busy_windows=tuple(
                    (round((place + 1) * reading_s, 6), round(reading_s, 6), share) for place, share in enumerate(busy)
                ),
            ),
        ),
    )
