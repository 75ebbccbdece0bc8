"""A search in real time and a stranger who comes: ``python -m tests.daemon.idle.staged PROJECT STRANGER``.

The search is `autotune search` of a project, the GPUs are those of the fake driver, and the stranger is a process that
is nobody's child here: it burns CPU, or holds a GPU. Prints one JSON object when no process of the search is
left. The load is that of the search and of the stranger alone, whatever else this machine does.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from autotune.clock import SystemClock
from autotune.daemon.idleness import Arrivals, IdlePolicy
from autotune.daemon.machine_watch import GpuAttribution, MachineWatch
from autotune.measure.host import BusyCpu
from autotune.measure.processes import ProcessTree, process_stat
from autotune.trial.search_child import SearchChild
from tests.fake_nvml.busy_writer import BusyWriter

# It is forked twice, so that init has it, and says its id when it begins.
STRANGER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.write(1, str(os.getpid()).encode())
    os.close(1)
    end_s = time.monotonic() + 100
    while time.monotonic() < end_s:
        if sys.argv[1] != "cpu":
            time.sleep(1)
os._exit(0)
"""


class SmallCpu(BusyCpu):
    """Two cores that nobody uses but this process, what is below it, and the stranger."""

    def __init__(self) -> None:
        self.cores, self.is_whole_machine = 2.0, False
        self.tree = ProcessTree((os.getpid(),))
        self.stranger: int | None = None

    def busy_s(self) -> float:
        """See `BusyCpu.busy_s`."""
        stats = list(self.tree.look().values())
        return sum(stat.cpu_s + stat.waited_cpu_s for stat in stats) + self._stranger_s()

    def _stranger_s(self) -> float:
        """Return the CPU time that the stranger would have had by now if it had not had to wait for a core."""
        if self.stranger is None:
            return 0.0
        try:
            used_ns, waited_ns, _ = Path(f"/proc/{self.stranger}/schedstat").read_text().split()
            return (int(used_ns) + int(waited_ns)) / 1e9
        except OSError:  # it has ended, or the kernel keeps no such account
            stat = process_stat(self.stranger)
            return 0.0 if stat is None else stat.cpu_s


def stranger(kind: str) -> int:
    """Let a stranger come; return its process id."""
    made = subprocess.run([sys.executable, "-c", STRANGER, kind], stdout=subprocess.PIPE, check=True)
    pid = int(made.stdout)
    if kind == "gpu":
        BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"], memory_bytes=1 << 30, pid=pid)
    return pid


def play(project: Path, kind: str) -> dict[str, object]:
    """Search, let the stranger (``cpu`` or ``gpu``) come once a trial has begun, and leave."""
    clock, cpu, policy = SystemClock(), SmallCpu(), IdlePolicy()
    watch = MachineWatch(clock, cpu=cpu, attribution=GpuAttribution(shares_pids=True))
    watch.read()
    argv = (sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "10m")
    child = SearchChild.start(argv, cwd=project, env=dict(os.environ), log=project / "log", clock=clock)
    arrivals, reason = Arrivals(policy), None
    while reason is None and child.poll() is None:
        reason = arrivals.update(watch.read())
        if cpu.stranger is None and any(project.glob(".autotune/trials/*/*/steps.*")):
            cpu.stranger = stranger(kind)
        clock.wait(policy.close_look_s)
    pids = child.pids()
    child.end()
    if cpu.stranger is not None:
        os.kill(cpu.stranger, signal.SIGKILL)
    watch.close()
    left = [pid for pid in pids if (stat := process_stat(pid)) is not None and not stat.is_dead]
    return {"reason": reason, "left": left, "stranger": cpu.stranger}


if __name__ == "__main__":
    print(json.dumps(play(Path(sys.argv[1]), sys.argv[2])))
