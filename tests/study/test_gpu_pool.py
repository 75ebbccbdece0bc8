"""GPUs of a point pooled over its trials, and the study's limit."""

from dataclasses import replace

import pytest

from autotune.records import GpuMeasurement, Measurement, PooledGpus
from autotune.study.gpu_pool import pooled_gpus, study_busy_rate
from tests.runs import MakeTrial, gpu, on_gpu

POINT = {"batch": 8}
OTHER = {"batch": 16}
WAVE = [0.02] * 4 + [0.4] * 4


@pytest.fixture
def shown(make_trial: MakeTrial) -> object:
    """Makes the measurement of a trial at 50 samples/s with these GPUs."""

    def make(*gpus: GpuMeasurement, samples_per_s: float = 50.0) -> Measurement:
        measurement = on_gpu(make_trial(POINT, samples_per_s), *gpus).measurement
        assert measurement is not None
        return measurement

    return make


def _only(gpus: PooledGpus | None) -> object:
    (device,) = gpus.devices
    return device


def test_the_trials_of_a_point_are_told_together(shown) -> None:
    """Neither trial has seen enough for a verdict; both together have, and its figures are there."""
    short = shown(gpu(WAVE * 6))
    alone = _only(pooled_gpus([short], None))
    assert alone.text == "not enough yet: 48 of 60 driver samples"
    assert (alone.verdict, alone.meaning, alone.figures.utilization, alone.p10, alone.low) == (None,) * 5

    device = _only(pooled_gpus([short, short], None))
    assert device.text == "2-40 % cyclic, period 2.0 s"
    assert (device.verdict, device.samples, device.figures.covered_fraction) == ("cyclic", 96, 1.0)
    assert "waits for data" in device.meaning
    figures = (device.figures.utilization, device.p10, device.duty_fraction, device.low, device.high, device.period_s)
    assert figures == pytest.approx((0.21, 0.02, 0.5, 0.02, 0.4, 2.0), abs=0.01)


def test_a_run_that_saw_nothing_counts_as_time_not_covered(shown) -> None:
    """Half of the time without the driver's word is not 90 % of it."""
    device = _only(
        pooled_gpus([shown(gpu([0.9] * 80)), shown(gpu([0.9] * 80)), shown(gpu([], covered_fraction=0.0))], None)
    )
    assert device.text == "90 % flat"  # 2 s of 42 s
    blind = shown(gpu([]))
    device = _only(pooled_gpus([shown(gpu([0.9] * 60)), *[blind] * 2], None))
    assert device.text == "not enough yet: 78 % of the time covered, 90 % needed"


def test_pauses_within_the_window_are_time_too(shown) -> None:
    """The steps add up to 6 s of 15 s; what the driver covers is counted against what it was asked for."""
    trial = shown(gpu([0.9] * 60, covered_fraction=1.0))
    device = _only(pooled_gpus([replace(trial, window_s=6.0)], None))
    assert device.figures.covered_fraction == pytest.approx(1.0)


def test_a_gpu_that_does_not_report_has_no_utilization(shown) -> None:
    """Also where its windows say 0 throughout and are not believed: never 0 %. What else it tells is there."""
    silent = gpu([0.0] * 80, utilization=None, sm_activity=0.3, peak_memory_bytes=2**30)
    device = _only(pooled_gpus([shown(silent)], None))
    assert (device.text, device.figures.utilization, device.samples) == ("not measured", None, 0)
    assert (device.figures.sm_activity, device.figures.peak_memory_bytes) == (0.3, 2**30)


def test_two_gpus_are_kept_apart_and_the_scored_one_counts(shown) -> None:
    """Each has its verdict; the mean is that of the scored ones, and absent while one of them is not known."""
    data, model = gpu([0.05] * 80, scored=False), gpu([0.8] * 80, uuid="GPU-1", name="NVIDIA T4")
    both = pooled_gpus([shown(data, model)], None)
    assert [(device.figures.name, device.text, device.scored) for device in both.devices] == [
        ("NVIDIA A100", "5 % flat", False),
        ("NVIDIA T4", "80 % flat", True),
    ]
    assert both.utilization == pytest.approx(0.8)
    parallel = pooled_gpus([shown(gpu([0.6] * 80), model)], None)
    assert parallel.utilization == pytest.approx(0.7)
    unknown = pooled_gpus([shown(gpu([0.6] * 10), model)], None)
    assert unknown.utilization is None


def test_shares_of_time_count_by_time_energy_by_samples_memory_by_its_peak(shown) -> None:
    """10 s at 100 samples/s and 30 s at 50: a trial that did not know is left out."""
    trials = [
        shown(gpu([0.5] * 40, energy_j=1000.0, sm_activity=0.2, peak_memory_bytes=5), samples_per_s=100.0),
        shown(gpu([0.5] * 120, energy_j=1500.0, sm_activity=0.4, peak_memory_bytes=7)),
        shown(gpu([0.5] * 40)),
    ]
    device = _only(pooled_gpus(trials, None))
    assert device.figures.sm_activity == pytest.approx(0.35)
    assert device.energy_per_sample_j == pytest.approx(1.0)
    assert device.figures.peak_memory_bytes == 7
    assert device.figures.tensor_activity is None
    assert device.figures.energy_j == pytest.approx(2500.0)


def test_effective_utilization_needs_the_studys_limit(shown) -> None:
    """Half of the samples that a busy second was shown to be good for; not known before that."""
    trials = [shown(gpu([0.9] * 80))]
    known, unknown = pooled_gpus(trials, 100.0), pooled_gpus(trials, None)
    assert known.effective_utilization == pytest.approx(0.5)
    assert unknown.effective_utilization is None


def test_the_limit_is_learned_from_all_points_that_were_repeated_and_busy(make_trial: MakeTrial) -> None:
    """80 samples/s at 80 % are 100 a busy second; one trial, an idle GPU, and a trial without windows show no limit."""
    busy = [on_gpu(make_trial(POINT, 80.0 * noise), gpu([0.8] * 40)) for noise in (0.999, 1.0, 1.001)]
    assert study_busy_rate(busy) == pytest.approx(100.0, rel=0.01)
    assert study_busy_rate(busy[:1]) is None
    assert study_busy_rate([on_gpu(make_trial(POINT, 80.0), 0.8) for _ in range(3)]) is None
    idle = [on_gpu(make_trial(OTHER, 50.0), gpu([0.1] * 40)) for _ in range(3)]
    assert study_busy_rate(idle) is None
    assert study_busy_rate([*busy, *idle]) == pytest.approx(100.0, rel=0.01)
    assert study_busy_rate([make_trial(POINT, 80.0), make_trial(POINT, None)]) is None
