"""Launchers of workers: the lines of the docs, run by each launcher that is installed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.commands.conftest import Autotune
from tests.slurm import running_cluster
from tests.sshd import HOST, running_sshd
from tests.until import until

DOCS = Path(__file__).parents[2] / "docs" / "several-machines.md"
BIN = Path(sys.executable).parent
WORKER = "autotune worker --config config.yaml"
RANKED = Path(__file__).parents[1] / "trial" / "ranked_trainer.py"
STAND_IN = """#!/bin/sh
trap 'echo "$SLURM_ARRAY_TASK_ID gives its trial back"; exit 143' TERM
echo "$SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME in $PWD: $*"
while :; do sleep 0.1; done
"""


def snippet(language: str, words: str, docs: Path = DOCS, **here: str) -> str:
    """Return the code of the docs that holds these words, with the test's places for those in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", docs.read_text(), re.S)
    (code,) = [one for one in blocks if words in one]
    for said, meant in here.items():
        assert said in code
        code = code.replace(said, meant)
    return code


def trials(autotune: Autotune, project: Path) -> int:
    """Return the number of trials of the one study."""
    listed = autotune("study", "list", "--storage", f"journal:{project / 'studies'}", "--json")
    (study,) = json.loads(listed.stdout)["studies"]
    return int(study["trials"])


def workers_of(project: Path) -> list[psutil.Process]:
    """Return the workers that run in a project."""
    found = []
    for process in psutil.process_iter():
        try:
            if "worker" in process.cmdline() and process.cwd() == str(project):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.services
