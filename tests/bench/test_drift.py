"""Benchmark of the watch over trainings, at a small size."""

import numpy as np
import pytest

from scripts.bench.drift import PaceNoise, benchmark_drift, between_trainings


def test_all_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """False alarms with the days that were simulated, delays, starts and causes."""
    benchmark_drift(trainings=3, delays=1, starts=5, cases=2)
    text = capsys.readouterr().out
    assert "3 trainings that nothing happens to" in text
    assert "95 % upper bound" in text
    assert "| 20% |" in text
    assert "2 staged slowdowns" in text


def test_the_noise_is_that_of_real_trainings() -> None:
    """Trainings of one config differ by 8 %, in two modes; a training alone has slow phases and pauses."""
    rng = np.random.default_rng(0)
    assert float(between_trainings(rng, 4000).std()) == pytest.approx(0.08, abs=0.005)
    noises = [PaceNoise.draw(rng) for _ in range(200)]
    assert 0.3 < np.mean([noise.phase_depth > 0 for noise in noises]) < 0.7
    slow = next(noise for noise in noises if noise.phase_depth > 0.15 and noise.window_sd < 0.05)
    assert float(np.ptp(slow.windows(rng, 5000))) > slow.phase_depth
