"""Array jobs of Slurm: what their script says, and what becomes of it on a real cluster of two nodes."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.commands.worker_submission import submit_workers
from autotune.errors import CommandError, ConfigError
from tests.daemon.submission.conftest import STAND_IN, Request
from tests.slurm import Cluster, running_cluster
from tests.until import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a cluster of two nodes."""
    with running_cluster(2) as one:
        yield one


def submit(request_of: Request, *words: str, **changes: object) -> None:
    """Submit stand-ins for workers."""
    assert submit_workers(request_of("slurm", *words, **changes), SystemClock(), program=STAND_IN) == 0


def read(folder: Path) -> str:
    """Return what the tasks have printed so far."""
    return "".join(path.read_text() for path in sorted(folder.glob(".autotune/workers/*/*.log")))


def script_of(request_of: Request, capsys: pytest.CaptureFixture[str], *words: str, **changes: object) -> str:
    """Return the script that would be submitted."""
    submit(request_of, *words, dry_run=True, **changes)
    return capsys.readouterr().out


def test_a_script_asks_for_whole_nodes_and_a_notice(request_of: Request, capsys: pytest.CaptureFixture[str]) -> None:
    """An array with one task a worker, whose shell is replaced by the worker; nothing is written for a dry run."""
    text = script_of(request_of, capsys, count=4, budget_s=5400.0, seed=7, storage="postgresql://me@db.lab/s")
    for line in ("--array=0-3", "--exclusive", "--nodes=1", "--mem=0", "--signal=B:TERM@30", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    last = text.rstrip().splitlines()[-1]
    assert last.startswith("exec ")
    assert "--storage postgresql://me@db.lab/s --budget 5400s" in last
    assert last.endswith('--seed "$((7 + SLURM_ARRAY_TASK_ID))"')
    assert not Path(".autotune").exists()


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("srun apptainer exec --nv xtts.sif {worker} --budget 1h", "--budget 1h"),
        ("export X=1", ""),
    ],
)
def test_a_script_of_ones_own_gets_the_command(
    request_of: Request, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, ends: str
) -> None:
    """In its place, or at the end; its header and its modules stay, and what is not in it comes by options."""
    (tmp_path / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH -A speech --gres=gpu:1\n#SBATCH -o x.log\nmodule load cuda\n{line}\n"
    )
    submit(request_of, dry_run=True, count=3, template=tmp_path / "job.sh", storage="postgresql://me@db.lab/s")
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert lines[:3] == ["#!/bin/bash", "#SBATCH -A speech --gres=gpu:1", "#SBATCH -o x.log"]
    assert lines[3].startswith("cd -- ")
    assert lines[4] == "module load cuda"
    command = " ".join(lines[5:])
    assert "worker --config" in command
    assert f'--seed "$((0 + SLURM_ARRAY_TASK_ID))"{ends and " " + ends}' in command
    assert ("srun apptainer exec --nv xtts.sif " in command) == bool(ends)
    assert "sbatch --parsable --array=0-2 --signal=B:TERM@30 " in told.err
    assert "--output" not in told.err


def test_a_script_is_a_shell_script_whatever_the_names(
    hostile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request_of: Request
) -> None:
    """Run by a shell as Slurm does it, it starts the worker in the right folder, with the words that were meant."""
    monkeypatch.chdir(hostile)
    name = "a $(touch pwned) `b` ;c.yaml"
    Path(name).write_text('batch_size: 4\nautotune: {command: "{python} train {config}"}\n')
    script = script_of(request_of, capsys, config=Path(name), storage="postgresql://db/s", state_dir=Path("/tmp/s t"))
    ran = subprocess.run(
        ["sh", "-c", script], cwd="/", env={**os.environ, "SLURM_ARRAY_TASK_ID": "2"}, capture_output=True, check=True
    )
    started = json.loads(ran.stdout)
    assert started["cwd"] == str(hostile)
    assert started["words"][:3] == ["worker", "--config", name]
    assert started["words"][-4:] == ["--state-dir", "/tmp/s t", "--seed", "2"]
    assert [path.name for path in hostile.iterdir()] == [name]


def test_no_password_comes_into_a_script(
    request_of: Request, capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed, or in the environment, it is refused; of a file the name alone is written."""
    url = "postgresql://me:hidden@db.lab/s"
    with pytest.raises(ConfigError, match="holds a password"):
        submit(request_of, storage=url, dry_run=True)
    monkeypatch.setenv("AUTOTUNE_STORAGE", url)
    with pytest.raises(ConfigError, match="holds an address with a password"):
        submit(request_of, dry_run=True)
    (project / "address").write_text(url)
    (project / "address").chmod(0o600)
    text = script_of(request_of, capsys, storage="file:address")
    assert "hidden" not in text
    assert "--storage 'file:" in text


def test_without_slurm_the_remedy_is_said(request_of: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left that looks submitted."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError, match="no sbatch") as error:
        submit(request_of)
    assert "--submit ssh" in str(error.value)
    assert not list(Path().glob(".autotune/workers"))


@pytest.mark.core
@pytest.mark.services
def test_each_task_works_on_a_node_of_its_own(
    request_of: Request,
    project: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Four tasks on two nodes, each with its seed; their output is in the folder that is said."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH --exclusive --nodes=1\numask 077\nsrun {worker}\n")
    submit(request_of, "--wait", count=4, template=Path("job.sh"))
    said = capsys.readouterr().out
    assert re.findall(r"Job (\d+) has ended with exit status 0\.", said), (cluster.logs(), read(project))
    started = [json.loads(line) for line in read(project).splitlines() if line.startswith("{")]
    assert sorted(one["task"] for one in started) == ["0", "1", "2", "3"]
    assert all(one["words"][-2:] == ["--seed", one["task"]] for one in started)
    assert {one["cwd"] for one in started} == {str(project)}


@pytest.mark.services
def test_a_signal_reaches_the_worker(
    request_of: Request,
    project: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One task is cancelled, as preemption and time limits do it; the other one goes on."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    config = project / "my config.yaml"
    config.write_text(f"waits: true\n{config.read_text()}")
    submit(request_of, "--time=5", count=2)
    job = re.findall(r"Submitted job (\d+)", capsys.readouterr().out)[0]
    why = lambda: (cluster.states(job), read(project), cluster.logs())  # noqa: E731
    until(lambda: read(project).count('"pid"') == 2, why)
    cluster.run("scancel", "--batch", "--signal=TERM", f"{job}_1")
    until(lambda: read(project).count("gives its trial back") == 1, why)
    assert cluster.states(job)["0"] == "RUNNING"
    cluster.run("scancel", job)
    until(lambda: not cluster.run("squeue", "-h", "-j", job), why)
