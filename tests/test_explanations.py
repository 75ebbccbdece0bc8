"""Explanations that are true: a cause a row, the command that meets it, and what it must and must not say.

A text may name what was seen, and what it may be; never a cause that nothing has shown.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.study.claims import Owner
from autotune.study.record import StudyRecord
from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, Trainer, project_in, typed
from tests.postgresql import running_server
from tests.study.storages import CHOICES, VALUES, at, record

SECTION = """\
autotune:
  command: "{python} train.py {config}"
  knobs: {batch_size: [4, 8]}
  trial: {start_timeout_s: 20, min_s: 0.15, min_steps: 10, max_s: 0.5}
"""
INIT = ("init", "--config", "config.yaml", "--yes", "--", sys.executable, "train.py", "config.yaml")
SEARCH = ("search", "--config", "config.yaml", "--budget", "2m", "--no-apply")
CHECKPOINT = "hours of real training"
BLAMES = ("The trainer failed",)
TRAINS = ("steps seen, the first", "Written to config.yaml")
NOT_BELOW = "ValueError: not below the project"


def trains(config: Mapping[str, Any]) -> Training:
    """Train, the faster the larger a batch is."""
    return Training(samples=config["batch_size"], step_s=0.005 + 0.001 * config["batch_size"], noise=0.01)


def failing(said: str, code: int = 1) -> Trainer:
    """Return a trainer that fails before its first step, with these words."""
    return lambda _config: Training(
        steps=0, exit_code=code, stderr=said and f"Traceback (most recent call last):\n{said}\n"
    )


def trains_if(is_fit: Any, otherwise: str) -> Trainer:
    """Return a trainer that takes some values of ``work_dir``, and fails with these words at others."""
    return lambda config: (
        trains(config) if is_fit(path := config["work_dir"]) else failing(otherwise.replace("PATH", str(path)))(config)
    )


TAKES_NO_ABSOLUTE = trains_if(lambda path: not os.path.isabs(path), NOT_BELOW)
MAKES_ITS_OWN = trains_if(lambda path: not os.path.exists(path), "RuntimeError: Output directory `PATH` already exists")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cause.

    Attributes:
        says: What the output must hold.
        never: What it must not.
        trainer: The trainer.
        work_dir: That key of its config, as written.
        section: The section of its config.
        command: The command.
        status: Its exit status.
    """

    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    trainer: Trainer = trains
    work_dir: str = "runs/exp"
    section: str = ""
    command: tuple[str, ...] = INIT
    status: int = 1


CASES = {
    "no driver": Case(
        says=("no NVIDIA driver was found (libnvidia-ml.so.1 is missing)", "1.00x"),
        never=("nvidia-smi", " hang", "has not answered", "driver reports"),
        command=SEARCH,
        section=SECTION,
        status=0,
    ),
    # Where the trainer writes
    "a plain path": Case(says=TRAINS, never=BLAMES, status=0),
    "no path": Case(says=TRAINS, never=(*BLAMES, "own folder", "stays: work_dir"), work_dir="null", status=0),
    "Python's None": Case(
        says=(*TRAINS, "work_dir: None is not a path"),
        never=BLAMES,
        work_dir="None",
        trainer=trains_if(lambda path: path == "None", "TypeError"),
        status=0,
    ),
    "a literal of Python's": Case(
        says=TRAINS,
        never=BLAMES,
        work_dir="\"'runs/exp'\"",
        trainer=trains_if(lambda path: path[0] == path[-1] == "'", "SyntaxError"),
        status=0,
    ),
    "a template": Case(
        says=TRAINS,
        never=BLAMES,
        work_dir="runs/{name}",
        trainer=trains_if(lambda path: path.format(name="exp"), "KeyError"),
        status=0,
    ),
    "a trainer that takes no absolute path": Case(
        says=(
            "with work_dir: runs/exp-preflight-",
            NOT_BELOW,
            "The trainer may not accept absolute paths there",
            "redirect_except: [work_dir]\n  set: {work_dir: runs/exp-trials}",
        ),
        never=(*BLAMES, "no step was seen either"),
        trainer=TAKES_NO_ABSOLUTE,
    ),
    "the same, in a search": Case(
        says=("with work_dir: runs/exp-20", "redirect_except: [work_dir]"),
        never=("trials has a measurement", "lost"),
        trainer=TAKES_NO_ABSOLUTE,
        section=SECTION,
        command=SEARCH,
    ),
    "the section that was proposed for it": Case(
        says=("1.00x",),
        never=BLAMES,
        trainer=TAKES_NO_ABSOLUTE,
        section=f"{SECTION}  redirect_except: [work_dir]\n  set: {{work_dir: runs/exp-trials}}\n",
        command=SEARCH,
        status=0,
    ),
    "a trainer that makes its own folder": Case(says=TRAINS, never=BLAMES, trainer=MAKES_ITS_OWN, status=0),
    "the same, in every trial of a search": Case(
        says=("1.00x",),
        never=(*BLAMES, "crashed"),
        trainer=MAKES_ITS_OWN,
        section=SECTION,
        command=SEARCH,
        status=0,
    ),
    # What ended the trainer
    "an error of the trainer's own": Case(
        says=(
            "The trainer failed, or was killed. (exit status 1: ValueError: no such layer)",
            "no step was seen either",
        ),
        never=("may not accept absolute paths", "Memory ran out", "lost"),
        trainer=failing("ValueError: no such layer"),
    ),
    "a trainer that ends well": Case(
        says=("the trainer finished with exit status 0",), never=BLAMES, trainer=failing("", 0)
    ),
    "a limit on addresses": Case(
        says=("Memory ran out: the trainer reported it", "(MemoryError)"),
        never=("killer", *BLAMES),
        trainer=failing("MemoryError"),
    ),
    "SIGKILL from elsewhere": Case(
        says=("a signal that autotune did not send", "killed by SIGKILL, which autotune did not send"),
        never=(*BLAMES, "Memory ran out", "killer"),
        trainer=failing("", -9),
    ),
    "a full disk": Case(
        says=("OSError: [Errno 28] No space left on device",),
        never=("Memory ran out", "may not accept absolute paths"),
        trainer=failing("OSError: [Errno 28] No space left on device"),
    ),
    "a trainer that waits for ever": Case(
        says=("The trainer ran, but no step was seen",),
        never=(*BLAMES, " hang", "Nothing inside the trainer"),
        trainer=lambda _config: Training(start_s=float("inf")),
        section=SECTION,
        command=SEARCH,
    ),
}


