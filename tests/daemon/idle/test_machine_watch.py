"""Promises of the watch of the machine, on this machine and on the fake driver."""

import os
import signal
import subprocess
import sys

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.daemon.machine_watch import MachineWatch
from autotune.measure.gpu.occupancy import GpusSeen, OccupancyWatch
from autotune.measure.host import BusyCpu, ProcessTree
from tests.until import until

# It is forked twice, so that init has it, and says its id when it begins.
STRANGER = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.write(1, str(os.getpid()).encode())
    os.close(1)
    end_s = time.monotonic() + 100
    while time.monotonic() < end_s:
        pass
os._exit(0)
"""
BURNS = "import os, sys, time\nos.fork()\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"


class NoGpus(OccupancyWatch):
    """Machine without a driver."""

    def look(self, *, newest_s):
        """See `OccupancyWatch.look`."""
        return GpusSeen(t_s=newest_s)


class WrittenCpu(BusyCpu):
    """Host whose busy time is written down by the test."""

    def __init__(self, *, cores=4.0):
        self.cores, self.is_whole_machine, self.now_s = cores, False, 0.0

    def busy_s(self):
        """See `BusyCpu.busy_s`."""
        return self.now_s


@pytest.fixture
def host():
    """Host of four cores."""
    return WrittenCpu()


@pytest.fixture
def watch(host):
    """Watch in virtual time, without GPUs and with no processes of ours; and its clock."""
    clock = VirtualClock()
    return MachineWatch(clock, gpus=NoGpus(clock), cpu=host, tree=ProcessTree(())), clock


def test_the_load_is_that_since_the_last_reading(watch, host):
    """The first reading has none."""
    machine, clock = watch
    first = machine.read()
    assert (first.foreign_cores, first.span_s, first.cores) == (None, 0.0, 4.0)
    assert (first.gpus, first.why_no_gpus, first.why_no_load) == ((), None, None)
    host.now_s += 3.0
    clock.wait(2.0)
    second = machine.read()
    assert (second.foreign_cores, second.span_s) == (pytest.approx(1.5), 2.0)
    clock.wait(0.01)  # one tick of the kernel
    assert machine.read().foreign_cores == pytest.approx(1.5)
    clock.wait(10.0)
    assert machine.read().foreign_cores == 0.0


def test_the_cpu_time_of_our_own_is_not_that_of_others(start):
    """A child has used a core, and a child of that another one: the machine was as busy as they were."""

    class Ours(WrittenCpu):
        def busy_s(self):
            return sum(stat.cpu_s + stat.waited_cpu_s for stat in ProcessTree((os.getpid(),)).look().values())

    clock, cpu = VirtualClock(), Ours()
    machine = MachineWatch(clock, gpus=NoGpus(clock), cpu=cpu, tree=ProcessTree((os.getpid(),)))
    machine.read()
    before_s, burner = cpu.busy_s(), start(BURNS)
    assert [burner.stdout.readline() for _ in range(2)] == ["\n", "\n"]
    assert cpu.busy_s() > before_s + 0.5
    clock.wait(1.0)
    assert machine.read().foreign_cores < 0.3


def test_a_burner_of_somebody_else_is_named():
    """On this machine as it is: other processes may burn too, and then one of them may be the busiest."""
    made = subprocess.run([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, check=True)
    pid = int(made.stdout)
    cpu = BusyCpu()
    cpu.cores = 1.0  # of which one burner is a lot, however many there are
    machine = MachineWatch(SystemClock(), gpus=NoGpus(SystemClock()), cpu=cpu)
    if not cpu.is_whole_machine:
        os.kill(pid, signal.SIGKILL)
        pytest.skip("this process may not use the whole machine, and does not see who uses it")
    try:
        found = []

        def is_seen():
            reading = machine.read()
            found.append(reading)
            return reading.busiest is not None and (reading.foreign_cores or 0.0) > 0.1

        until(is_seen)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert found[-1].busiest.cores > 0
    assert found[-1].busiest.pid != os.getpid()
