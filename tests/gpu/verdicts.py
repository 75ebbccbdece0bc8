"""The verdicts on GPU utilization through all of the measuring side: ``python -m tests.gpu.verdicts --scenarios 200``.

``python -m scripts.bench oscillation`` works out itself what a driver would show of its random scenarios. Here a fake
driver shows them, the unmodified bindings and the collector read them, and the usage of each trial is judged.
The driver and the collector share a frozen clock, so an hour of GPU time takes seconds.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from autotune.measure.gpu.records import GpuLost, Record, StreamStarted, of_line
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.usage import DeviceUsage
from autotune.measure.oscillation import Segment
from scripts.bench.oscillation_verdicts import GpuTrace, Outcome, Scenario, draw_scenario, tables
from tests.fake_nvml import scenario as fake
from tests.fake_nvml.library import FROZEN_ORIGIN_S, FakeGpu, machine_of
from tests.gpu.stage import STAGE

LEAD_S = 5.3
"""From the origin of the driver's time to that of the courses: runs begin in the middle of driver windows."""

_AFTER_S = 3.0
_AT_ONCE = 50  # GPUs of a machine


def machine_showing(traces: Sequence[GpuTrace], window_s: float) -> fake.Scenario:
    """A machine with a GPU for each course, and driver windows of that length."""
    return fake.Scenario(
        gpus=tuple(fake.Gpu(busy_percent=_timeline(trace), power_mw=None) for trace in traces), window_s=window_s
    )


def _timeline(trace: GpuTrace) -> fake.Timeline:
    points = zip(trace.borders_s[:-1] + LEAD_S, 100.0 * trace.levels, strict=True)
    return fake.Timeline(tuple((float(t_s), float(percent)) for t_s, percent in points))


def read_by_the_collector(machine: FakeGpu, gpus: int, until_s: float) -> list[GpuTimeline]:
    """Return the timeline of each GPU after the collector has read them until then, in the time of the courses."""
    code = f"tell(sample(0, {LEAD_S + until_s + _AFTER_S}, [uuid(place) for place in range({gpus})]))"
    records: defaultdict[str, list[Record]] = defaultdict(list)
    for record in filter(None, map(of_line, machine.run(STAGE + code, timeout_s=600.0))):
        assert not isinstance(record, GpuLost), record
        if not isinstance(record, StreamStarted):
            assert record.uuid is not None
            records[record.uuid].append(record)
    known = []
    for uuid in sorted(records):  # their numbers are in them
        known.append(GpuTimeline([uuid], since_s=FROZEN_ORIGIN_S))
        for record in records[uuid]:
            known[-1].add(record)
    assert len(known) == gpus
    return known


def use_of(known: GpuTimeline, t0_s: float, t1_s: float) -> DeviceUsage:
    """Return the usage over a stretch, in the time of the courses."""
    origin_s = FROZEN_ORIGIN_S + LEAD_S
    (device,) = known.between(origin_s + t0_s, origin_s + t1_s).devices
    return device


def segment_of(known: GpuTimeline, t0_s: float, t1_s: float) -> Segment:
    """The same as the verdicts take it."""
    device = use_of(known, t0_s, t1_s)
    return Segment.within(device.t0_s, device.t1_s, device.windows)


def judge_all(scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Shows, reads and judges them; those with driver windows of one length share machines."""
    outcomes = []
    for window_s in sorted({scenario.window_s for scenario in scenarios}):
        alike = [scenario for scenario in scenarios if scenario.window_s == window_s]
        for first in range(0, len(alike), _AT_ONCE):
            some = alike[first : first + _AT_ONCE]
            until_s = max(max(one.starts_s) + one.trial_s for one in some)
            shown = machine_showing([one.trace for one in some], window_s)
            with machine_of(shown, at_s=0.0) as machine:
                known = read_by_the_collector(machine, len(some), until_s)
            for scenario, readings in zip(some, known, strict=True):
                trials = [segment_of(readings, start_s, start_s + scenario.trial_s) for start_s in scenario.starts_s]
                outcomes.append(scenario.judged(trials))
    return outcomes


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.verdicts", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    drawn = [draw_scenario(np.random.default_rng((arguments.seed, number))) for number in range(arguments.scenarios)]
    title = (
        f"{arguments.scenarios} scenarios, seed {arguments.seed}, through the fake driver, pynvml and the collector."
    )
    print("\n\n".join((title, *tables(judge_all(drawn)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
