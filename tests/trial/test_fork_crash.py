"""Crashes in a fork: made again by a fresh process until forks are known to work."""

import pytest

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


def test_a_trial_that_crashes_in_a_fork_alone_is_made_again(other: Project) -> None:
    """The trainer is not blamed for it, its trial counts, there are no more forks, and the user is told why."""
    install(other, "fragile", FRAGILE)
    other.write("train.py", f"{COUNTS}import fragile\nfragile.use()\nprint('trained')\n")
    for begun, fallbacks in ((1, 0), (3, 1), (4, 1)):
        exit_, said, _ = other.run("train.py")
        assert (exit_.exit_code, said) == (0, "trained\n")
        assert len((other.folder / "begun").read_text()) == begun
        assert other.runner.fallbacks == fallbacks
    (remark,) = other.remarks
    assert remark.startswith("warm starts are off: a trial failed when forked (KeyError: '_operator')")


def test_a_trainer_that_fails_by_itself_keeps_its_warm_starts(other: Project) -> None:
    """It fails in the fresh process too; once a fork has worked, a crash is not made again."""
    install(other, "framework", "")
    other.write("train.py", f"{COUNTS}import framework, sys\nsys.exit(int(sys.argv[1]))\n")
    begun = 0
    for status, times in ((1, 1), (1, 2), (0, 1), (1, 1)):
        assert other.run("train.py", str(status))[0].exit_code == status
        begun += times
        assert len((other.folder / "begun").read_text()) == begun
    assert other.forks == (2, 0)
    assert not other.remarks


@pytest.mark.parametrize("ends", ["raise MemoryError", "os.kill(os.getpid(), 9)"])
def test_what_a_fresh_process_would_meet_too_is_not_tried_again(ends: str, other: Project) -> None:
    """A want of memory would take the machine to its limit twice, and whoever kills a trial means it."""
    install(other, "framework", "")
    other.write("train.py", f"{COUNTS}import os, sys, framework\n{ends}\n")
    for number in (1, 2):
        assert other.run("train.py")[0].exit_code
        assert (other.folder / "begun").read_text() == "x" * number
