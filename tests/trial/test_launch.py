"""Trials of real trainers: their start, their end, and that no process of them is left."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.errors import CommandError, TrialError
from autotune.records import Stop, TrialPlan
from autotune.trial.launch import Guard, ProcessRunner, Runner, oom_kills
from tests.trial.conftest import TRAINER, Trials, running
from tests.trial.runner_contract import Behaviour, RunnerContract
from tests.until import until

WORDS = {
    Behaviour.ENDS_WELL: ("trains", "5"),
    Behaviour.FAILS: ("trains", "5", "3"),
    Behaviour.TRAINS_ON: ("trains", "-1"),
    Behaviour.IS_SILENT: ("silent",),
}


class TestProcessRunner(RunnerContract):
    """A process per trial keeps the contract."""

    clock = SystemClock()

    @contextmanager
    def opened(self) -> Iterator[Runner]:
        """See `RunnerContract.opened`."""
        with Guard() as guard:
            yield ProcessRunner(guard, self.clock)

    def plan(self, behaviour: Behaviour, folder: Path) -> TrialPlan:
        """See `RunnerContract.plan`."""
        return TrialPlan(
            trial_id="contract",
            folder=folder / "run",
            argv=(sys.executable, str(TRAINER), *WORDS[behaviour]),
            cwd=folder.parent,
            env={},
            config_text="",
        )


def test_a_trainer_finds_what_the_plan_says(tmp_path: Path, runner: ProcessRunner, monkeypatch) -> None:
    """Arguments, directory, environment and config arrive unchanged, in a folder with any name."""
    hostile = tmp_path / "quo'te\"s\nand ünïcode-é"
    hostile.mkdir()
    monkeypatch.setenv("FROM_THE_SEARCH", "kept")
    monkeypatch.setenv("AUTOTUNE_TRIAL_ID", "of another trial")
    trials = Trials(hostile / "study")
    words = ("two words", "quo'te\"s", "new\nline", "$HOME", "*", "", "\udcff")
    plan = trials.plan("shows", *words, cwd=hostile, env={"A": "b=c\n"}, config_text="a: ü\r\nb: 1\n")
    ended = runner.run(plan, lambda _: None, trials.soon())
    assert ended.exit_code == 0, ended.stderr_tail
    about = json.loads((trials.folder / "about.json").read_text())
    assert about["argv"] == list(words)
    assert about["cwd"] == str(hostile)
    assert about["config"] == "a: ü\r\nb: 1\n"
    assert (about["stdin"], about["descriptors"], about["session"], about["ignored"]) == (
        "/dev/null",
        [3],
        True,
        ["SIGPIPE"],
    )
    assert {
        name: about["env"][name] for name in ("FROM_THE_SEARCH", "A", "AUTOTUNE_TRIAL_ID", "AUTOTUNE_TRIAL_DIR")
    } == {
        "FROM_THE_SEARCH": "kept",
        "A": "b=c\n",
        "AUTOTUNE_TRIAL_ID": trials.trial_id,
        "AUTOTUNE_TRIAL_DIR": str(trials.folder),
    }


@pytest.mark.parametrize("before", [("env", "-u", "NOTHING"), ("env", "A=1", "PYTHONPATH=/elsewhere")])
def test_a_command_that_sets_the_path_of_modules_itself_is_observed(
    before: tuple[str, ...], trials: Trials, runner: ProcessRunner
) -> None:
    """Its own folder comes behind the observer's."""
    plan = trials.plan("shows", cwd=trials.folder.parent)
    plan = replace(plan, argv=(*before, *plan.argv))
    assert runner.run(plan, lambda _: None, trials.soon()).exit_code == 0
    path = json.loads((trials.folder / "about.json").read_text())["env"]["PYTHONPATH"].split(os.pathsep)
    assert path[0] == str(trials.folder / "inject")
    assert ("/elsewhere" in path) is (before[-1] == "PYTHONPATH=/elsewhere")


@pytest.mark.parametrize(
    "words",
    [("stubborn",), ("leaves", "worker"), ("leaves", "daemon"), ("respawns", "20000"), ("prints", "-1")],
    ids=" ".join,
)
def test_a_stop_leaves_nothing_running(words: tuple[str, ...], trials: Trials, runner: ProcessRunner) -> None:
    """Whatever a trainer does against it, all its processes are gone when the trial is over."""
    ended = runner.run(trials.plan(*words), trials.when_ready, trials.soon())
    assert running(trials.trial_id) == []
    assert ended.left_pids == ()


@pytest.mark.parametrize("kind", ["worker", "daemon"])
def test_the_end_of_a_trainer_ends_what_it_left(kind: str, trials: Trials, runner: ProcessRunner) -> None:
    """A trainer that ends by itself is reported so, without the processes that it left running."""
    ended = runner.run(trials.plan("leaves-and-ends", kind), lambda _: None, trials.soon())
    assert (ended.exit_code, ended.stop) == (0, None)
    assert running(trials.trial_id) == []
    assert (trials.folder / "stdout.log").read_text() == "done\n"


def test_a_stuck_search_does_not_move_the_deadline(trials: Trials, runner: ProcessRunner) -> None:
    """The guard ends the trial, which will not end, at its deadline, although the watch is busy for longer."""

    def watch(_events: object) -> None:
        if (trials.folder / "ready").exists():
            until(lambda: not running(trials.trial_id))

    deadline_s = trials.soon(2.0)
    ended = runner.run(trials.plan("stubborn"), watch, deadline_s)
    assert (ended.stop, ended.ended_s >= deadline_s) == (Stop.DEADLINE, True)


