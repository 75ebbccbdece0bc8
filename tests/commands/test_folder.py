"""The trainer's command runs in the folder where ``autotune init`` was run, from wherever autotune is called."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from autotune.search.problem import open_problem
from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, Done

_CONFIG = "batch_size: 4\nnum_workers: 1\nout_dir: out\n"
_SECTION = """\
autotune:
  knobs: {num_workers: [1, 2]}
  trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""
_COMMAND = '  command: "python train.py {config}"\n'
_FROM_CONFIGS = "  folder: ..\n"


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``python`` the interpreter of the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def at(folder: Path) -> CommandLine:
    """Return the command line in a folder."""
    return CommandLine(folder, lambda config: Training(step_s=0.01 / (config["num_workers"] or 1)))


def _project(folder: Path) -> Path:
    """Make a git project with a trainer, and a config in a folder of its own."""
    for name in (".git", "configs", ".autotune"):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / "train.py").touch()
    (folder / "configs" / "c.yaml").write_text(_CONFIG + _SECTION + _FROM_CONFIGS + _COMMAND)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Project whose section records its folder."""
    return _project(tmp_path / "my project")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another project, with a trainer of the same name, which must not run."""
    folder = tmp_path / "other"
    (folder / ".git").mkdir(parents=True)
    (folder / "train.py").touch()
    return folder


def _run(folder: Path, config: Path | str, *typed: str) -> Done:
    """Ask for what real training would be, from a folder."""
    return at(folder)("run", "--config", str(config), "--dry-run", *typed)


def _trained(folder: Path, config: Path | str, *typed: str) -> tuple[Path, Path]:
    """Return the folder that training from a folder would run in, and the config that it would be given."""
    done = _run(folder, config, *typed).well()
    words = shlex.split(done.stdout)
    trains_in = Path(words[1]) if words[0] == "cd" else folder
    return trains_in, trains_in / words[-1]


def test_init_records_where_it_was_run(project: Path, other: Path) -> None:
    """One line, relative to the file that holds the section; from anywhere the same trainer is trained with."""
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG)
    autotune, command = at(project), ("--", "python", "train.py", "configs/c.yaml")
    autotune("init", "--config", "configs/c.yaml", "--yes", *command).well()
    assert "\n  folder: '..'  # " in config.read_text()
    assert autotune("revert", "--config", "configs/c.yaml").returncode == 0
    autotune("init", "--config", "configs/c.yaml", "--yes", "--separate", "--no-preflight", *command).well()
    assert "\n  folder: '..'  # " in (project / "configs" / "c.autotune.yaml").read_text()
    for folder in (project, project / "configs", other, Path("/")):
        assert _trained(folder, config) == (project, config)


def test_a_search_from_elsewhere_measures_the_projects_trainer(
    project: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs where its data are, also for the daemon; the study is the one of the project."""
    config, autotune = project / "configs" / "c.yaml", at(other)
    done = autotune("search", "--config", str(config), "--budget", "5m", "--json")
    assert done.document["verdict"] == "better", done.stderr
    assert "does not name" not in done.stderr
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(tmp_path / "daemon"))
    autotune("queue", "add", "--config", str(config)).well()
    assert {plan.cwd for plan in autotune.simulator.plans} == {project}
    assert "preflight" in autotune.simulator.plans[-1].trial_id
    assert sorted(os.listdir(project)) == [".autotune", ".git", "configs", "train.py"]
    assert sorted(os.listdir(other)) == [".git", "train.py"]
    for folder, name in ((project, "configs/c.yaml"), (project / "configs", "c.yaml"), (Path("/"), str(config))):
        assert at(folder)("status", "--config", name, "--json").document["trials"] == done.document["trials"]


def test_a_project_may_be_moved_and_linked(project: Path, other: Path, tmp_path: Path) -> None:
    """The folder is relative to the file itself, by whatever name it is reached."""
    (tmp_path / "link").symlink_to(project)
    (project / "c.yaml").symlink_to("configs/c.yaml")
    for name in ("link/configs/c.yaml", "link/c.yaml"):
        assert _trained(other, tmp_path / name) == (project, tmp_path / name)
    moved = tmp_path / "moved"
    project.rename(moved)
    _project(project)  # what is at the old place now is another project
    assert _trained(other, "../moved/configs/c.yaml")[0] == moved


@pytest.mark.parametrize(
    "command",
    [
        ("search", "--budget", "10s"),
        ("search", "--dry-run"),
        ("run",),
        ("diagnose",),
        ("diagnose", "--static"),
        ("profile", "step"),
        ("queue", "add"),
    ],
    ids=" ".join,
)
def test_a_folder_that_is_not_there_is_an_error(
    project: Path, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the folder, the line of the section, and what to do."""
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(tmp_path / "daemon"))
    config = project / "configs" / "c.yaml"
    config.write_text(config.read_text().replace("folder: ..", "folder: ../gone"))
    line = config.read_text().splitlines().index("  folder: ../gone") + 1
    said = at(project)(*command, "--config", "configs/c.yaml").refusal()
    assert f"configs/c.yaml:{line} (autotune.folder)" in said
    assert f"not a folder: {project}/gone" in said


def test_what_starts_nothing_works_without_the_folder(project: Path) -> None:
    """Also a command that is typed."""
    config = project / "configs" / "c.yaml"
    config.write_text(config.read_text().replace("folder: ..", "folder: ../gone"))
    assert "gone" not in at(project)("status", "--config", "configs/c.yaml").stderr
    assert _trained(project, "configs/c.yaml", "--", "python", "train.py", "configs/c.yaml")[0] == project


def test_a_section_without_the_folder_runs_in_its_project(project: Path, other: Path) -> None:
    """Which folder was taken is said, with the line that settles it; no script of another project runs."""
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG + _SECTION + _COMMAND)
    for folder in (project, other, Path("/")):
        assert _trained(folder, config)[0] == project
        said = _run(folder, config).stderr
        assert f"runs in {project}, which contains train.py" in said
        assert "folder: '..'" in said
    assert "folder: '..'" in at(other)("search", "--config", str(config), "--dry-run").stdout
    (project / "tools").mkdir()
    (project / "train.py").rename(project / "tools" / "train.py")  # it was always run from there
    assert _trained(project / "tools", config)[0] == project / "tools"
    assert "folder: ../tools" in _run(project / "tools", config).stderr
    lost = _run(other, config)
    assert f"runs in {project}, the project folder; train.py is not there" in lost.stderr
    assert "add this line for the current folder to the section:  folder: ../../other" in lost.stderr


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


def test_a_typed_command_runs_where_it_was_typed(project: Path, tmp_path: Path) -> None:
    """As ever: its script and its config are words of that shell."""
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    config = project / "configs" / "c.yaml"
    typed = ("--", "python", "train.py", os.path.relpath(config, copy))
    assert _trained(copy, config, *typed)[0] == copy
    at(copy)("search", "--config", str(config), "--dry-run", *typed).well()


def test_a_project_that_nothing_marks_is_where_it_was_run(project: Path, other: Path) -> None:
    """Without git, the folder that holds the config's is as good as ever; another one's script is still none."""
    (project / ".git").rmdir()
    config = project / "configs" / "c.yaml"
    config.write_text(_CONFIG + _SECTION + _COMMAND)
    assert _trained(project, "configs/c.yaml")[0] == project
    assert "folder: '..'" in _run(project, "configs/c.yaml").stderr
    assert _trained(other, config)[0] != other