@pytest.mark.parametrize("library", ["ray", "submitit"])
def test_workers_of_a_launcher_make_one_study(
    library: str, project: Path, autotune: Autotune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the code as it stands there; only the cluster, the folder, the address and their number are this test's."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.setenv("PATH", f"{BIN}:{Path('/usr/bin')}:/bin")
    monkeypatch.chdir(project)
    code = snippet("python", f"import {library}\n")
    for said, here in (
        ("/home/me/project", json.dumps(str(project))[1:-1]),
        ("file:/home/me/storage-address", json.dumps(f"journal:{project / 'studies'}")[1:-1]),
        ('ray.init(address="auto")', "ray.init(num_cpus=4, num_gpus=4, include_dashboard=False)"),
        ('folder="submitit-logs"', 'folder="submitit-logs", cluster="local"'),
        ("range(4)", "range(1)"),
        ('"--config", "config.yaml"', '"--config", "config.yaml", "--budget", "15s"'),
    ):
        code = code.replace(said, here)
    exec(code, {})
    assert trials(autotune, project) > 2


@pytest.mark.services
def test_a_worker_over_ssh_makes_a_study_and_ends_with_the_connection(project: Path, autotune: Autotune) -> None:
    """^C ends the loop of the docs, which ends the connection, which ends the worker and its trial."""
    (plain := project.with_name("plain")).symlink_to(project)  # the lines of the docs quote no path
    code = snippet(
        "sh",
        "ssh -tt",
        **{
            "node1 node2 me@node3": HOST,
            "/home/me/project": str(plain),
            "file:/home/me/storage-address": f"journal:{plain}/studies",
            "autotune worker": f"{BIN}/autotune worker",
        },
    )
    with (
        running_sshd() as path,
        subprocess.Popen(["sh", "-c", code], env={**os.environ, "PATH": path}, start_new_session=True) as loop,
    ):
        try:
            until(lambda: list(project.glob("studies/*.journal")) and trials(autotune, project))
            assert workers_of(project)
        finally:
            os.killpg(loop.pid, signal.SIGINT)
        until(lambda: not workers_of(project))


@pytest.mark.core
@pytest.mark.services
def test_each_task_of_slurm_has_a_node_of_its_own_and_gets_its_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for autotune prints where it runs; the notice of a time limit reaches it in place of the shell."""
    stand_in = tmp_path / "bin" / "autotune"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    (tmp_path / "workers.sh").write_text(
        snippet("sh", "#SBATCH", **{"/home/me/project": str(tmp_path), "--array=0-3": "--array=0-1"})
    )

    def printed() -> str:
        return "".join(path.read_text() for path in tmp_path.glob("*.log"))

    with running_cluster(2) as cluster:
        output = f"--output={tmp_path}/%a.log"
        said = cluster.run("sbatch", "--parsable", "--time=5", output, str(tmp_path / "workers.sh"))
        job = said.split()[-1]
        until(lambda: printed().count(" on ") == 2, lambda: (said, printed(), cluster.logs()))
        tasks = dict(re.findall(r"^(\d) on (\w+) in ", printed(), re.M))
        assert (sorted(tasks), sorted(tasks.values())) == (["0", "1"], ["node1", "node2"])
        assert all(f"in {tmp_path}: worker --config config.yaml" in line for line in printed().splitlines())
        assert sorted(re.findall(r"--seed (\d)$", printed(), re.M)) == ["0", "1"]
        cluster.run("scancel", "--batch", "--signal=TERM", job)
        until(lambda: printed().count("gives its trial back") == 2, lambda: (printed(), cluster.logs()))
        until(lambda: not cluster.run("squeue", "-h", "-j", job), cluster.logs)


@pytest.mark.services
def test_trials_of_two_nodes_are_steps_of_the_workers_allocation(project: Path, autotune: Autotune) -> None:
    """By the lines of the docs: both nodes train in each trial, and nothing is left where the worker is told to end."""
    (plain := project.with_name("plain")).symlink_to(project)
    command = yaml.safe_load((project / "config.yaml").read_text())["autotune"]["command"]
    lines = snippet(
        "sh",
        "srun",
        DOCS.with_name("many-processes.md"),
        **{
            "/home/me/project": str(plain),
            "file:/home/me/storage-address": f"journal:{plain}/studies",
            "autotune worker": f"{BIN}/autotune worker",
            "python train.py {config}": command.replace("{python}", sys.executable),
            "--array=0-1": "--array=0-0",
            "--exclusive --mem=0": "",
        },
    )
    (project / "workers.sh").write_text(lines)

    def nodes() -> set[str]:
        files = plain.glob(".autotune/trials/*/*/steps.*")
        lines = (json.loads(line) for path in files for line in path.read_text().splitlines() if line.endswith("}"))
        return {one["rank"]["node"] for one in lines if one.get("k") == "rank"}

    with running_cluster(2) as cluster:
        output = f"--output={project}/worker.log"
        job = cluster.run("sbatch", "--parsable", output, str(project / "workers.sh")).strip()
        log = project / "worker.log"
        until(lambda: list(plain.glob("studies/*.journal")) and trials(autotune, project), log.read_text)
        assert nodes() == {"node1", "node2"}
        cluster.run("scancel", "--batch", "--signal=TERM", job)
        until(lambda: not cluster.run("squeue", "-h", "-j", job), cluster.logs)
        until(lambda: not workers_of(project))


def test_the_job_for_kubernetes_has_a_pod_a_node_and_its_address_from_a_secret() -> None:
    """By its shape: nothing here runs a cluster."""
    job: dict[str, Any] = yaml.safe_load(snippet("yaml", "kind: Job"))
    spec = job["spec"]
    template = spec["template"]
    pod = template["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] > 1
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 30)
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == template["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["command"] == [*WORKER.split(), "--seed", "$(JOB_COMPLETION_INDEX)"]
    (variable,) = container["env"]
    assert variable == {
        "name": "AUTOTUNE_STORAGE",
        "valueFrom": {"secretKeyRef": {"name": "autotune-storage", "key": "url"}},
    }
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.services
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_for_each_gpu_of_a_machine_makes_one_study(project: Path, autotune: Autotune) -> None:
    """Each with its own GPU, cores and state folder, by the loop of the docs; SIGTERM to the loop ends them."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    code = snippet(
        "sh",
        "taskset",
        **{
            "0 1 2 3": f"{first} {second}",
            "$((8 * gpu))-$((8 * gpu + 7))": "$gpu",
            "file:/home/me/storage-address": 'journal:"$PWD"/studies',
            "autotune worker": f"{BIN}/autotune worker",
        },
    )
    with subprocess.Popen(["sh", "-c", code], cwd=project, start_new_session=True) as loop:
        try:
            until(lambda: len(list(project.glob(".autotune/gpu*/trials/*/*"))) > 1)
            folders = {path.parts[-4] for path in project.glob(".autotune/gpu*/trials/*/*")}
            until(lambda: len({path.parts[-4] for path in project.glob(".autotune/gpu*/trials/*/*")}) == 2, folders)
            assert len({frozenset(one.cpu_affinity() or ()) for one in workers_of(project)}) == 2
            until(lambda: trials(autotune, project))
        finally:
            loop.send_signal(signal.SIGTERM)
        until(lambda: not workers_of(project))


def test_init_counts_the_ranks_that_report(project: Path, autotune: Autotune) -> None:
    """Before the first trial the user sees whether the instrumentation reaches each of them."""
    (project / "ranks.yaml").write_text("batch_size: 4\n")
    (project / "train.py").write_text(
        "import runpy, sys\n"
        "open(sys.argv[1]).read()\n"
        "sys.argv[1:] = ['2']\n"
        f"runpy.run_path({os.fspath(RANKED)!r}, run_name='__main__')\n"
    )
    done = autotune("init", "--config", "ranks.yaml", "--yes", "--", sys.executable, "train.py", "ranks.yaml")
    assert re.search(r"\d steps of 2 ranks on 1 node seen", done.stderr), done.stderr
