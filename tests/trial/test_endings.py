"""Endings of real processes: what a process leaves behind when it ends gets its name."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.measure.window import WindowGoal
from autotune.records import Ending, TraineeEvent, TrialPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from autotune.trial.outcome import Evidence, ending_of
from autotune.trial.stop_rule import StopRule, TrialPolicy

REPOSITORY = Path(__file__).parents[2]
PRELUDE = """\
import os, time
from autotune.trainee import step
def train(steps):
    for _ in range(steps):
        time.sleep(0.01)
        step(samples=8, loss=1.0)
"""
LONG = WindowGoal(min_s=600.0, min_steps=5, target_s=600.0)
Ends = Callable[..., tuple[Ending, str]]


@pytest.fixture
def ends(tmp_path: Path, guard: Guard) -> Ends:
    """Run a trainer under the watch of a search, and return its ending."""
    clock = SystemClock()

    def run(
        code: str,
        *,
        argv: tuple[str, ...] | None = None,
        on_step: Callable[[TraineeEvent], object] = lambda _event: None,
    ) -> tuple[Ending, str]:
        script = tmp_path / "train.py"
        script.write_text(PRELUDE + code)
        policy = TrialPolicy(goal=LONG, settles=False, give_up_s=clock.now_s() + 600.0)
        watched = StopRule(policy, clock, start_deadline_s=clock.now_s() + 600.0)

        def see(events):
            for event in events:
                if event.kind == "step":
                    on_step(event)
            return watched(events)

        plan = TrialPlan(
            trial_id=f"{os.getpid()}-{tmp_path.name}",
            folder=tmp_path / "run",
            argv=argv or (sys.executable, str(script)),
            cwd=tmp_path,
            env={"PYTHONPATH": str(REPOSITORY)},
            config_text="batch_size: 8\n",
        )
        ended = ProcessRunner(guard, clock).run(plan, see, clock.now_s() + 600.0)
        stdout = (tmp_path / "run" / "stdout.log").read_text()
        return ending_of(ended, watched.events, Evidence(stdout_tail=stdout))

    return run


OUT_OF_MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
train(5)
x = bytearray(8 << 30)
"""
LEAVES_A_DAEMON = """
if os.fork():
    train(20)
    os._exit(0)
os.setsid()
train(10**6)
"""


@pytest.mark.parametrize(
    ("code", "ending", "detail"),
    [
        ("train(20)", Ending.COMPLETED, ""),
        (
            "train(20)\nraise ValueError('no such layer:\\n  conv9')",
            Ending.CRASHED,
            "exit status 1: ValueError: no such layer: conv9",
        ),
        (OUT_OF_MEMORY, Ending.OUT_OF_HOST_MEMORY, "MemoryError"),
        (LEAVES_A_DAEMON, Ending.COMPLETED, ""),
    ],
    ids=["ends well", "fails", "a limit of its own", "leaves a daemon"],
)
def test_a_process_that_ends_has_the_name_of_its_ending(ends: Ends, code: str, ending: Ending, detail: str) -> None:
    """A daemon that it leaves behind does not belong to the trial: it is ended too."""
    assert ends(code) == (ending, detail)


IN_A_SMALL_GROUP = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.guard import Guard
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
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SMALL_GROUP, str(small_memory), str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    ending, _, detail = done.stdout.strip().partition("|")
    assert ending == Ending.OUT_OF_HOST_MEMORY, done.stderr
    assert detail == "killed by SIGKILL; the kernel's out-of-memory killer has struck"


@pytest.mark.parametrize(
    "argv",
    [("sh", "-c", "exit 0"), (sys.executable, "-I", "-c", "print('trained')")],
    ids=["no Python", "python -I"],
)
def test_observer_missing(ends: Ends, argv: tuple[str, ...]) -> None:
    """No observer could have reported a step: not in a program in another language, nor where nothing is injected."""
    assert ends("", argv=argv) == (Ending.OBSERVER_MISSING, "")


def test_interrupted_by_somebody_else(ends: Ends) -> None:
    """A signal that neither autotune nor the trainer sent."""

    def send(event: TraineeEvent) -> None:
        with suppress(ProcessLookupError):  # after the first one
            os.kill(event.pid, signal.SIGTERM)

    assert ends("train(10**6)", on_step=send) == (
        Ending.INTERRUPTED,
        "killed by SIGTERM, which autotune did not send",
    )
