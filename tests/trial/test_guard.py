"""Guard of a killed search: it outlives the search for as long as it takes to leave no process running."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import autotune
from autotune.clock import SystemClock
from autotune.records import Stop, TrialExit
from autotune.trial.folders import temporary_folder
from autotune.trial.guard_process import GIVE_UP_S, GRACE_S
from autotune.trial.launch import ENDING_S, Ended, Guard, Started, end_orphans
from tests.trial.conftest import Trials, running
from tests.until import DEADLINE_S, until

STAND_IN = Path(__file__).with_name("search_stand_in.py")


def gone(pid: int) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DEADLINE_S)[0])
    finally:
        os.close(descriptor)


class Search:
    """Search in a process of its own, at the moment when its trainer is ready."""

    def __init__(self, trials: Trials, *words: str) -> None:
        root = Path(autotune.__file__).parents[1]
        self.process = subprocess.Popen(
            [sys.executable, str(STAND_IN), str(trials.folder), *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
            start_new_session=True,
            text=True,
        )
        self.guard = int(self.process.stdout.readline())

    def close(self) -> None:
        """End all processes, even if the test has failed."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def search(request: pytest.FixtureRequest, trials: Trials) -> Iterator[Search]:
    """Search whose trainer does what the test's parameter says."""
    search = Search(trials, *request.param.split())
    yield search
    search.close()


@pytest.mark.parametrize("search", ["stubborn", "leaves daemon", "prints -1"], indirect=True)
def test_a_killed_search_leaves_nothing_running(search: Search, trials: Trials) -> None:
    """SIGKILL on the search ends its trial and its guard, without another search having to come; no file stays."""
    assert running(trials.trial_id)
    temporary = temporary_folder(trials.folder)
    assert temporary.is_dir()
    search.process.kill()
    assert gone(search.guard)
    assert running(trials.trial_id) == []
    assert not temporary.exists()


@pytest.mark.parametrize("search", ["leaves session", "leaves daemon"], indirect=True)
def test_a_killed_guard_and_search_leave_orphans_that_the_next_one_ends(search: Search, trials: Trials) -> None:
    """When both were killed at once, the orphan cleanup ends their processes, and only these."""
    bystander = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, "AUTOTUNE_TRIAL_ID": trials.trial_id, "AUTOTUNE_TRIAL_DIR": "/elsewhere/" + trials.trial_id},
    )
    os.kill(search.guard, signal.SIGSTOP)  # so that it cannot answer the search's end
    search.process.kill()
    os.kill(search.guard, signal.SIGKILL)
    assert gone(search.guard)
    end_orphans(trials.study, SystemClock())
    assert running(trials.trial_id) == [bystander.pid]
    bystander.communicate(b"\n")


def test_a_killed_trial_is_reported_and_the_search_goes_on(trials: Trials) -> None:
    """SIGKILL on the trainer is an ending like others."""
    search = Search(trials, "leaves", "worker")
    try:
        trainer = min(running(trials.trial_id))
        os.kill(trainer, signal.SIGKILL)
        assert search.process.communicate(timeout=60.0)[0] == "None -9\n"
        assert running(trials.trial_id) == []
    finally:
        search.close()


def test_closing_ends_the_trial(trials: Trials) -> None:
    """At the end of the ``with`` statement neither the trial nor the guard is left."""
    with Guard() as guard:
        guard.start()
        pid = guard.pid
        launch(guard, trials, "stubborn")
        until(lambda: (trials.folder / "ready").exists())
    assert running(trials.trial_id) == []
    assert guard.pid is None
    assert gone(pid)


def test_a_late_stop_does_not_change_how_a_trial_ended(guard: Guard, trials: Trials) -> None:
    """The message to stop may cross with the end of the trial, and must not affect the next one."""
    guard.start()
    for _ in range(2):
        launch(guard, trials, "trains", "1")
        assert end_of(guard).stop is None
        guard.stop(Stop.ENOUGH)


def test_a_trial_that_closes_its_output_costs_the_guard_no_time(guard: Guard, trials: Trials) -> None:
    """A guard that looked at a closed stream again and again would take a core from the training that it guards."""
    guard.start()
    launch(guard, trials, "closes")
    before = psutil.Process(guard.pid).cpu_times()
    ended = end_of(guard)
    assert (ended.exit_code, ended.cpu_s >= 0.5) == (0, True)
    after = psutil.Process(guard.pid).cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1


def test_the_search_waits_longer_for_an_end_than_the_guard_may_take_for_it() -> None:
    """Else a guard that is still busy with processes that cannot be killed would be killed itself."""
    assert ENDING_S >= GRACE_S + GIVE_UP_S + 1.0


def end_of(guard: Guard) -> TrialExit:
    """Wait until the trial has started, and has ended."""
    assert isinstance(guard.receive(DEADLINE_S), Started)
    ended = guard.receive(DEADLINE_S)
    assert isinstance(ended, Ended)
    return ended.exit


def launch(guard: Guard, trials: Trials, *words: str) -> None:
    """Start a trial of the trainer, below this guard."""
    trials.folder.mkdir(exist_ok=True)
    plan = trials.plan(*words)
    env = {**os.environ, "AUTOTUNE_TRIAL_ID": plan.trial_id, "AUTOTUNE_TRIAL_DIR": str(plan.folder)}
    guard.launch(
        {"argv": plan.argv, "cwd": plan.cwd, "env": env},
        stdout=plan.folder / "stdout.log",
        stderr=plan.folder / "stderr.log",
        deadline_s=trials.soon(),
    )
