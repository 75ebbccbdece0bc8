"""Promises of the GPU probe: what it says without a GPU, and the arithmetic on driver samples."""

import subprocess
import sys

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.nvml import BusySeries, NvmlProbe, Trouble, clock_offset_s, gpus, trouble

NOW_S, EPOCH_S = 5_000.0, 1_760_000_000.0


def series_of(samples, *, to_us=lambda t_s: round((t_s - NOW_S + EPOCH_S) * 1e6), batch=7):
    """A series drained in batches, each overlapping the one before, as a driver's ring gives them."""
    rows = [(to_us(t_s), percent) for t_s, percent in samples]
    series = BusySeries()
    for end in range(batch, len(rows) + batch, batch):
        seen = rows[max(0, end - 2 * batch) : end]
        now_s = samples[min(end, len(samples)) - 1][0]
        series.add_driver_samples(seen, now_s=now_s, epoch_s=now_s - NOW_S + EPOCH_S)
    return series


def test_importing_the_module_does_not_load_nvml():
    """A command that needs no GPU does not pay for the driver's bindings."""
    code = "import sys, autotune.measure.nvml; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_gpu_has_a_reason():
    """Either there are GPUs, each with a name, a UUID and memory, or a sentence says why there are none."""
    inventory = gpus()
    assert (not inventory.gpus) == (inventory.why_none is not None)
    assert all(gpu.name and gpu.uuid and gpu.memory_bytes > 0 for gpu in inventory.gpus)


def test_a_gpu_that_is_not_there_is_not_measured_and_says_why():
    """No number, a reason, and nothing raised: also where the machine has no driver at all."""
    probe = NvmlProbe()
    assert probe.between(0.0, 1.0) is None
    probe.open("GPU-00000000-0000-0000-0000-000000000000")
    assert probe.between(0.0, 1.0) is None
    assert "NVIDIA" in probe.why_none
    probe.close()
    probe.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NOT_FOUND", Trouble.NOTHING_NEW),
        ("NO_DATA", Trouble.NOTHING_NEW),
        ("NOT_SUPPORTED", Trouble.CAPABILITY_OFF),
        ("FUNCTION_NOT_FOUND", Trouble.CAPABILITY_OFF),
        ("NO_PERMISSION", Trouble.CAPABILITY_OFF),
        ("TIMEOUT", Trouble.PASSING),
        ("UNKNOWN", Trouble.PASSING),
        ("GPU_IS_LOST", Trouble.FATAL),
        ("RESET_REQUIRED", Trouble.FATAL),
        ("UNINITIALIZED", Trouble.FATAL),
        ("DRIVER_NOT_LOADED", Trouble.FATAL),
        ("LIBRARY_NOT_FOUND", Trouble.FATAL),
        ("LIB_RM_VERSION_MISMATCH", Trouble.FATAL),
    ],
)
def test_errors_are_sorted_by_what_they_mean(name, kind):
    """The codes are those of NVIDIA's own bindings."""
    assert trouble(getattr(pynvml, f"NVML_ERROR_{name}")) is kind


def test_an_error_nobody_knows_switches_nothing_off():
    """Codes of later drivers are counted and gone past; "success" as an error means nothing new."""
    assert trouble(4711) is Trouble.PASSING
    assert trouble(0) is Trouble.NOTHING_NEW


@given(st.floats(0.0, 10.0), st.floats(1.0, 3e7))
def test_stamps_since_1970_and_since_boot_both_find_the_clock(age_s, now_s):
    """Whichever origin a driver counts from, its sample lands where it was on the monotonic clock."""
    for stamp_s in (EPOCH_S - age_s, now_s - age_s):
        if stamp_s > 0:
            offset_s = clock_offset_s(round(stamp_s * 1e6), now_s=now_s, epoch_s=EPOCH_S)
            assert stamp_s + offset_s == pytest.approx(now_s - age_s, abs=1e-3)


def test_stamps_of_an_unknown_origin_are_taken_as_now():
    """A boot clock that counted the nights a laptop slept is off by the age of its newest sample only."""
    offset_s = clock_offset_s(round(90_000.0 * 1e6), now_s=5_000.0, epoch_s=EPOCH_S)
    assert 90_000.0 + offset_s == pytest.approx(5_000.0)


def test_samples_are_weighted_by_their_time():
    """Half a second of 100 % and one second of 40 % are 60 %."""
    series = series_of([(10.0, 0), (10.5, 100), (11.5, 40)])
    use = series.between(10.0, 11.5)
    assert use.utilization == pytest.approx(0.6)
    assert use.samples == 2
    assert use.covered_fraction == pytest.approx(1.0)


def test_only_whole_driver_windows_count():
    """A sample whose window began before the stretch, or ended after it, says something about another time."""
    series = series_of([(10.0, 0), (10.5, 100), (11.0, 20), (11.5, 30), (12.0, 100)])
    use = series.between(10.4, 11.9)
    assert use.utilization == pytest.approx(0.25)
    assert use.samples == 2
    assert use.covered_fraction == pytest.approx(1.0 / 1.5)
    assert series.between(10.1, 10.9) is None


def test_a_gap_is_not_filled_with_a_guess():
    """After a gap in the driver's samples the first one has no known window."""
    series = series_of([(10.0, 50), (10.5, 50), (20.0, 100), (20.5, 50)])
    use = series.between(10.0, 20.5)
    assert use.utilization == pytest.approx(0.5)
    assert use.samples == 2


def test_garbage_of_the_driver_is_dropped():
    """Percentages above 100 do not enter the mean."""
    series = series_of([(10.0, 50), (10.2, 50), (10.4, 2147483632), (10.6, 50)])
    assert series.between(10.0, 10.6).utilization == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.floats(0.17, 1.0), st.integers(0, 100)), min_size=2, max_size=80),
    st.integers(1, 30),
    st.booleans(),
)
def test_each_driver_sample_counts_once_however_it_is_drained(samples, batch, since_boot):
    """Overlapping readings of the driver's ring give the mean over time, with either origin of its stamps."""
    ends_s, t_s = [], 100.0
    for window_s, percent in samples:
        t_s += window_s
        ends_s.append((t_s, percent))
    options = {"to_us": lambda t_s: round(t_s * 1e6)} if since_boot else {}
    use = series_of(ends_s, batch=batch, **options).between(ends_s[0][0] - 0.01, t_s + 0.01)
    busy_s = sum(window_s * percent / 100 for window_s, percent in samples[1:])
    all_s = sum(window_s for window_s, _ in samples[1:])
    assert use.samples == len(samples) - 1
    assert use.utilization == pytest.approx(busy_s / all_s, abs=1e-4)