def test_much_output_keeps_its_ends_and_little_of_the_disk(trials: Trials, runner: ProcessRunner) -> None:
    """Of 20 MB on each stream the first and the last mebibyte are kept, and it is said what was left out."""
    ended = runner.run(trials.plan("prints", 20_000_000), lambda _: None, trials.soon(120.0))
    assert ended.exit_code == 0
    for name in ("stdout.log", "stderr.log"):
        data = (trials.folder / name).read_bytes()
        assert len(data) < 2.2 * (1 << 20)
        assert data.startswith(b"the first words\n")
        assert data.endswith(b"the last words\n")
        assert b"bytes left out here]" in data
    assert ended.stderr_tail.endswith("the last words\n")


def test_the_usage_of_all_processes_counts(trials: Trials, runner: ProcessRunner) -> None:
    """CPU time of a child that nobody waited for counts."""
    ended = runner.run(trials.plan("uses", 200), lambda _: None, trials.soon())
    assert ended.cpu_s >= 0.3
    assert ended.oom_killed in (False, None)


CANNOT_START = {
    "absent": (None, 0, "No such file", "first word"),
    "no interpreter": ("#!/no/such/interpreter\n", 0o700, "No such file", "interpreter in its first line"),
    "not executable": ("#!/bin/sh\n", 0o600, "Permission denied", "chmod"),
    "no first line": ("echo no first line\n", 0o700, "Exec format error", "#!"),
}


def test_a_command_that_cannot_start_is_said_with_a_remedy(trials: Trials, runner: ProcessRunner) -> None:
    """The system's reason and what to do about it; the runner works on."""
    for name, (content, mode, says, remedy) in CANNOT_START.items():
        script = trials.study / f"{name}.sh"
        if content is not None:
            script.write_text(content)
            script.chmod(mode)
        with pytest.raises(CommandError, match=says) as caught:
            runner.run(trials.plan(argv=(str(script),)), lambda _: None, trials.soon())
        assert str(script) in caught.value.message
        assert remedy in (caught.value.remedy or ""), name
    assert runner.run(trials.plan("trains", 1), lambda _: None, trials.soon()).exit_code == 0


def test_a_folder_of_somebody_else_is_not_used(trials: Trials, runner: ProcessRunner) -> None:
    """A folder with files in it that autotune did not make is left alone."""
    trials.folder.mkdir()
    (trials.folder / "thesis.txt").write_text("precious")
    with pytest.raises(TrialError, match="did not create"):
        runner.run(trials.plan("silent"), lambda _: None, trials.soon())
    assert os.listdir(trials.folder) == ["thesis.txt"]


@pytest.mark.parametrize(("words", "kill"), [(("stubborn",), "SIGTERM"), (("leaves", "daemon"), "SIGKILL")])
def test_a_lost_guard_is_replaced_and_its_orphans_ended(
    words: tuple[str, ...], kill: str, trials: Trials, guard: Guard, runner: ProcessRunner, stop_guard: Callable
) -> None:
    """Also when the guard is killed nothing is left running, and the next trial works."""

    def watch(events: object) -> None:
        if (trials.folder / "ready").exists():
            stop_guard(guard, kill)

    ended = runner.run(trials.plan(*words), watch, trials.soon())
    assert ended.stop is Stop.GUARD_LOST
    assert running(trials.trial_id) == []
    assert runner.run(Trials(trials.study).plan("trains", 1), lambda _: None, trials.soon()).exit_code == 0


def test_a_guard_that_answers_no_more_is_replaced(
    trials: Trials, guard: Guard, runner: ProcessRunner, stop_guard: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that hangs cannot hold up the search: it is killed soon after the trial should have ended."""
    monkeypatch.setattr("autotune.trial.launch.ENDING_S", 0.5)

    def watch(_events: object) -> Stop | None:
        if not (trials.folder / "ready").exists():
            return None
        stop_guard(guard, "SIGSTOP")
        return Stop.ENOUGH

    ended = runner.run(trials.plan("stubborn"), watch, trials.soon())
    assert ended.stop is Stop.GUARD_LOST
    assert running(trials.trial_id) == []


V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/user.slice/session\n", {"sys/fs/cgroup/user.slice/session/memory.events": V2}, 3),
        ("0::/host/path\n", {"sys/fs/cgroup/memory.events": V2}, 3),
        ("4:cpu,memory:/a\n0::/\n", {"sys/fs/cgroup/memory/a/memory.oom_control": V1}, 5),
        ("4:memory:/host/path\n", {"sys/fs/cgroup/memory/memory.oom_control": V1}, 5),
        ("0::/\n", {"proc/vmstat": "pgfault 9\noom_kill 7\n"}, 7),
        ("0::/\n", {"proc/vmstat": "pgfault 9\n"}, None),
        ("1:cpu:/a\n", {}, None),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 in a container", "whole machine", "old kernel", "nothing"],
)
def test_the_closest_counter_is_read(groups: str, files: dict[str, str], count: int | None, tmp_path: Path) -> None:
    """The own group's before the machine's, and None where there is none."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == count
