"""Promises of a GPU's totals: each driver window once, each reading once, and nothing made up."""

import pytest

from autotune.daemon.monitor import GpuTotals
from autotune.measure.gpu.records import BusyWindows, GpuState, Record


def busy(*windows: tuple[float, float, float], source: str = "utilization samples") -> BusyWindows:
    """Driver windows as the collector tells them."""
    return BusyWindows(t_s=windows[-1][0], uuid="GPU-0", source=source, windows=windows)


def state(**fields: object) -> GpuState:
    """A reading of all else."""
    return GpuState(t_s=101.0, uuid="GPU-0", **fields)


def add(kept: GpuTotals, record: Record) -> None:
    """Add a record, as the watch does."""
    if isinstance(record, BusyWindows):
        kept.add_windows(record)
    elif isinstance(record, GpuState):
        kept.add_state(record)


def totals(*records: Record) -> GpuTotals:
    """Return the totals after these records of a GPU that is watched since second 100."""
    kept = GpuTotals(since_s=100.0)
    for record in records:
        add(kept, record)
    return kept


def test_utilization_is_weighted_by_time_and_begins_with_the_watching():
    """Windows from before the watching do not count, nor those that the driver tells a second time."""
    kept = totals(busy((99.5, 1.0, 1.0), (100.5, 1.0, 1.0), (101.5, 1.0, 0.9)), busy((102.0, 0.5, 0.3)))
    assert kept.utilization == pytest.approx(0.7)
    add(kept, busy((101.5, 1.0, 0.9), (102.0, 0.5, 0.3)))
    assert kept.utilization == pytest.approx(0.7)


def test_peaks_and_means_are_those_of_the_readings():
    """A reading that failed leaves no trace."""
    kept = totals(
        state(memory_bytes=4 << 30, power_w=100.0, temperature_c=50, reasons=("power limit",)),
        state(),
        state(memory_bytes=2 << 30, power_w=200.0, temperature_c=60, reasons=("heat (hardware)",)),
    )
    assert (kept.peak_memory_bytes, kept.power_w, kept.highest_temperature_c) == (4 << 30, 150.0, 60)
    assert kept.throttled_fraction == 0.5


def test_nothing_seen_is_nothing_known():
    """None and not nought; also where a device without a meter answers 0 for ever."""
    for kept in (totals(), totals(state()), totals(busy((102.0, 1.0, 0.0), source="utilization"))):
        assert kept.utilization is None
    kept = totals()
    assert (kept.peak_memory_bytes, kept.power_w, kept.highest_temperature_c, kept.throttled_fraction) == (None,) * 4
    assert totals(busy((102.0, 1.0, 0.0))).utilization == 0.0