def project_of(folder: Path, case: Case) -> CommandLine:
    """Make the project of a case, with a checkpoint of the user's own."""
    project = project_in(folder, case.trainer, f"batch_size: 4\nwork_dir: {case.work_dir}\n{case.section}")
    (folder / "runs/exp").mkdir(parents=True)
    (folder / "runs/exp/last.ckpt").write_text(CHECKPOINT)
    return project


def check(said: str, says: tuple[str, ...], never: tuple[str, ...]) -> None:
    """Compare an output with what it must and must not hold, line breaks as they come."""
    assert [words for words in says if words not in said] == [], said
    assert [words for words in never if words in said] == [], said


@pytest.mark.parametrize("cause", CASES)
def test_what_is_said_is_what_was_seen(cause: str, tmp_path: Path) -> None:
    """Whatever the cause, the user's own checkpoint stays, and nothing is left beside it."""
    case = CASES[cause]
    done = project_of(tmp_path, case)(*case.command)
    check(done.stdout + done.stderr, case.says, case.never)
    assert done.returncode == case.status, done.stderr
    assert (tmp_path / "runs/exp/last.ckpt").read_text() == CHECKPOINT
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.name.endswith("-trials")] == ["exp"]


def test_a_trainer_that_makes_its_own_folder_is_started_again_only_once(tmp_path: Path) -> None:
    """Later trials of the search do not create the folder."""
    project = project_of(tmp_path, CASES["the same, in every trial of a search"])
    project(*SEARCH).well()
    plans = project.simulator.plans
    assert len(plans) == len({plan.trial_id for plan in plans}) + 1 > 3


def test_a_program_that_is_no_python_may_train_unseen(tmp_path: Path) -> None:
    """Nothing inside it could have reported anything: the trainer is not blamed."""
    project_of(tmp_path, Case(says=()))
    done = typed(*INIT[:5], "sh", "-c", "exit 0", "config.yaml", cwd=tmp_path)
    check(done.stderr, ("Nothing inside the trainer reported to autotune. It may not be Python",), BLAMES)


@pytest.mark.services
@pytest.mark.parametrize(
    ("left_s", "says", "never"),
    [
        (600.0, "the storage has not answered within 5 s. Finished trials are kept here", "no budget"),
        (2.0, "the storage has not answered within 2 s, and no budget is left to wait", "within 5 s"),
    ],
)
def test_a_storage_that_keeps_silent_is_not_called_dead(left_s: float, says: str, never: str, tmp_path: Path) -> None:
    """Least of all one that had two seconds at the end of the budget."""
    clock = VirtualClock()
    with running_server() as server:
        owner = Owner(about={}, is_gone=lambda _about: False, clock=clock, ends_s=clock.now_s() + left_s)
        remarks: list[str] = []
        storage, pending = at(server.url, tmp_path), tmp_path / "pending"
        study = StudyRecord("silent", storage, pending=pending, owner=owner, remark=remarks.append)
        server.freeze()
        study.finish(study.begin(VALUES, CHOICES), record(), score=1.0)
        study.calls.write_pending()
        said = " ".join(remarks)
        server.thaw()
        study.close()
    check(said, (says,), (never, "cannot be reached"))
