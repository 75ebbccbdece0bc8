"""Processes of a trial that a daemon starts, on other nodes too: they are seen, and they end with the trial."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.records import Stop, TraineeEvent
from autotune.trial.folders import TrialFolder
from autotune.trial.launch import ProcessRunner, end_orphans
from tests.slurm import Cluster, running_cluster
from tests.trial.conftest import Trials, running
from tests.until import until

TRAINER = Path(__file__).with_name("srun_trainer.py")


def elsewhere(trials: Trials) -> "subprocess.Popen[bytes]":
    """Start a process of the trial that is no descendant of its guard."""
    code = "import sys, time; from autotune.trainee.away import end_with_trial as end; end(sys.argv[1]); time.sleep(99)"
    environment = {**os.environ, "AUTOTUNE_GUARD": "1000000000"}
    return subprocess.Popen([sys.executable, "-c", code, str(trials.folder)], env=environment)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Two nodes of Slurm on this host."""
    with running_cluster(2) as cluster:
        yield cluster


@pytest.mark.services
def test_ranks_of_two_nodes_are_one_training_and_end_with_it(
    trials: Trials, runner: ProcessRunner, cluster: Cluster
) -> None:
    """Also where they ignore SIGTERM: no process is left, and of the allocation that they ran in only its own step."""
    seen: list[TraineeEvent] = []

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        seen.extend(events)
        return Stop.ENOUGH if sum(event.kind == "step" for event in seen) >= 50 else None

    batch = ("sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 600")
    job = cluster.run(*batch).strip()
    until(lambda: f"{job}.batch" in cluster.run("squeue", "--noheader", "--steps", "--format=%i"), cluster.logs)
    argv = ("srun", "--nodes=2", "--ntasks=2", "--overlap", sys.executable, str(TRAINER))
    plan = trials.plan(argv=argv, env={**cluster.environment, "SLURM_JOB_ID": job})
    trial_exit = runner.run(plan, watch, trials.soon())
    assert trial_exit.stop is Stop.ENOUGH, (trial_exit, cluster.logs())
    assert {event.samples for event in seen if event.kind == "step"} == {16.0}
    assert {event.rank.node for event in seen if event.rank} == set(cluster.names)
    assert {path.name for path in trials.folder.glob("away.*")} == {f"away.slurm.{job}.0"}
    assert (trials.folder / "over").exists()
    assert not running(trials.trial_id)
    steps = cluster.run("squeue", "--noheader", "--steps", "--format=%i").split()
    assert [step for step in steps if step.rpartition(".")[2].isdecimal()] == []
    cluster.run("scancel", job)


def test_processes_that_a_killed_guard_left_elsewhere_end(trials: Trials, tmp_path: Path) -> None:
    """The next search says that their trial is over; they are no descendants of anything that it could end."""
    TrialFolder(trials.folder).create()
    process = elsewhere(trials)
    until(lambda: any(trials.folder.glob("away.*")))
    end_orphans(trials.study, SystemClock())
    assert process.wait(timeout=60) == -9
    assert (trials.folder / "over").exists()


@pytest.mark.parametrize("guard_is_killed", [False, True])
def test_processes_that_start_elsewhere_after_their_trial_end(
    guard_is_killed: bool, trials: Trials, runner: ProcessRunner
) -> None:
    """Their launcher was killed before they had begun: nothing of them could be seen when the trial ended."""
    if guard_is_killed:
        TrialFolder(trials.folder).create()
        end_orphans(trials.study, SystemClock())
    else:
        runner.run(trials.plan(argv=("true",)), lambda _: None, trials.soon())
    assert elsewhere(trials).wait(timeout=60) == -9


