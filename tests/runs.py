"""Trials as a study keeps them, for tests of their pooling and summaries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

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
from autotune.sampler.observations import Observation
from autotune.space.knob import Knob, Label
from autotune.space.space import Space, point_name

MakeTrial = Callable[..., TrialRecord]


def knob(path: str, baseline: Scalar, *others: Scalar, **changes: Any) -> Knob:
    """A knob of the user's own; numbers are ordered."""
    choices: Any = (baseline, *others)
    ordered = all(isinstance(choice, int) and not isinstance(choice, bool) for choice in choices)
    fields = {
        "path": path,
        "choices": tuple(sorted(choices)) if ordered else choices,
        "ordered": ordered,
        "baseline": baseline,
        "label": Label.SAME_TRAINING,
    }
    return Knob(**{**fields, **changes})


def observation(
    space: Space,
    *scores: float,
    endings: tuple[Ending, ...] = (),
    memory: Mapping[str, Any] = MappingProxyType({}),
    **changes: Scalar,
) -> Observation:
    """Return the observation of today's point with these changes; a knob is named by the last part of its path."""
    paths = {path.rpartition(".")[2]: path for path in space.baseline}
    values = {**space.baseline, **{paths[name]: value for name, value in changes.items()}}
    durations_s = (5.0,) * (len(scores) + len(endings))
    return Observation(
        name=point_name(values), values=values, scores=scores, endings=endings, durations_s=durations_s, **memory
    )


def named(*observations: Observation) -> dict[str, Observation]:
    """Return observations as the search passes them on, by name of the point."""
    return {observation.name: observation for observation in observations}


OfAGpu = TypeVar("OfAGpu")


def changed_gpu(record: OfAGpu, **changes: Any) -> OfAGpu:
    """Return a record of one GPU with other values in its fields or in those of its figures."""
    names = {field.name for field in fields(GpuFigures)}
    figures = replace(record.figures, **{name: value for name, value in changes.items() if name in names})
    others = {name: value for name, value in changes.items() if name not in names}
    return replace(record, figures=figures, **others)


def gpu(busy: Sequence[float], *, window_s: float = 0.25, **changes: Any) -> GpuMeasurement:
    """Measurement of a GPU: so many driver windows without gaps, each busy for that share."""
    figures = GpuFigures(
        uuid="GPU-0",
        name="NVIDIA A100",
        utilization=fmean(busy) if busy else None,
        covered_fraction=1.0 if busy else 0.0,
    )
    windows = tuple((window_s * (place + 1), window_s, share) for place, share in enumerate(busy))
    return changed_gpu(GpuMeasurement(figures=figures, busy_windows=windows), **changes)


def on_gpu(trial: TrialRecord, *shown: float | GpuMeasurement) -> TrialRecord:
    """The same trial on GPUs; a number is a GPU that was busy for that share, without any driver windows."""
    gpus = tuple(one for one in shown if isinstance(one, GpuMeasurement))
    scored = [one.figures.utilization for one in gpus if one.scored] or [one for one in shown if isinstance(one, float)]
    known = [busy for busy in scored if busy is not None]
    assert trial.measurement is not None
    window_s = max((one.busy_windows[-1][0] for one in gpus if one.busy_windows), default=trial.measurement.window_s)
    utilization = fmean(known) if known and len(known) == len(scored) else None
    return replace(
        trial, measurement=replace(trial.measurement, window_s=window_s, gpu_utilization=utilization, gpus=gpus)
    )


def measured(samples_per_s: float) -> Measurement:
    """A trial's numbers on a machine without a GPU."""
    return Measurement(
        window_s=2.0,
        steps=20,
        samples_per_s=samples_per_s,
        cv=0.1,
        step_p50_s=0.1,
        step_p95_s=0.12,
        data_wait_fraction=0.5,
        first_step_s=8.0,
    )


@pytest.fixture
def make_trial() -> MakeTrial:
    """Makes one finished trial with the given speed; ``samples_per_s=None`` makes a crashed one."""
    count = iter(range(10_000))

    def make(values: Values, samples_per_s: float | None, **changes: Any) -> TrialRecord:
        measurement = samples_per_s and measured(samples_per_s)
        fields: dict[str, Any] = {
            "number": next(count),
            "search": "s1",
            "point": point_name(values),
            "values": values,
            "purpose": Purpose.EXPLORE,
            "ending": Ending.STOPPED if measurement else Ending.CRASHED,
            "validity": Validity.GOOD if measurement else Validity.UNMEASURED,
            "ended_utc": "2026-01-01T00:00:00+00:00",
            "duration_s": 10.0,
            "measurement": measurement or None,
        }
        return TrialRecord(**{**fields, **changes})

    return make
