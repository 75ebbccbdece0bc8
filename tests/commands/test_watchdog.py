"""Searches that hang: they end soon after their budget, with the answer so far."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.commands.watchdog import Watchdog
from tests.commands.test_search import left_running

HANGING = """
import os, sys, threading, time
started_s = time.monotonic()
def sleeps(*_, **__):
    threading.Event().wait()
def opens_a_fifo(*_, **__):
    os.mkfifo('fifo')
    open('fifo').read()
def computes(*_, **__):
    while True:
        pass
def holds_the_interpreter(*_, **__):
    pow(7, 10 ** 9)  # a single call of C that gives nobody else a turn
hangs = locals()[sys.argv[1]]
%s
from autotune.cli import run
sys.exit(run(sys.argv[2:], started_s=started_s))
"""
OPENING = "from autotune.search import problem; problem.open_problem = hangs"
CONFIRMING = """
from autotune.search import tuner
first = tuner.Tuner._explore
def explore(self):
    self._confirm = hangs
    return first(self)
tuner.Tuner._explore = explore
"""


def _search(
    project: Path, how: str, where: str, *arguments: str, budget_s: float
) -> tuple["subprocess.CompletedProcess[str]", float]:
    began_s = time.monotonic()
    config_and_budget = ("--config", "config.yaml", "--budget", f"{budget_s:g}s")
    done = subprocess.run(
        [sys.executable, "-c", HANGING % where, how, "search", *arguments, *config_and_budget],
        cwd=project,
        env={**os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, time.monotonic() - began_s


@pytest.mark.parametrize("how", ["sleeps", "opens_a_fifo", "computes"])
def test_an_opening_that_hangs(project: Path, how: str) -> None:
    """The command is back soon after its budget, with an error of one object."""
    done, took_s = _search(project, how, OPENING, "--json", budget_s=2)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["kind"] == "trial"
    assert "was still at work in " in done.stderr
    assert "hangs" not in done.stderr  # what it does there was not seen
    assert "nvidia-smi" not in done.stderr
    assert 2 < took_s < 2 + 4


def test_what_was_measured_is_the_answer(project: Path) -> None:
    """The same object as always, with a caution; the guard of the trials has ended too, since its stderr is closed."""
    done, took_s = _search(project, "computes", CONFIRMING, "--json", budget_s=9)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["baseline"]["metrics"]["samples_per_s"] > 0
    assert "was ended by force" in document["cautions"][-1]
    assert took_s < 9 + 4
    assert left_running(project) == []


def test_a_call_that_gives_no_other_thread_a_turn(project: Path) -> None:
    """No answer can be given then, but the command ends."""
    done, took_s = _search(project, "holds_the_interpreter", OPENING, "--json", budget_s=5)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Timeout" in done.stderr
    assert took_s < 5 + 8


def test_it_is_silent_where_all_goes_well() -> None:
    """A search that ends in time, or never has to, is left alone."""
    ends: list[str] = []
    clock = SystemClock()
    for ends_s in (float("inf"), clock.now_s() + 1000.0):
        with Watchdog(ends_s, lambda: ends.append("ended") or 1, clock) as watchdog:
            watchdog.stand_down()
    assert ends == []
