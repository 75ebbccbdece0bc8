"""The trainer's command runs in the folder where ``autotune init`` was run, from wherever autotune is called."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.search.problem import open_problem
from tests.commands.test_queue import Daemon, until
from tests.warm import typed

_TRAINER = """\
import os, sys, time
sys.path.append({checkout!r})
import yaml
from autotune.trainee import step

with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)
assert os.path.isfile("data/here"), os.getcwd()
os.makedirs(config["out_dir"], exist_ok=True)
open(os.path.join(config["out_dir"], "log"), "w").close()
if os.environ.get("ONLY_SAYS"):
    print(os.getcwd(), sys.argv[1], sep="|")
    sys.exit(0)
while True:
    time.sleep(0.004 * (2 if config["num_workers"] == 1 else 1))
    step(samples=config["batch_size"], wait_s=0.0)
"""
_CONFIG = "batch_size: 4\nnum_workers: 1\nout_dir: out\n"
_SECTION = """\
autotune:
  knobs: {num_workers: [1, 2]}
  trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""
_COMMAND = '  command: "python train.py {config}"\n'
_FROM_CONFIGS = "  folder: ..\n"

At = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Runs one command in a folder; ``python`` is the interpreter of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def run(folder: Path, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return typed(*map(str, arguments), cwd=folder, env={**os.environ, **env})

    return run


def _project(folder: Path) -> Path:
    """Make a git project with a trainer that needs its data beside it, and a config in a folder of its own."""
    for name in (".git", "configs", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "data" / "here").touch()
    (folder / "train.py").write_text(_TRAINER.format(checkout=str(Path(__file__).parents[2])))
    (folder / "configs" / "c.yaml").write_text(_CONFIG + _SECTION + _FROM_CONFIGS + _COMMAND)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Project whose section records its folder."""
    return _project(tmp_path / "my project")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """Another project, with a trainer of the same name, which must not run."""
    folder = tmp_path / "other"
    (folder / ".git").mkdir(parents=True)
    (folder / "train.py").write_text("open('ran', 'w').close()\nraise SystemExit('the wrong trainer')\n")
    yield folder
    assert not (folder / "ran").exists()


def _trained(done: subprocess.CompletedProcess[str]) -> tuple[Path, Path]:
    """Return the folder that a training ran in, and the config that it was given."""
    assert done.returncode == 0, done.stderr
    folder, config = done.stdout.strip().split("|")
    return Path(folder), Path(folder, config)


def test_init_records_where_it_was_run(at: At, project: Path, other: Path) -> None:
    """One line, relative to the file that holds the section; from anywhere the same trainer is trained with."""
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG)
    command = ("--", "python", "train.py", "configs/c.yaml")
    done = at(project, "init", "--config", "configs/c.yaml", "--yes", *command)
    assert done.returncode == 0, done.stderr
    assert "\n  folder: '..'  # " in config.read_text()
    assert at(project, "revert", "--config", "configs/c.yaml").returncode == 0
    done = at(project, "init", "--config", "configs/c.yaml", "--yes", "--separate", "--no-preflight", *command)
    assert done.returncode == 0, done.stderr
    assert "\n  folder: '..'  # " in (project / "configs" / "c.autotune.yaml").read_text()
    for folder in (project, project / "configs", other, Path("/")):
        assert _trained(at(folder, "run", "--config", config, ONLY_SAYS="1")) == (project, config)


def test_a_search_from_elsewhere_measures_the_projects_trainer(at: At, project: Path, other: Path) -> None:
    """It runs where its data are; what it writes is pointed into trials; the study is the one of the project."""
    config = project / "configs" / "c.yaml"
    done = at(other, "search", "--config", config, "--budget", "6s", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] in ("better", "no_change")
    assert "does not say" not in done.stderr
    assert sorted(os.listdir(project)) == [".autotune", ".git", "configs", "data", "train.py"]
    assert sorted(os.listdir(other)) == [".git", "train.py"]
    for folder, name in ((project, "configs/c.yaml"), (project / "configs", "c.yaml"), (Path("/"), config)):
        found = at(folder, "status", "--config", name, "--json")
        assert found.returncode == 0, found.stderr


def test_the_daemon_trains_in_the_projects_folder(
    at: At, project: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that was queued from another project's folder is tried and searched with its own trainer."""
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(tmp_path / "daemon"))
    added = at(other, "queue", "add", "--config", project / "configs" / "c.yaml", "--when", "now", "--budget", "8s")
    assert added.returncode == 0, added.stderr
    daemon = Daemon(dict(os.environ), tmp_path)
    try:
        until(lambda: at(tmp_path, "daemon", "status").returncode == 0, daemon.said())
        assert at(tmp_path, "queue", "wait", "--for", "100s").returncode == 0, daemon.said()
        (entry,) = json.loads(at(tmp_path, "queue", "list", "--json").stdout)["entries"]
        assert (entry["state"], entry["answer"]["verdict"] in ("better", "no_change")) == ("done", True), daemon.said()
    finally:
        daemon.end()


