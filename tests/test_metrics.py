"""Promises of the table of metrics."""

import dataclasses

import pytest

from autotune.metrics import ABSENT, GPU_METRICS, METRICS, Direction, values_of
from autotune.records import GpuFigures, Measurement, PooledGpu, PooledGpus

MEASUREMENT = Measurement(
    window_s=4.0,
    steps=80,
    samples_per_s=160.0,
    cv=0.05,
    step_p50_s=0.049,
    step_p95_s=0.06,
    data_wait_fraction=None,
    first_step_s=6.2,
)


def test_every_figure_of_a_measurement_is_in_the_table():
    """A new figure cannot be forgotten, and the table names nothing else; no GPU, rank, stage or pause is one."""
    figures = {field.name for field in dataclasses.fields(Measurement)} - {"gpus", "ranks", "stages", "pauses"}
    assert set(METRICS) == figures | {"overall_samples_per_s"}
    assert all(name == metric.name for name, metric in METRICS.items())


def test_every_figure_of_a_gpu_is_in_the_table():
    """Words about a GPU, and its name, are no figure; some figures only serve to work out others."""
    words = {"uuid", "name", "figures", "scored", "text", "verdict", "meaning", "devices"}
    words |= {"role", "reference", "against_reference"}
    not_shown = {"memory_total_bytes", "power_w", "energy_j", "own_fraction"}
    figures = {field.name for record in (GpuFigures, PooledGpu, PooledGpus) for field in dataclasses.fields(record)}
    assert set(GPU_METRICS) == figures - words - not_shown
    assert all(name == metric.name for name, metric in GPU_METRICS.items())


def test_a_measurement_becomes_names_and_values():
    """Absent figures stay absent, and the order is that of the table."""
    values = values_of(MEASUREMENT)
    assert list(values) == list(METRICS)
    assert values["samples_per_s"] == 160.0
    assert values["data_wait_fraction"] is None


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("samples_per_s", 0.01234, "0.0123/s"),
        ("samples_per_s", 128.4, "128/s"),
        ("samples_per_s", 20480.0, "20480/s"),
        ("gpu_utilization", 0.0, "0.0 %"),
        ("gpu_utilization", 0.4251, "42.5 %"),
        ("step_p50_s", 0.0049, "4.90 ms"),
        ("step_p50_s", 1.25, "1.25 s"),
        ("window_s", 0.0, "0 ms"),
        ("peak_memory_bytes", 3 * 2**29, "1.50 GiB"),
        ("cpu_cores", 1.0, "1.00 cores"),
        ("steps", 80, "80"),
        ("energy_per_sample_j", 0.0421, "0.0421 J"),
        ("effective_utilization", 0.884, "88 %"),
        ("period_s", 2.1, "2.10 s"),
        ("sm_activity", 0.125, "12.5 %"),
    ],
)
def test_numbers_are_printed_with_their_unit(name, value, text):
    """People read three digits and a unit, percent for fractions; whole percent where a driver counts in them."""
    assert {**GPU_METRICS, **METRICS}[name].text(value) == text


def test_what_is_absent_is_not_printed_as_zero():
    """Every metric has the same mark for "not measured"."""
    assert {metric.text(None) for metric in [*METRICS.values(), *GPU_METRICS.values()]} == {ABSENT}


def test_step_time_judges_nothing():
    """A larger batch has longer steps and may be faster, so neither direction is better."""
    assert METRICS["step_p50_s"].better is Direction.NONE
    assert METRICS["samples_per_s"].better is Direction.HIGHER
