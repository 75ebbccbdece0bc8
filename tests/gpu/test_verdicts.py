"""Promises about utilization as a whole: fake driver, real bindings, collector, its reader, verdict."""

import numpy as np
import pytest

from autotune.measure.oscillation import Pattern, oscillation
from scripts.bench.oscillation_verdicts import GpuTrace, SquareWave, ramp, random_bursts, white_noise
from tests.fake_nvml.library import FakeGpu
from tests.gpu.verdicts import machine_showing, read_by_the_collector, segment_of, use_of

WINDOW_S = 1 / 6
RUN_S = 30.0
PERIODS_S = (0.5, 0.6, 0.7, 0.85, 1.0, 1.3, 1.7, 2.1, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0)
CHANCES = range(3)


def starved(period_s: float) -> GpuTrace:
    """A GPU that is fed at a beat: 2 % for one half of the time, 40 % for the other."""
    wave = SquareWave(period_s=period_s, duty=0.5, low=0.02, high=0.40)
    return wave.trace(RUN_S + 5, np.random.default_rng(7))


def not_cyclic(chance: int) -> dict[str, GpuTrace]:
    """Courses that go up and down, or up, and have no period that a driver could show."""
    rng = np.random.default_rng(chance)
    beat = SquareWave(period_s=WINDOW_S * (0.96, 1.03, 0.52)[chance], duty=0.5, low=0.0, high=1.0)
    return {
        f"white noise {chance}": white_noise(0.4, 0.2, WINDOW_S, length_s=RUN_S + 5, rng=rng),
        f"ramp {chance}": ramp(0.02, 0.4 + 0.2 * chance, length_s=RUN_S),
        f"bursts {chance}": random_bursts(0.4, 0.4 + 0.4 * chance, 0.02, 0.9, length_s=RUN_S + 5, rng=rng),
        # Steps of a little more or less than a driver window: the shares of the windows wander slowly up and down.
        f"beat {chance}": beat.trace(RUN_S + 5, rng),
    }


@pytest.fixture(scope="module")
def known(nvml_library, tmp_path_factory):
    """Course and readings of all of them by name, side by side on one machine."""
    traces = {f"period {period_s}": starved(period_s) for period_s in PERIODS_S}
    for chance in CHANCES:
        traces |= not_cyclic(chance)
    shown = machine_showing(list(traces.values()), WINDOW_S)
    machine = FakeGpu(nvml_library, tmp_path_factory.mktemp("machine"), shown, at_s=0.0, began_s_ago=0.0)
    readings = read_by_the_collector(machine, len(traces), RUN_S)
    return {name: (traces[name], one) for name, one in zip(traces, readings, strict=True)}


@pytest.mark.parametrize("period_s", PERIODS_S)
def test_a_starved_gpu_is_seen_as_it_is(known, period_s):
    """The mean is right to a point, the beat has its name, and its period is right to 5 % from 1 s on."""
    trace, readings = known[f"period {period_s}"]
    truth = trace.mean(0.0, RUN_S)
    assert use_of(readings, 0.0, RUN_S).figures.utilization == pytest.approx(truth, abs=0.01)
    seen = oscillation([segment_of(readings, 0.0, RUN_S)])
    assert seen.pattern is Pattern.CYCLIC
    assert seen.mean == pytest.approx(truth, abs=0.01)
    if period_s >= 1.0:
        assert seen.period_s == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("kind", ["white noise", "ramp", "bursts", "beat"])
def test_no_period_is_invented(known, kind, chance):
    """Noise, a ramp, random bursts, and a beat between steps and driver windows are no cycle; the mean is right."""
    trace, readings = known[f"{kind} {chance}"]
    seen = oscillation([segment_of(readings, 0.0, RUN_S)])
    assert seen.pattern is not Pattern.CYCLIC
    assert seen.period_s is None
    assert seen.mean == pytest.approx(trace.mean(0.0, RUN_S), abs=0.01)
