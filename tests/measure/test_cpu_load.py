"""Promises about the CPU load of others."""

import os

import pytest

from autotune.measure.host import BusyCpu, CpuSample, ProcessStat, foreign_cores, foreign_processes
from tests.measure.test_host import written

HERE = sorted(os.sched_getaffinity(0))


def stat(*, cpu_s=0.0, waited_s=0.0, name="python", kernel=False):
    """A process."""
    kept = {"started_s": 1.0, "parent": 1, "session": 1, "resident_bytes": 0, "is_dead": False}
    return ProcessStat(name=name, cpu_s=cpu_s, waited_cpu_s=waited_s, is_kernel_thread=kernel, **kept)


def sample(t_s, busy_s, **own):
    """CPU times, with our processes p1, p2, ..."""
    return CpuSample(t_s=t_s, busy_s=busy_s, own={int(name[1:]): one for name, one in own.items()})


def test_processes_count_and_interrupts_do_not(tmp_path):
    """User, nice and system time in ticks; neither waiting nor interrupts nor what a hypervisor took."""
    lines = "".join(f"cpu{number} 100 50 50 9 9 9 9 9 0 0\n" for number in HERE)
    root = written(tmp_path, {"proc/stat": f"cpu  {100 * len(HERE)} 50 50 9 9 9 9 9 0 0\n{lines}intr 5\n"})
    cpu = BusyCpu(root)
    assert (cpu.is_whole_machine, cpu.cores) == (True, len(HERE))
    assert cpu.busy_s() == pytest.approx((100 * len(HERE) + 100) / os.sysconf("SC_CLK_TCK"))


def test_only_the_cores_that_may_be_used_count(tmp_path):
    """A core on which we may not run can be as busy as it likes."""
    lines = "".join(f"cpu{number} 100 0 0 0\n" for number in HERE)
    root = written(tmp_path, {"proc/stat": f"cpu  9999999 0 0 0\n{lines}cpu4095 9999999 0 0 0\n"})
    cpu = BusyCpu(root)
    assert not cpu.is_whole_machine
    assert cpu.busy_s() == pytest.approx(100 * len(HERE) / os.sysconf("SC_CLK_TCK"))


OF_V2 = {"cpu.max": "50000 100000\n", "cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}
OF_V1 = {
    "cpu/cpu.cfs_quota_us": "50000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "cpuacct/cpuacct.usage": "2500000000\n",
}


@pytest.mark.parametrize(
    ("group", "files"),
    [("0::/\n", OF_V2), ("4:cpu:/docker/abc\n3:cpuacct:/docker/abc\n", OF_V1)],
    ids=["v2", "v1"],
)
def test_in_a_container_with_a_quota_its_own_account_counts(tmp_path, group, files):
    """/proc/stat shows the load of the whole host there."""
    proc = {"proc/stat": "cpu  99999999 0 0 0\ncpu0 99999999 0 0 0\n", "proc/self/cgroup": group}
    cpu = BusyCpu(written(tmp_path, {**proc, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}))
    assert (cpu.cores, cpu.busy_s(), cpu.is_whole_machine) == (0.5, 2.5, False)


def test_the_rest_of_the_busy_time_is_that_of_others():
    """Three cores busy, one of them ours."""
    before = sample(0.0, 10.0, p1=stat(cpu_s=1.0))
    assert foreign_cores(before, sample(2.0, 16.0, p1=stat(cpu_s=3.0))) == pytest.approx(2.0)
    assert foreign_cores(before, sample(2.0, 11.9, p1=stat(cpu_s=3.0))) == 0.0  # ticks are rounded


def test_a_process_of_ours_that_nobody_waited_for_does_not_make_others():
    """Its time is in no account any more, and that of those that are still there counts all the same."""
    before = sample(0.0, 10.0, p1=stat(), p2=stat(cpu_s=500.0))
    assert foreign_cores(before, sample(1.0, 11.0, p1=stat(cpu_s=1.0))) == 0.0


def test_the_busiest_stranger_is_named_and_the_kernel_is_nobody():
    """Ours do not count; a new process counts from its start, and children that have ended with their parent."""
    before = {1: stat(cpu_s=100.0), 2: stat(), 4: stat(kernel=True), 5: stat()}
    after = {1: stat(cpu_s=100.5), 2: stat(waited_s=1.0, name="make"), 3: stat(cpu_s=0.2), 5: stat(cpu_s=2.0)}
    after[4] = stat(cpu_s=0.5, kernel=True)
    found = foreign_processes(before, after, {5}, span_s=2.0)
    assert (found.busiest.pid, found.busiest.name, found.busiest.cores) == (2, "make", 0.5)
    assert found.kernel_cores == 0.25
    assert foreign_processes(before, before, (), span_s=1.0).busiest is None
