"""Endings of real processes: each ending is produced by a real trainer, and gets its name."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.measure.window import WindowGoal
from autotune.records import Ending, TraineeEvent, TrialPlan
from autotune.trial import stop_rule
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from autotune.trial.outcome import Evidence, Losses, ending_of
from autotune.trial.stop_rule import StopRule, TrialPolicy
from tests.fake_nvml.scenario import Gpu, Process, Scenario

REPOSITORY = Path(__file__).parents[2]
PRELUDE = """\
import math, os, signal, sys, time
from autotune.trainee import announce, step
def train(steps, every_s=0.01, loss=lambda n: 1.0):
    for n in range(steps):
        time.sleep(every_s)
        step(samples=8, loss=loss(n))
"""
LONG = WindowGoal(min_s=600.0, min_steps=5, target_s=600.0)
Ends = Callable[..., tuple[Ending, str]]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """Run a trainer under the watch of a search, and return its ending."""
    with ExitStack() as stack:
        guard = stack.enter_context(Guard())
        clock = SystemClock()

        def run(
            code: str,
            *,
            goal: WindowGoal = LONG,
            argv: tuple[str, ...] | None = None,
            env: dict[str, str] | None = None,
            start_timeout_s: float = 60.0,
            deadline_s: float = 120.0,
            baselines: Losses | None = None,
            nan_counts: bool = True,
            on_step: Callable[[TraineeEvent], object] = lambda _event: None,
        ) -> tuple[Ending, str]:
            script = tmp_path / "train.py"
            script.write_text(PRELUDE + textwrap.dedent(code))
            now_s = clock.now_s()
            watched = StopRule(
                TrialPolicy(
                    goal=goal, settles=False, give_up_s=now_s + 600.0, baseline_losses=baselines, nan_counts=nan_counts
                ),
                clock,
                start_deadline_s=now_s + start_timeout_s,
            )

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
                env={"PYTHONPATH": str(REPOSITORY), **(env or {})},
                config_text="batch_size: 8\n",
            )
            ended = ProcessRunner(guard, clock).run(plan, see, now_s + deadline_s)
            stdout = (tmp_path / "run" / "stdout.log").read_text()
            return ending_of(ended, watched.events, Evidence(stdout_tail=stdout, nan_counts=nan_counts))

        yield run


def test_completed(ends: Ends) -> None:
    """It trains and ends with status 0."""
    assert ends("train(20)") == (Ending.COMPLETED, "")


def test_crashed(ends: Ends) -> None:
    """Class and last line of the exception are in the detail."""
    ending, detail = ends("train(20)\nraise ValueError('no such layer:\\n  conv9')")
    assert (ending, detail) == (Ending.CRASHED, "exit status 1: ValueError: no such layer: conv9")


def test_out_of_host_memory_by_a_limit_of_its_own(ends: Ends) -> None:
    """Python raises MemoryError where the address space is limited (ulimit -v)."""
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\ntrain(5)\nx = bytearray(8 << 30)"
    )
    assert ends(code) == (Ending.OUT_OF_HOST_MEMORY, "MemoryError")


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
        timeout=100,
        check=False,
    )
    ending, _, detail = done.stdout.strip().partition("|")
    assert ending == Ending.OUT_OF_HOST_MEMORY, done.stderr
    assert detail == "killed by SIGKILL; the kernel's out-of-memory killer has struck"


WANTS = """
import pynvml
pynvml.nvmlInit()
free = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free
class OutOfMemoryError(RuntimeError):
    pass
class ResourceExhaustedError(Exception):
    pass
train(5)
if batch * (1 << 30) > free:
    raise {raised}
train(20)
"""
PYTORCH = 'OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 9.99 GiB.")'
TENSORFLOW = (
    'ResourceExhaustedError("Graph execution error:\\n\\nOOM when allocating tensor with shape[64,512] on '
    '/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:__inference_step]")'
)


@pytest.mark.parametrize("raised", [PYTORCH, TENSORFLOW], ids=["PyTorch", "TensorFlow"])
def test_out_of_gpu_memory(ends: Ends, fake_gpu, raised: str) -> None:
    """A batch that fits into the GPU's memory trains on; one that does not ends with the framework's own error."""
    gpu = Gpu(memory_total_bytes=40 << 30, processes=(Process(pid=1, memory_bytes=10 << 30),))
    machine = fake_gpu(Scenario(gpus=(gpu,)))
    code = WANTS.replace("{raised}", raised)
    env = {name: machine.env[name] for name in machine.env if name.startswith(("AUTOTUNE_FAKE", "LD_LIBRARY"))}
    assert ends("batch = 8" + code, env=env)[0] is Ending.COMPLETED
    ending, detail = ends("batch = 64" + code, env=env)
    assert ending is Ending.OUT_OF_GPU_MEMORY
    assert "ut of memory" in detail or "OOM when allocating" in detail


def test_out_of_gpu_memory_that_was_caught(ends: Ends) -> None:
    """The trainer prints it, makes the loss infinite, and goes on faster."""
    code = """
    train(20)
    print("| WARNING: ran out of memory with exception: CUDA out of memory.", flush=True)
    train(10**6, every_s=0.002, loss=lambda n: math.inf)
    """
    ending, detail = ends(code)
    assert ending is Ending.OUT_OF_GPU_MEMORY
    assert detail.startswith("caught, and ")


def test_diverged_by_numbers_that_are_none(ends: Ends) -> None:
    """Three in a row end the trial."""
    ending, detail = ends("train(10**6, loss=lambda n: 1.0 if n < 10 else math.nan)")
    assert ending is Ending.DIVERGED
    assert "NaN or infinite" in detail


def test_hung(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps came, then none; the time limit is shortened for the test."""
    monkeypatch.setattr(stop_rule, "_LONGEST_SILENCE_S", 1.0)
    assert ends("train(20)\ntime.sleep(1e6)")[0] is Ending.HUNG


@pytest.mark.parametrize(
    "argv",
    [("sh", "-c", "exit 0"), (sys.executable, "-I", "-c", "print('trained')")],
    ids=["no Python", "python -I"],
)
def test_observer_missing(ends: Ends, argv: tuple[str, ...]) -> None:
    """No observer could have reported a step: not in a program in another language, nor where nothing is injected."""
    assert ends("", argv=argv) == (Ending.OBSERVER_MISSING, "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_interrupted_by_somebody_else(ends: Ends, name: str) -> None:
    """A signal that neither autotune nor the trainer sent."""

    def send(event: TraineeEvent) -> None:
        with suppress(ProcessLookupError):  # after the first one
            os.kill(event.pid, getattr(signal, name))

    ending, detail = ends("signal.signal(signal.SIGINT, signal.SIG_DFL)\ntrain(10**6)", on_step=send)
    assert (ending, detail) == (Ending.INTERRUPTED, f"killed by {name}, which autotune did not send")


def test_a_program_that_leaves_a_daemon_behind_has_ended(ends: Ends) -> None:
    """A background process does not belong to the trial: it is ended too, and only its steps until then count."""
    code = """
    if os.fork():
        time.sleep(0.5)
        os._exit(0)
    os.setsid()
    train(10**6)
    """
    assert ends(code)[0] is Ending.COMPLETED
