"""A collector on a fake GPU in frozen time: what the tests of the GPU's measuring side play on."""

from tests.fake_nvml.library import FROZEN_EPOCH_S, FROZEN_ORIGIN_S

STAGE = f"""
from datetime import UTC, datetime, timedelta
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.records import of_line, to_line
from autotune.measure.gpu.collector import GpuPoller

ORIGIN_S = {FROZEN_ORIGIN_S}

class FrozenClock:
    '''The scenario's time; waiting moves it on, for the driver too.'''

    def __init__(self, t_s=0.0):
        self.t_s = t_s
        self.set_by_s = 0.0
        at(t_s)

    def now_s(self):
        return ORIGIN_S + self.t_s

    def utc(self):
        return datetime.fromtimestamp({FROZEN_EPOCH_S} + self.t_s + self.set_by_s, UTC)

    def wait(self, seconds):
        self.t_s += seconds
        at(self.t_s)

def uuid(index=0):
    return f"GPU-{{index:08x}}-0000-4000-8000-000000000000"

def sample(from_s, until_s, uuids=None):
    '''The lines that a poller says meanwhile.'''
    clock, lines = FrozenClock(from_s), []
    poller = GpuPoller(uuids or [uuid()], lambda record: lines.append(to_line(record).decode()), clock)
    while clock.t_s < until_s:
        wait_s = poller.step()
        if wait_s is None:
            break
        clock.wait(wait_s)
    poller.close()
    return lines

def readings(lines, uuids=None):
    '''What a reader knows that was given these lines.'''
    known = GpuTimeline(uuids or [uuid()], since_s=ORIGIN_S)
    for line in lines:
        known.add(of_line(line))
    return known

def use(from_s, until_s, t0_s, t1_s, uuids=None, **options):
    '''What is said about t0_s..t1_s by a poller that ran from from_s to until_s.'''
    return readings(sample(from_s, until_s, uuids), uuids).between(ORIGIN_S + t0_s, ORIGIN_S + t1_s, **options)
"""
"""Code to put before what `FakeGpu.run` is to run; times are those of the scenario."""