def test_a_trainer_that_is_started_again_keeps_its_processes_elsewhere(trials: Trials, runner: ProcessRunner) -> None:
    """The end of its first start is not theirs; those of the first start end, even if they have not seen it."""
    folder = TrialFolder(trials.folder)
    folder.create()
    first = elsewhere(trials)
    until(lambda: any(trials.folder.glob("away.*")))
    folder.forget_processes_elsewhere()
    assert first.wait(timeout=60) == -9
    runner.run(trials.plan(argv=("true",)), lambda _: None, trials.soon())
    assert (trials.folder / "over").exists()
    second: list[subprocess.Popen[bytes]] = []

    def watch(_events: Sequence[TraineeEvent]) -> Stop | None:
        if not second:
            second.append(elsewhere(trials))
            until(lambda: any(trials.folder.glob("away.*")))
            assert not (trials.folder / "over").exists()
            assert second[0].poll() is None
        return Stop.ENOUGH

    assert runner.run(trials.plan(argv=("sleep", "60")), watch, trials.soon()).stop is Stop.ENOUGH
    assert second[0].wait(timeout=60) == -9


RAY = """#!/bin/sh
case "$2" in
    submit) for word; do echo "word $word"; done
        echo "Job 'raysubmit_r4nD0m' submitted successfully"; exec sleep 600 ;;
    stop) echo "$PWD $@" > "$STOPPED" ;;
esac
"""


GIVEN = '{"pip": ["x"], "env_vars": {"A": "1", "MODE": "slow", "PYTHONPATH": "/code"}}'


@pytest.mark.parametrize("given", [(), ("--runtime-env-json", GIVEN)])
@pytest.mark.parametrize("launcher", [(), ("env", "--")])
def test_a_ray_job_gets_the_variables_of_its_trial(
    trials: Trials, runner: ProcessRunner, tmp_path: Path, given: tuple[str, ...], launcher: tuple[str, ...]
) -> None:
    """It inherits none of the command's: those that the trial adds are in its runtime environment, with given ones."""
    ray = tmp_path / "ray"
    ray.write_text(RAY)
    ray.chmod(0o700)
    argv = (*launcher, str(ray), "job", "submit", *given, "--", "python", "train.py")
    stdout = trials.folder / "stdout.log"

    def watch(_events: Sequence[TraineeEvent]) -> Stop | None:
        return Stop.ENOUGH if stdout.exists() and b"raysubmit" in stdout.read_bytes() else None

    runner.run(trials.plan(argv=argv, env={"MODE": "fast"}), watch, trials.soon())
    _job, _submit, passed, *rest = [
        line.removeprefix("word ") for line in stdout.read_text().splitlines() if line.startswith("word ")
    ]
    assert rest == ["--", "python", "train.py"]
    runtime = json.loads(passed.removeprefix("--runtime-env-json="))
    assert runtime["env_vars"]["MODE"] == "fast"
    assert runtime["env_vars"]["AUTOTUNE_TRIAL_DIR"] == str(trials.folder)
    assert runtime["env_vars"]["AUTOTUNE_GUARD"].isdecimal()
    assert "HOME" not in runtime["env_vars"]
    if given:
        assert (runtime["pip"], runtime["env_vars"]["A"]) == (["x"], "1")
        assert runtime["env_vars"]["PYTHONPATH"].endswith(":/code")
    assert str(trials.folder) in runtime["env_vars"]["PYTHONPATH"]


def test_a_ray_job_stops_with_its_trial(trials: Trials, runner: ProcessRunner, tmp_path: Path) -> None:
    """Its command only submits it, so Ray is asked to, at the address that the command names."""
    ray, stopped = tmp_path / "ray", tmp_path / "stopped"
    ray.write_text(RAY)
    ray.chmod(0o700)
    argv = (str(ray), "job", "submit", "--address", "http://head:8265", "--", "python", "train.py")
    plan = trials.plan(argv=argv, env={"STOPPED": str(stopped)})

    def watch(_events: Sequence[TraineeEvent]) -> Stop | None:
        stdout = trials.folder / "stdout.log"
        return Stop.ENOUGH if stdout.exists() and b"raysubmit" in stdout.read_bytes() else None

    assert runner.run(plan, watch, trials.soon()).stop is Stop.ENOUGH
    assert stopped.read_text().split() == [
        str(plan.cwd),
        *("job", "stop", "--address=http://head:8265", "raysubmit_r4nD0m"),
    ]