def test_a_project_may_be_moved_and_linked(at: At, project: Path, other: Path, tmp_path: Path) -> None:
    """The folder is relative to the file itself, by whatever name it is reached."""
    (tmp_path / "link").symlink_to(project)
    (project / "c.yaml").symlink_to("configs/c.yaml")
    for name in ("link/configs/c.yaml", "link/c.yaml"):
        folder, config = _trained(at(other, "run", "--config", tmp_path / name, ONLY_SAYS="1"))
        assert (folder, config) == (project, tmp_path / name)
    moved = tmp_path / "moved"
    project.rename(moved)
    _project(project)  # what is at the old place now is another project
    folder, _ = _trained(at(other, "run", "--config", "../moved/configs/c.yaml", ONLY_SAYS="1"))
    assert folder == moved


def test_a_folder_that_is_not_there_is_an_error(at: At, project: Path) -> None:
    """It names the folder, the line of the section, and what to do; what starts nothing works."""
    config = project / "configs" / "c.yaml"
    config.write_text(config.read_text().replace("folder: ..", "folder: ../gone"))
    line = config.read_text().splitlines().index("  folder: ../gone") + 1
    for command in (
        ("search", "--budget", "10s"),
        ("search", "--dry-run"),
        ("run",),
        ("diagnose",),
        ("diagnose", "--static"),
        ("profile", "step"),
        ("queue", "add"),
        ("worker", "--submit", "slurm", "--dry-run", "--reachable"),
    ):
        done = at(project, *command, "--config", "configs/c.yaml")
        assert done.returncode == 1, (command, done.stdout)
        assert f"configs/c.yaml:{line} (autotune.folder)" in done.stderr, (command, done.stderr)
        assert f"{project}/gone is no folder" in done.stderr
        assert "Traceback" not in done.stderr
    kept = at(project, "status", "--config", "configs/c.yaml")
    assert "gone" not in kept.stderr
    typed = ("--", "python", "train.py", "configs/c.yaml")
    assert at(project, "run", "--config", "configs/c.yaml", *typed, ONLY_SAYS="1").returncode == 0


def test_a_section_without_the_folder_runs_in_its_project(at: At, project: Path, other: Path, tmp_path: Path) -> None:
    """Which folder was taken is said, with the line that settles it; no script of another project runs."""
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG + _SECTION + _COMMAND)
    for folder in (project, other, Path("/")):
        done = at(folder, "run", "--config", config, ONLY_SAYS="1")
        assert _trained(done)[0] == project
        assert f"runs in {project}, where train.py is" in done.stderr
        assert "folder: '..'" in done.stderr
    shown = at(other, "search", "--config", config, "--dry-run")
    assert "folder: '..'" in shown.stdout
    (project / "tools").mkdir()
    for name in ("train.py", "data"):  # it was always run from there
        (project / name).rename(project / "tools" / name)
    done = at(project / "tools", "run", "--config", config, ONLY_SAYS="1")
    assert _trained(done)[0] == project / "tools"
    assert "folder: ../tools" in done.stderr
    lost = at(other, "run", "--config", config)
    assert lost.returncode != 0
    assert f"runs in {project}, the folder of the config's project; train.py is not there" in lost.stderr
    assert "for the folder that you are in, this line to the section:  folder: ../../other" in lost.stderr


def test_the_folder_is_no_part_of_the_study(project: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study goes on when its section gets the key, is called from elsewhere, or its project moves."""
    packages = project / "venv" / "lib" / "python3.11" / "site-packages" / "torch-2.0.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n")
    (project / "venv" / "bin").mkdir()
    (project / "venv" / "bin" / "python").symlink_to(sys.executable)
    config, command = project / "configs" / "c.yaml", '  command: "venv/bin/python train.py {config}"\n'
    config.write_text(_CONFIG + _SECTION + command)
    monkeypatch.chdir(project)
    before = open_problem(Path("configs/c.yaml"), command=None, state_dir=None)
    config.write_text(_CONFIG + _SECTION + _FROM_CONFIGS + command)
    monkeypatch.chdir(other)
    assert open_problem(config, command=None, state_dir=None).study == before.study
    assert before.frameworks == {"torch": "2.0"}
    moved = project.rename(other.parent / "moved")
    assert open_problem(moved / "configs" / "c.yaml", command=None, state_dir=None).study == before.study


def test_a_typed_command_runs_where_it_was_typed(at: At, project: Path, tmp_path: Path) -> None:
    """As ever: its script and its config are words of that shell."""
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    config = project / "configs" / "c.yaml"
    typed = ("--", "python", "train.py", os.path.relpath(config, copy))
    assert _trained(at(copy, "run", "--config", config, *typed, ONLY_SAYS="1"))[0] == copy
    done = at(copy, "search", "--config", config, "--dry-run", *typed)
    assert done.returncode == 0, done.stderr


def test_a_project_that_nothing_marks_is_where_it_was_run(at: At, project: Path, other: Path) -> None:
    """Without git, the folder that holds the config's is as good as ever; another one's script is still none."""
    (project / ".git").rmdir()
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG + _SECTION + _COMMAND)
    done = at(project, "run", "--config", "configs/c.yaml", ONLY_SAYS="1")
    assert _trained(done)[0] == project
    assert "folder: '..'" in done.stderr
    assert at(other, "run", "--config", config).returncode != 0
