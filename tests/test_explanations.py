"""Explanations that are true: a real cause a row, the command that meets it, and what it must and must not say.

A text may name what was seen, and what it may be; never a cause that nothing has shown.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Scenario
from tests.postgresql import PASSWORD, Server, running_server
from tests.warm import typed

TRAINER = """\
import ast, os, signal, subprocess, sys, time
import yaml
from autotune.trainee import announce, step
config = yaml.safe_load(open(sys.argv[1]))
work_dir = config["work_dir"]
%s
if isinstance(work_dir, str):
    os.makedirs(work_dir, exist_ok=True)
    with open(os.path.join(work_dir, "last.ckpt"), "w") as file:
        file.write("of a trial")
while True:
    time.sleep(0.005 + 0.001 * config["batch_size"])
    step(samples=config["batch_size"])
"""
EATS = "x = b'x' * (1 << 30)"
SECTION = """\
autotune:
  command: "{python} train.py {config}"
  knobs: {batch_size: [4, 8]}
  trial: {start_timeout_s: 2, min_s: 0.15, min_steps: 10, max_s: 0.5}
"""
INIT = ("init", "--config", "config.yaml", "--yes", "--", sys.executable, "train.py", "config.yaml")
SEARCH = ("search", "--config", "config.yaml", "--budget")
CHECKPOINT = "hours of real training"
BLAMES = ("The trainer failed",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A real cause.

    Attributes:
        says: What the output must hold.
        never: What it must not.
        code: What the trainer does before its first step.
        work_dir: That key of its config, as written.
        section: The section of its config.
        command: The command.
        status: Its exit status.
        driver: What the GPU's driver does; None for a machine without one.
    """

    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    code: str = ""
    work_dir: str = "runs/exp"
    section: str = ""
    command: tuple[str, ...] = INIT
    status: int = 1
    driver: Scenario | None = None


def failing(code: int = 0, **of: float) -> Scenario:
    """A driver whose first call fails, or does not return in time."""
    return Scenario(faults=(Fault(function="nvmlInit*", code=code, **of),))


REFUSES = "if os.path.exists(work_dir): raise RuntimeError(f'Output directory `{work_dir}` already exists')"
LITERAL = "work_dir = ast.literal_eval(str(work_dir))"
TRAINS = ("steps seen, the first", "Written to config.yaml")
LOOKS = ("monitor", "--for", "1s")

