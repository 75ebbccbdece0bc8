"""Crashes in a fork: made again by a fresh process until forks are known to work."""

import pytest

from autotune.records import Ending, Stop
from autotune.trial.guard import Ended
from autotune.trial.outcome import ending_of
from autotune.trial.warm import ZygoteRunner, crash_in_words, may_be_the_forks
from tests.trial.conftest import Project, install

FRAGILE = """
import os
forked = []
os.register_at_fork(after_in_child=lambda: forked.append(True))
def use():
    if forked:
        raise KeyError("_operator")
"""
COUNTS = "with open('begun', 'a') as file: file.write('x')\n"


def ended(status: int | None, why: Stop | None = None) -> Ended:
    """Return an end."""
    return Ended(status=status, why=why, started_s=0.0, ended_s=1.0, cpu_s=0.0, peak_memory_bytes=0, killed=0, left=())


@pytest.mark.parametrize("status", [1, 2, -6, -11])
def test_a_crash_may_be_the_forks(status: int) -> None:
    """An error, an abort and a segmentation fault."""
    assert may_be_the_forks(ended(status), "KeyError: '_operator'\n")


@pytest.mark.parametrize(
    ("end", "stderr"),
    [
        (ended(0), ""),
        (ended(None), ""),
        (ended(-15, Stop.ENOUGH), ""),
        (ended(-9), ""),
        (ended(137), ""),
        (ended(-15), ""),
        (ended(1), "MemoryError\n"),
        (ended(1), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"),
    ],
)
def test_other_ends_are_not_the_forks(end: Ended, stderr: str) -> None:
    """A good end, a stop, a kill from outside, and a want of memory are the trial's own."""
    assert not may_be_the_forks(end, stderr)


def test_words_of_a_crash_are_printable_and_short() -> None:
    """A trainer may print anything."""
    assert crash_in_words(ended(1), "Traceback\nKeyError: \x1b[31m'x'\n\n") == "KeyError: [31m'x'"
    assert crash_in_words(ended(-11), " \n") == "exit status -11"
    assert len(crash_in_words(ended(1), "x" * 10_000)) == 120


def test_a_trial_that_crashes_in_a_fork_alone_is_made_again(other: Project) -> None:
    """The trainer is not blamed for it, its trial counts, there are no more forks, and the user is told why."""
    install(other, "fragile", FRAGILE)
    other.write("train.py", f"{COUNTS}import fragile\nfragile.use()\nprint('trained')\n")
    assert isinstance(other.runner, ZygoteRunner)
    for begun, fallbacks in ((1, 0), (3, 1), (4, 1)):
        exit_, said, _ = other.run("train.py")
        assert (exit_.exit_code, said) == (0, "trained\n")
        assert len((other.folder / "begun").read_text()) == begun
        assert other.runner.fallbacks == fallbacks
    (remark,) = other.runner.remarks
    assert remark.startswith("warm starts are off: a trial failed when forked (KeyError: '_operator')")


def test_a_trainer_that_fails_by_itself_keeps_its_warm_starts(other: Project) -> None:
    """It fails in the fresh process too; once a fork has worked, a crash is not made again."""
    install(other, "framework", "")
    other.write("train.py", f"{COUNTS}import framework, sys\nsys.exit(int(sys.argv[1]))\n")
    assert isinstance(other.runner, ZygoteRunner)
    begun = 0
    for status, times in ((1, 2), (0, 1), (1, 2), (0, 1), (1, 1)):
        assert other.run("train.py", str(status))[0].exit_code == status
        begun += times
        assert len((other.folder / "begun").read_text()) == begun
    assert other.runner.fallbacks == 0
    assert other.runner.warm_starts == 2
    assert not other.runner.remarks


def test_a_want_of_memory_is_not_tried_again(other: Project) -> None:
    """It would take the machine to its limit twice."""
    other.write("train.py", f"{COUNTS}raise MemoryError\n")
    assert other.run("train.py")[0].exit_code == 1
    assert (other.folder / "begun").read_text() == "x"


def test_a_trial_that_waits_for_the_warm_interpreter_is_not_blamed_for_it(other: Project) -> None:
    """Its time to start has not begun yet; if the budget ends meanwhile, that is said."""
    install(other, "slow", "import sys, threading\nif sys.argv == ['-c']: threading.Event().wait()\n")
    other.write("train.py", "import slow\n")
    assert other.run("train.py")[0].exit_code == 0
    stops = iter([Stop.NEVER_STARTED, Stop.NEVER_STARTED, Stop.DEADLINE])
    cut = other.run("train.py", watch=lambda _: next(stops))[0]
    assert ending_of(cut, []) == (Ending.KILLED_BY_BUDGET, "the warm interpreter was still making its imports")
