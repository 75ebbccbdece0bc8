"""Promises about utilization as a whole: fake driver, real bindings, collector, its reader, verdict."""

from collections import defaultdict

import numpy as np
import pytest

from autotune.measure.gpu.records import Record, StreamStarted, of_line
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.oscillation import Pattern, Segment, oscillation
from scripts.bench.oscillation_verdicts import GpuTrace, SquareWave, ramp, random_bursts, white_noise
from tests.fake_nvml import scenario as fake
from tests.fake_nvml.library import FROZEN_ORIGIN_S, FakeGpu
from tests.gpu.stage import STAGE

LEAD_S = 5.3
"""From the origin of the driver's time to that of the courses: runs begin in the middle of driver windows."""

WINDOW_S = 1 / 6
RUN_S = 30.0
PERIODS_S = (0.5, 0.85, 1.0, 1.7, 4.0, 8.0)


def starved(period_s: float) -> GpuTrace:
    """A GPU that is fed at a beat: 2 % for one half of the time, 40 % for the other."""
    wave = SquareWave(period_s=period_s, duty=0.5, low=0.02, high=0.40)
    return wave.trace(RUN_S + 5, np.random.default_rng(7))


def not_cyclic() -> dict[str, GpuTrace]:
    """Courses that go up and down, or up, and have no period that a driver could show."""
    rng = np.random.default_rng(0)
    return {
        "white noise": white_noise(0.4, 0.2, WINDOW_S, length_s=RUN_S + 5, rng=rng),
        "ramp": ramp(0.02, 0.6, length_s=RUN_S),
        "bursts": random_bursts(0.4, 0.4, 0.02, 0.9, length_s=RUN_S + 5, rng=rng),
        # Steps of a little more or less than a driver window: the shares of the windows wander slowly up and down.
        "shorter than a window": _beat(0.96).trace(RUN_S + 5, rng),
        "longer than a window": _beat(1.03).trace(RUN_S + 5, rng),
    }


def _beat(windows: float) -> SquareWave:
    return SquareWave(period_s=WINDOW_S * windows, duty=0.5, low=0.0, high=1.0)


def _shown(trace: GpuTrace) -> fake.Gpu:
    points = zip(trace.borders_s[:-1] + LEAD_S, 100.0 * trace.levels, strict=True)
    course = fake.Timeline(tuple((float(t_s), float(percent)) for t_s, percent in points))
    return fake.Gpu(busy_percent=course, power_mw=None)


@pytest.fixture(scope="module")
def known(nvml_library, tmp_path_factory):
    """Course of each by name, and what the collector has read of it; all side by side on one machine."""
    traces = {f"{period_s}": starved(period_s) for period_s in PERIODS_S} | not_cyclic()
    shown = fake.Scenario(gpus=tuple(map(_shown, traces.values())), window_s=WINDOW_S)
    machine = FakeGpu(nvml_library, tmp_path_factory.mktemp("machine"), shown, at_s=0.0, began_s_ago=0.0)
    code = f"tell(sample(0, {LEAD_S + RUN_S + 3.0}, [uuid(place) for place in range({len(traces)})]))"
    records: defaultdict[str, list[Record]] = defaultdict(list)
    for record in filter(None, map(of_line, machine.run(STAGE + code))):
        if not isinstance(record, StreamStarted):
            records[record.uuid or "the driver"].append(record)
    found = {}
    for (name, trace), uuid in zip(traces.items(), sorted(records), strict=True):  # their numbers are in them
        timeline = GpuTimeline([uuid], since_s=FROZEN_ORIGIN_S)
        for record in records[uuid]:
            timeline.add(record)
        t0_s = FROZEN_ORIGIN_S + LEAD_S
        (device,) = timeline.between(t0_s, t0_s + RUN_S).devices
        found[name] = trace, device
    return found


@pytest.mark.parametrize("period_s", PERIODS_S)
def test_a_starved_gpu_is_seen_as_it_is(known, period_s):
    """The mean is right to a point, the beat has its name, and its period is right to 5 % from 1 s on."""
    trace, device = known[f"{period_s}"]
    truth = trace.mean(0.0, RUN_S)
    assert device.figures.utilization == pytest.approx(truth, abs=0.01)
    seen = oscillation([Segment.within(device.t0_s, device.t1_s, device.windows)])
    assert seen.pattern is Pattern.CYCLIC
    assert seen.mean == pytest.approx(truth, abs=0.01)
    if period_s >= 1.0:
        assert seen.period_s == pytest.approx(period_s, rel=0.05)


@pytest.mark.parametrize("kind", not_cyclic())
def test_no_period_is_invented(known, kind):
    """Noise, a ramp, random bursts, and a beat between steps and driver windows are no cycle; the mean is right."""
    trace, device = known[kind]
    seen = oscillation([Segment.within(device.t0_s, device.t1_s, device.windows)])
    assert seen.pattern is not Pattern.CYCLIC
    assert seen.period_s is None
    assert seen.mean == pytest.approx(trace.mean(0.0, RUN_S), abs=0.01)