CASES = {
    # Whether there is a GPU
    "no driver": Case(
        says=("no NVIDIA driver was found (there is no libnvidia-ml.so.1 here)", "1.00x"),
        never=("nvidia-smi", " hang", "has not answered", "driver says"),
        command=(*SEARCH, "6s"),
        section=SECTION,
        status=0,
    ),
    "a driver that refuses": Case(
        says=("driver not loaded: the NVIDIA driver says: Driver Not Loaded",),
        never=("has not answered", "no NVIDIA driver", " hang", "libnvidia"),
        command=LOOKS,
        driver=failing(9),
    ),
    "a driver with an error of its own": Case(
        says=("the NVIDIA driver says: Unknown Error",),
        never=("has not answered", "no NVIDIA driver", " hang", "lost"),
        command=LOOKS,
        driver=failing(999),
    ),
    "a driver that keeps silent": Case(
        says=("the NVIDIA driver has not answered for 10 s", "It may be that it hangs in the kernel"),
        never=("no NVIDIA driver", "driver says", "lost"),
        command=LOOKS,
        driver=failing(delay_s=600.0),
    ),
    "one GPU that is lost": Case(
        says=("GPU 1 cannot be used: GPU lost: the NVIDIA driver says: GPU is lost",),
        never=("GPU 1 does not answer", "has not answered"),
        command=("diagnose", "--static"),
        driver=Scenario(gpus=(Gpu(), Gpu()), faults=(Fault(code=15, gpu=1),)),
        status=0,
    ),
    # Where the trainer writes
    "a plain path": Case(says=TRAINS, never=BLAMES, status=0),
    "no path": Case(
        says=TRAINS, never=(*BLAMES, "own folder", "stays: work_dir"), work_dir="null", code=LITERAL, status=0
    ),
    "Python's None": Case(
        says=(*TRAINS, "work_dir: it says None, which is no path"),
        never=BLAMES,
        work_dir="None",
        code=f"{LITERAL}\nassert work_dir is None",
        status=0,
    ),
    "a literal of Python's": Case(says=TRAINS, never=BLAMES, work_dir="\"'runs/exp'\"", code=LITERAL, status=0),
    "a template": Case(
        says=TRAINS, never=BLAMES, work_dir="runs/{name}", code="work_dir = work_dir.format(name='exp')", status=0
    ),
    "a trainer that takes no absolute path": Case(
        says=(
            "there were steps with work_dir: runs/exp-preflight-",
            "ValueError: not below the project",
            "It may be that the trainer takes no absolute path there",
            "redirect_except: [work_dir]\n  set: {work_dir: runs/exp-trials}",
        ),
        never=(*BLAMES, "no step came either"),
        code="if os.path.isabs(work_dir): raise ValueError('not below the project')",
    ),
    "the same, in a search": Case(
        says=("there were steps with work_dir: runs/exp-20", "redirect_except: [work_dir]"),
        never=("trials gave numbers", "lost"),
        code="if os.path.isabs(work_dir): raise ValueError('not below the project')",
        section=SECTION,
        command=(*SEARCH, "6s"),
    ),
    "the section that was proposed for it": Case(
        says=("1.00x",),
        never=BLAMES,
        code="if os.path.isabs(work_dir): raise ValueError('not below the project')",
        section=f"{SECTION}  redirect_except: [work_dir]\n  set: {{work_dir: runs/exp-trials}}\n",
        command=(*SEARCH, "6s"),
        status=0,
    ),
    "a trainer that makes its own folder": Case(says=TRAINS, never=BLAMES, code=REFUSES, status=0),
    "the same, in every trial of a search": Case(
        says=("1.00x",), never=(*BLAMES, "crashed"), code=REFUSES, section=SECTION, command=(*SEARCH, "6s"), status=0
    ),
    # What ended the trainer
    "an error of the trainer's own": Case(
        says=("The trainer failed, or was killed. (exit status 1: ValueError: no such layer)", "no step came either"),
        never=("takes no absolute path", "Memory ran out", "lost"),
        code="raise ValueError('no such layer')",
    ),
    "a trainer that ends well": Case(
        says=("the trainer ran to its end, with exit status 0",), never=BLAMES, code="sys.exit(0)"
    ),
    "a limit on addresses": Case(
        says=("Memory ran out: an error of the trainer says so", "(MemoryError)"),
        never=("killer", *BLAMES),
        code="import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\nx = bytearray(8 << 30)",
    ),
    "SIGKILL from elsewhere": Case(
        says=("a signal came that autotune did not send", "killed by SIGKILL, which autotune did not send"),
        never=(*BLAMES, "Memory ran out", "killer"),
        code="os.kill(os.getpid(), signal.SIGKILL)",
    ),
    "a full disk": Case(
        says=("OSError: [Errno 28] No space left on device",),
        never=("Memory ran out", "takes no absolute path"),
        code="open(os.path.join(os.environ['SMALL_DISK'], 'x'), 'w').write('x' * (1 << 20))",
    ),
    "a state folder without room": Case(
        says=("MiB are free; a trial needs at least 1 GiB",),
        never=(*BLAMES, "may write", "permission"),
        command=(INIT[0], "--state-dir", "SMALL_DISK", *INIT[1:]),
    ),
    "a trainer that waits for ever": Case(
        says=("The trainer ran, and no step of it was seen", "idle after 2"),
        never=(*BLAMES, " hang", "Nothing inside the trainer"),
        code="announce('test')\ntime.sleep(1e6)",
        section=SECTION,
        command=(*SEARCH, "6s"),
    ),
    "a program that is no Python": Case(
        says=("Nothing inside the trainer reported to autotune. It may be no Python",),
        never=BLAMES,
        command=(*INIT[:5], "sh", "-c", "exit 0", "config.yaml"),
    ),
}


