"""Promises of the host probe, on real processes, and of the machine's facts, on real and on written files."""

import subprocess
import sys
import time
from contextlib import closing

import pytest

from autotune.clock import SystemClock
from autotune.measure.host import HostProbe, machine_facts
from autotune.records import Stop, TrialPlan
from autotune.trial.launch import Guard, ProcessRunner
from tests.until import DEADLINE_S, until

# Burns CPU in a child, which says so after every tenth of a second of it. For every line on stdin that child is
# killed, the ballast is dropped, and a new child takes over. Its name is as hostile as the kernel lets it be.
TRAINER = r"""
import subprocess, sys
with open("/proc/self/comm", "wb") as comm:
    comm.write(b"t) R 1 (\xff")
BURN = '''
import time
while True:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    print("burnt", flush=True)
'''
ballast = bytearray(int(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", BURN])
for line in sys.stdin:
    child.kill()
    child.wait()
    ballast = b""
    print("ended", flush=True)
    child = subprocess.Popen([sys.executable, "-c", BURN])
child.kill()
child.wait()
"""

# Starts other training processes as launchers do, and says which they are: one by exec without any environment, one by
# fork alone, and a daemon: in a session of its own, its parent gone. Each first word is what it is known by.
LAUNCHER = r"""
import os, subprocess, sys, time

def said(name, pid):
    with open(sys.argv[1], "a") as file:
        file.write(f"{name} {pid}\n")

WAIT = [sys.executable, "-c", "import time; time.sleep(600)"]
said("launcher", os.getpid())
said("session", subprocess.Popen(WAIT, env={}).pid)
forked = os.fork()
if forked == 0:
    time.sleep(600)
said("fork", forked)
between = os.fork()
if between == 0:
    said("daemon", subprocess.Popen(WAIT, start_new_session=True).pid)
    os._exit(0)
os.waitpid(between, 0)
said("all", 0)
time.sleep(600)
"""


@pytest.fixture
def probe():
    """A probe that is closed in the end."""
    with closing(HostProbe()) as probe:
        yield probe


def use_since(probe, t0_s):
    """Return the usage since then, once it is known."""

    def known():
        use = probe.between(t0_s, time.monotonic())
        return use if use is not None and use.cpu_cores is not None else None

    return until(known)


def test_what_ended_processes_took_is_not_forgotten(probe, start):
    """When a process ends, the CPU time does not run backwards and the peak of memory stays."""
    trainer = start(TRAINER, str(64 * 2**20))
    trainer.stdout.readline()
    t0_s = time.monotonic()
    probe.open("none", trainer.pid)
    before = use_since(probe, t0_s)
    seen_s = time.monotonic()
    trainer.stdin.write("end\n")
    trainer.stdin.flush()
    until(lambda: trainer.stdout.readline() == "ended\n")
    after = use_since(probe, seen_s)
    assert after.cpu_cores >= 0
    assert after.peak_memory_bytes >= before.peak_memory_bytes > 64 * 2**20


FORKS = """\
import os, time
while True:
    if os.fork() == 0:
        while time.process_time() < 0.02:
            pass
        os._exit(0)
    os.wait()
    print(os.times().children_user + os.times().children_system, flush=True)
"""


def test_processes_that_come_and_go_between_two_samples_count(probe):
    """As a loader's workers that start anew for each pass: who has waited for them has their time."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        probe.open("none", process.pid)
        began_s, before_s = time.monotonic(), float(process.stdout.readline())
        took_s = until(lambda: (took_s := float(process.stdout.readline()) - before_s) > 0.5 and took_s)
        until(lambda: use_since(probe, began_s).cpu_cores * (time.monotonic() - began_s) > 0.7 * took_s)
        process.kill()


def test_all_processes_of_a_trial_are_its_own(probe, tmp_path):
    """Whichever of them it is opened with; not those of the guard, nor a sidecar's."""
    told, known, deadline_s = tmp_path / "pids", {}, time.monotonic() + DEADLINE_S

    def watch(_events):
        if not known and told.exists() and "all" in told.read_text():
            known.update((name, int(pid)) for name, pid in map(str.split, told.read_text().splitlines()))
            probe.open("study/run", known["session"])
        use = probe.between(0.0, time.monotonic())
        return Stop.ENOUGH if use is not None or time.monotonic() > deadline_s else None

    with Guard() as guard:
        guard.start()
        sidecar = {"argv": (sys.executable, "-c", "import time; time.sleep(600)"), "cwd": tmp_path, "env": {}}
        guard.start_sidecar("sidecar", sidecar, log=tmp_path / "log")
        argv = (sys.executable, "-c", LAUNCHER, str(told))
        plan = TrialPlan(trial_id="study/run", folder=tmp_path / "run", argv=argv, cwd=tmp_path, env={}, config_text="")
        ended = ProcessRunner(guard, SystemClock()).run(plan, watch, deadline_s)
    assert ended.stop is Stop.ENOUGH
    use = probe.between(0.0, time.monotonic())
    assert use.pids == {pid for name, pid in known.items() if name != "all"}


def written(root, files):
    """Writes a tree of files as the kernel would show it."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1 = "sys/fs/cgroup/pod", "sys/fs/cgroup"
LIMITED = {
    "v2": {
        **{"proc/self/cgroup": "0::/pod/trainer", f"{V2}/cpu.max": "50000 100000", f"{V2}/memory.max": "max"},
        **{f"{V2}/trainer/cpu.max": "max 100000", f"{V2}/trainer/memory.max": "2097152"},
    },
    "v1": {
        "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/",
        **{f"{V1}/cpu,cpuacct/cpu.cfs_quota_us": "80000", f"{V1}/cpu,cpuacct/cpu.cfs_period_us": "100000"},
        f"{V1}/memory/memory.limit_in_bytes": "2097152",
    },
}


@pytest.mark.parametrize("version", LIMITED)
def test_limits_of_a_container_are_respected(tmp_path, version):
    """The tightest limit on the way to the top holds, or the controller's own; half a core still is one core."""
    bare = machine_facts(written(tmp_path, {**LIMITED[version], "proc/cpuinfo": "model name\t: Old"}))
    assert (bare.cores, bare.memory_bytes, bare.cpu_model, bare.boot_id) == (1, 2 * 2**20, "Old", None)
    more = {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast: 3000", "proc/sys/kernel/random/boot_id": "1b2c"}
    found = machine_facts(written(tmp_path, more))
    assert (found.cpu_model, found.boot_id) == ("Fast: 3000", "1b2c")
