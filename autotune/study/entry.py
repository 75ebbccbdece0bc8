"""Entry of the record: a trial as the journal keeps it, and its validation when it is read back.

Somebody may have changed the file. What has another type than a trial of ours, or a number that no trial can show, is
not read: nothing that comes after has to expect it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import msgspec

from autotune.records import GpuFigures, GpuMeasurement, Measurement, Purpose, RaceLeg, TrialRecord, Validation
from autotune.stage_times import PipelineTimes, StageTimes

FORMAT = 2
"""Version of the attributes of a trial. In 1 the figures of a GPU stood beside its other fields; it is still read."""

_A_BIT_MORE = 1e-6  # than 1, which a mean of shares may come to by rounding
_SHARE = (0.0, 1.0 + _A_BIT_MORE)
_SHARES = (0.0, 1e6)  # sums over processes, whose kernels may run at the same time
_LONGEST_S = 1e12
_TIME = (0.0, _LONGEST_S)
_RATE = (1e-30, 1e18)  # so that no ratio of two leaves what a float can hold
_BYTES = (0, 1 << 60)
_AMOUNT = (0.0, 1e18)
_COUNT = (0, 1 << 53)
_RATIO = (0.0, 1e18)
_LOSS = (-1e30, 1e30)
_RANGES: Mapping[str, tuple[float, float]] = {
    "number": (0, 1 << 53),
    "pair": (0, 1 << 53),
    "duration_s": _TIME,
    "window_s": (1e-9, _LONGEST_S),
    "steps": (1, 1 << 53),
    "samples_per_s": _RATE,
    "filled_samples_per_s": _RATE,
    "cv": (0.0, 1e9),
    "step_p50_s": _TIME,
    "step_p95_s": _TIME,
    "data_wait_fraction": _SHARE,
    "first_step_s": (-_LONGEST_S, _LONGEST_S),  # a trainer may say that its step was before its start
    "cpu_cores": (0.0, 1e6),
    "peak_memory_bytes": _BYTES,
    "gpu_memory_bytes": _BYTES,
    "gpu_utilization": _SHARE,
    "energy_per_sample_j": (0.0, math.inf),
    "utilization": _SHARE,
    "covered_fraction": _SHARE,
    "memory_total_bytes": _BYTES,
    "power_w": _AMOUNT,
    "energy_j": _AMOUNT,
    "sm_activity": _SHARE,
    "tensor_activity": _SHARE,
    "dram_activity": _SHARE,
    "own_fraction": _SHARES,
    "foreign_fraction": _SHARES,
    "throttled_fraction": _SHARE,
    "trained_s": _TIME,
    "passed_s": _TIME,
    "busy_s": _TIME,
    "input_s": _TIME,
    "room_s": _TIME,
    "batches": _COUNT,
    "epoch_ends": _COUNT,
    "evaluations": _COUNT,
    "checkpoints": _COUNT,
    "speed_ratio": _RATIO,
    "overall_ratio": _RATIO,
    "loss_ratio": _RATIO,
    "first_loss": _LOSS,
    "evaluation_loss": _LOSS,
    "update_samples": _AMOUNT,
    "learning_rate": (0.0, 1e18),
    "epoch_samples": _AMOUNT,
    "memory_growth_bytes_per_s": _BYTES,
    "gpu_memory_growth_bytes_per_s": _BYTES,
}
"""The numbers of a trial, least and most; absent is allowed where the type allows it."""

_MOST_GPUS = 256
_MOST_WINDOWS = 1_000_000
_MOST_LOSSES = 10_000
_MOST_FILES = 1_000
_LONGEST_TEXT = 1_000
_LONGEST_REASON = 120  # characters; it may quote what stands there

_ADDED = frozenset({"number", "validation", "race", "code"})
"""Fields that a written trial may lack: the number is its place, and earlier studies of format 2 had no others."""

_ONCE_THE_BASELINE = "today"  # the purpose's word in format 1, and in the first studies of format 2


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """Return a trial as it is written; its number is its place."""
    attributes = asdict(record)
    del attributes["number"]
    return {"format": FORMAT, **attributes}


def record_of(number: int, attributes: Mapping[str, Any]) -> TrialRecord:
    """Read a trial back.

    Args:
        number: Its place in the record.
        attributes: Attributes written there, as JSON gives them.

    Raises:
        ValueError: It is none of ours, of another format, or holds what no trial can; with the reason, of one line.
    """
    if attributes.get("format") not in (1, FORMAT) or isinstance(attributes["format"], bool):
        raise ValueError("another format")
    if attributes["format"] == 1:
        attributes = _of_format_1(attributes)
    if attributes.get("purpose") == _ONCE_THE_BASELINE:
        attributes = {**attributes, "purpose": Purpose.BASELINE.value}
    missing = [field.name for field in fields(TrialRecord) if field.name not in {*attributes, *_ADDED}]
    if missing:
        raise ValueError(f"no {missing[0]}")
    try:
        # A list may be a tuple here and an object a record, but "5" and true are no numbers.
        json.dumps({**attributes}, ensure_ascii=False).encode()  # no halves of characters
        # Where it is missing, early versions of msgspec cannot make the default.
        record = msgspec.convert({"code": {}, **attributes, "number": number}, TrialRecord)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise ValueError(ascii(f"{place.rstrip('`')}: {what}")[1:-1][:_LONGEST_REASON]) from None
    except (ValueError, RecursionError) as error:
        raise ValueError("not readable") from error
    _check(record)
    if len(record.code) > _MOST_FILES or any(
        len(text) > _LONGEST_TEXT for pair in record.code.items() for text in pair
    ):
        raise ValueError("code: too many files, or a text is too long")
    if record.validation:
        _check(record.validation)
    if record.race:
        _check(record.race)
        curves = (record.race.curve, record.race.held_out)
        if any(curve and len(curve.ends_s) > _MOST_LOSSES for curve in curves):
            raise ValueError("race: too many losses")
    if record.measurement:
        _check(record.measurement)
        if len(record.measurement.gpus) > _MOST_GPUS:
            raise ValueError("too many GPUs")
        for gpu in record.measurement.gpus:
            _check(gpu.figures)
            _check_windows(gpu)
        if stages := record.measurement.stages:
            _check(stages)
            _check(stages.data)
            _check(stages.model)
    return record


def _of_format_1(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return attributes of format 1 as those of format 2; what is no trial of ours stays as it is, to be refused."""
    measurement = attributes.get("measurement")
    if not isinstance(measurement, Mapping) or not isinstance(measurement.get("gpus"), list):
        return attributes
    gpus = [{**gpu, "figures": gpu} if isinstance(gpu, Mapping) else gpu for gpu in measurement["gpus"]]
    return {**attributes, "measurement": {**measurement, "gpus": gpus}}


def _check(part: TrialRecord | Measurement | GpuFigures | Validation | RaceLeg | PipelineTimes | StageTimes) -> None:
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name not in _RANGES or value is None:
            continue
        least, most = _RANGES[field.name]
        if not least <= value <= most:  # also where it is NaN
            raise ValueError(f"{field.name} out of range")


def _check_windows(gpu: GpuMeasurement) -> None:
    if len(gpu.busy_windows) > _MOST_WINDOWS:
        raise ValueError("busy_windows: too many")
    if any(abs(end_s) > _LONGEST_S or length_s > _LONGEST_S for end_s, length_s, _ in gpu.busy_windows):
        raise ValueError("busy_windows out of range")