@dataclass(kw_only=True)
class Project:
    """A project, and the command line as its user has it."""

    folder: Path
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def of(cls, folder: Path, case: Case) -> "Project":
        """Make the project of a case, with a checkpoint of the user's own."""
        config = f"batch_size: 4\nwork_dir: {case.work_dir}\n{case.section}"
        (folder / "config.yaml").write_text(config)
        (folder / "train.py").write_text(TRAINER % case.code)
        (folder / "runs/exp").mkdir(parents=True)
        (folder / "runs/exp/last.ckpt").write_text(CHECKPOINT)
        return cls(folder=folder)

    def autotune(self, *command: str, begin: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command, begun by another one; all that it says is on stdout."""
        if not begin:
            done = typed(*command, cwd=self.folder, env=self.env)
            done.stdout += done.stderr
            return done
        return subprocess.run(
            [*begin, sys.executable, "-m", "autotune", *command],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
            check=False,
        )

    def outputs(self) -> list[str]:
        """Return the names of what lies where the config has the trainer write, but for trials' own."""
        return sorted(path.name for path in (self.folder / "runs").iterdir() if not path.name.endswith("-trials"))


def check(said: str, says: tuple[str, ...], never: tuple[str, ...]) -> None:
    """Compare an output with what it must and must not hold, line breaks as they come."""
    assert [words for words in says if words not in said] == [], said
    assert [words for words in never if words in said] == [], said


@pytest.mark.parametrize("cause", CASES)
def test_what_is_said_is_what_was_seen(
    cause: str, tmp_path: Path, fake_gpu: Callable[..., FakeGpu], request: pytest.FixtureRequest
) -> None:
    """Whatever the cause, the user's own checkpoint stays, and nothing is left beside it."""
    case = CASES[cause]
    project, command = Project.of(tmp_path, case), case.command
    if case.driver is not None:
        project.env = fake_gpu(case.driver).env
    elif "driver" in cause and shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver of NVIDIA's")
    if "SMALL_DISK" in f"{case.code}{case.command}":
        disk = str(request.getfixturevalue("small_disk"))
        os.chmod(disk, 0o700)
        project.env["SMALL_DISK"] = disk
        command = tuple(disk if word == "SMALL_DISK" else word for word in command)
    done = project.autotune(*command)
    check(done.stdout, case.says, case.never)
    assert done.returncode == case.status, done.stdout
    assert (tmp_path / "runs/exp/last.ckpt").read_text() == CHECKPOINT
    assert project.outputs() in (["exp"], ["exp", "small disk"])


IN_A_GROUP = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"')
KILLED = "the kernel's out-of-memory killer has struck"


@pytest.mark.parametrize(
    ("code", "says", "never"),
    [
        (EATS, (f"(killed by SIGKILL; {KILLED})",), (*BLAMES, "did not send", "Error")),
        (
            f"subprocess.run([sys.executable, '-c', {EATS!r}])\nraise ValueError('no such layer')",
            (f"(exit status 1; {KILLED} meanwhile: ValueError: no such layer)",),
            (*BLAMES, "killed by SIGKILL"),
        ),
    ],
    ids=["the trainer", "another process"],
)
def test_what_the_kernel_ended_for_want_of_memory(
    code: str, says: tuple[str, ...], never: tuple[str, ...], tmp_path: Path, small_memory: Path
) -> None:
    """The count of the kernel's kills is that of all processes around: what the trainer said is not hidden by it."""
    project = Project.of(tmp_path, Case(says=says, code=code))
    done = project.autotune(*INIT, begin=(*IN_A_GROUP, str(small_memory)))
    check(done.stdout, ("Memory ran out: an error of the trainer says so, or the kernel ended", *says), never)


@pytest.fixture
def server() -> Iterator[Server]:
    """Run a server that a test may stop; skipped where PostgreSQL is not installed."""
    with running_server() as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A storage that is away.

    Attributes:
        budget_s: Budget of the search.
        freezes_at: What the search prints, as an expression, when the server stops to answer; None: it is stopped.
        says: See `Case`.
        never: See `Case`.
    """

    budget_s: int
    freezes_at: str | None
    says: tuple[str, ...]
    never: tuple[str, ...]


OUTAGES = {
    "a server that is stopped": Outage(
        budget_s=20,
        freezes_at=None,
        says=("the storage cannot be reached: connection", "refused"),
        never=("has not answered", "budget"),
    ),
    "a server that keeps silent": Outage(
        budget_s=25,
        freezes_at="baseline",
        says=("the storage has not answered within 5 s. Finished trials are kept here",),
        never=("cannot be reached", "no more time"),
    ),
    "a budget that ends while it is slow": Outage(
        budget_s=7,
        freezes_at="baseline",
        says=("the storage has not answered within ", " s, and the budget leaves no more time to wait"),
        never=("cannot be reached", "does not answer", "within 5 s"),
    ),
}


@pytest.mark.services
@pytest.mark.parametrize("cause", OUTAGES)
def test_what_is_said_of_a_storage(cause: str, tmp_path: Path, server: Server) -> None:
    """A server that had half a second at the end of the budget is not called dead."""
    outage = OUTAGES[cause]
    section = SECTION.replace("[4, 8]", "{low: 1, high: 64}")
    project = Project.of(tmp_path, Case(says=(), section=section))
    if outage.freezes_at is None:
        server.stop()
    command = (*SEARCH, f"{outage.budget_s}s", "--storage", server.bare_url)
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *command],
        cwd=project.folder,
        env={**project.env, "PGPASSWORD": PASSWORD},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as search:
        said, is_frozen = "", False
        for line in search.stdout or ():
            said += line
            if outage.freezes_at and not is_frozen and re.search(outage.freezes_at, line):
                server.freeze()
                is_frozen = True
    if outage.freezes_at is None:
        server.start()
    check(said, outage.says, outage.never)
