"""Promises of the host probe, on real processes, and of the machine's facts, on real and on written files."""

import subprocess
import sys
import time

import pytest

from autotune.clock import SystemClock
from autotune.measure.host import HostProbe, machine_facts
from autotune.measure.probe import TrialProcesses
from autotune.records import Stop, TrialPlan
from autotune.trial.guard import Guard, Program
from autotune.trial.launch import ProcessRunner

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


def a_run(pid):
    """Processes of a trial whose id nothing carries."""
    return TrialProcesses(trial_id="none", pid=pid)


@pytest.fixture
def trainer():
    """A small process tree that works until the test is over."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(64 * 2**20)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.stdin.close()
    process.stdout.read()
    process.stdout.close()
    process.wait(timeout=60)


@pytest.fixture
def probe():
    """A probe that is closed in the end."""
    probe = HostProbe()
    yield probe
    probe.close()


def use_once_known(probe, trainer, t0_s):
    """Return the usage since ``t0_s``, as soon as there is one; the trainer's ticks are waited for."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        trainer.stdout.readline()
        use = probe.between(t0_s, time.monotonic())
        if use is not None and use.cpu_cores is not None:
            return use
    pytest.fail("the probe gave nothing within a minute")


def test_what_ended_processes_took_is_not_forgotten(probe, trainer):
    """When a process ends, the CPU time does not run backwards and the peak of memory stays."""
    trainer.stdout.readline()
    t0_s = time.monotonic()
    probe.open(a_run(trainer.pid))
    before = use_once_known(probe, trainer, t0_s)
    seen_s = time.monotonic()
    trainer.stdin.write("end\n")
    trainer.stdin.flush()
    while trainer.stdout.readline() != "ended\n":
        pass
    after = use_once_known(probe, trainer, seen_s)
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
        probe.open(a_run(process.pid))
        began_s, before_s = time.monotonic(), float(process.stdout.readline())
        while (now_s := time.monotonic()) < began_s + 2.0 or probe.between(began_s, now_s).cpu_cores is None:
            took_s = float(process.stdout.readline()) - before_s
        use = probe.between(began_s, now_s)
        process.kill()
    assert use.cpu_cores * (now_s - began_s) > 0.7 * took_s


def test_all_processes_of_a_trial_are_its_own(probe, tmp_path):
    """Whichever of them it is opened with; not those of the guard, nor a sidecar's."""
    told = tmp_path / "pids"
    known = {}
    deadline_s = time.monotonic() + 60.0

    def watch(_events):
        if not known and told.exists() and "all" in told.read_text():
            known.update((name, int(pid)) for name, pid in map(str.split, told.read_text().splitlines()))
            probe.open(TrialProcesses(trial_id="study/run", pid=known["session"]))
        use = probe.between(0.0, time.monotonic())
        return Stop.ENOUGH if use is not None or time.monotonic() > deadline_s else None

    with Guard() as guard:
        guard.start()
        guard.start_sidecar(
            "sidecar",
            Program(argv=(sys.executable, "-c", "import time; time.sleep(600)"), cwd=tmp_path, env={}),
            log=tmp_path / "log",
        )
        argv = (sys.executable, "-c", LAUNCHER, str(told))
        plan = TrialPlan(trial_id="study/run", folder=tmp_path / "run", argv=argv, cwd=tmp_path, env={}, config_text="")
        ended = ProcessRunner(guard, SystemClock()).run(plan, watch, deadline_s)
    assert ended.stop is Stop.ENOUGH
    use = probe.between(0.0, time.monotonic())
    assert use.pids == {pid for name, pid in known.items() if name != "all"}


def written(root, files):
    """Writes a tree of files as the kernel would show it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_a_container_are_respected(tmp_path):
    """Cgroup v2: the tightest limit on the way to the top holds; half a core still is one core."""
    root = written(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/trainer\n",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
            "sys/fs/cgroup/pod/trainer/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/trainer/memory.max": "1048576\n",
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast CPU: 3000\n",
            "proc/sys/kernel/random/boot_id": "1b2c\n",
        },
    )
    facts = machine_facts(root)
    assert (facts.cores, facts.memory_bytes) == (1, 2**20)
    assert (facts.cpu_model, facts.boot_id) == ("Fast CPU: 3000", "1b2c")


def test_limits_of_an_old_container_are_respected(tmp_path):
    """Cgroup v1: one hierarchy per controller, and the host's path where only the top is mounted."""
    root = written(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "80000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2097152\n",
        },
    )
    facts = machine_facts(root)
    assert (facts.cores, facts.memory_bytes) == (1, 2 * 2**20)
    assert facts.boot_id is None
