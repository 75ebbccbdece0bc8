"""Endings of real processes: what a process leaves behind when it ends gets its name."""

import sys
from pathlib import Path

from autotune.records import Ending
from tests.until import ended

REPOSITORY = Path(__file__).parents[2]
IN_A_SMALL_GROUP = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.launch import Guard
from autotune.trial.launch import ProcessRunner
from autotune.trial.outcome import ending_of
clock, events, folder = SystemClock(), [], Path(sys.argv[2])
argv = (sys.executable, "-c", "x = b'x' * (1 << 30)")
plan = TrialPlan(trial_id="small", folder=folder / "run", argv=argv, cwd=folder, env={}, config_text="")
with Guard() as guard:
    ended = ProcessRunner(guard, clock).run(plan, events.extend, clock.now_s() + 60)
print(*ending_of(ended, events), sep="|")
"""


def test_out_of_host_memory_by_the_kernel(small_memory: Path, tmp_path: Path) -> None:
    """Killed without any output; the counter of the control group tells by whom."""
    done = ended(sys.executable, "-c", IN_A_SMALL_GROUP, small_memory, tmp_path, cwd=REPOSITORY)
    ending, _, detail = done.stdout.strip().partition("|")
    assert ending == Ending.OUT_OF_HOST_MEMORY, done.stderr
    assert detail == "killed by SIGKILL; the kernel's out-of-memory killer killed a process"
