"""Commands that only look, in a project where everything that a tool may start is planted: nothing of it is started."""

import json
import os
import pickle
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.search import problem
from autotune.study.identity import framework_versions
from autotune.study.storage.lock import sole_search
from tests.command_line import CONFIG, CommandLine
from tests.daemon.web.client import Client
from tests.recorded.recording import recorded_machine, recorded_project
from tests.until import until

_GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(_GIT is None, reason="git is not installed")

AUTOTUNE = Path(sys.executable).with_name("autotune")
STARTED = {sys.executable, "fc-list", "uname"}
"""Our own interpreter, which imports nothing of the project, and what matplotlib and TensorFlow ask."""


def _words(text: str) -> list[str]:
    return text.split()


PROGRAMS = _words("""
    git python python3 sh bash env uname nvidia-smi ssh scp squeue sbatch srun sinfo scontrol docker kubectl systemctl
    loginctl ldconfig gcc cc ld objdump lscpu lspci hostname id ps less more vi nano xdg-open conda uv pip nvcc ptxas
    latex
""")
MODULES = _words("""
    yaml click optuna rich numpy psutil sqlalchemy msgspec json dataclasses pynvml torch tensorflow starlette uvicorn
    sitecustomize usercustomize autotune/__init__ _autotune_trainee conftest setup noxfile planted_backend model
    hydra_plugins/planted config
""")
TEMPLATES = """
template: "{{ ''.__class__ }}"
shell: "$(%(planted)s/substitution) `%(planted)s/substitution`"
optimizer: {_target_: os.system, command: %(planted)s/target}
"""
TAGGED = """
system: !!python/object/apply:os.system ["%(planted)s/yaml-apply"]
popen: !!python/object/new:subprocess.Popen [["%(planted)s/yaml-new"]]
module: !!python/module:model
name: !!python/name:model.anything
autotune: {command: !!python/object/apply:os.system ["%(planted)s/yaml-apply"]}
"""
COMMANDS: dict[str, Sequence[str]] = {
    "--version": ("--version",),
    "status": ("status", "--config", "config.yaml"),
    "status, tags of YAML": ("status", "--config", "tagged.yaml"),
    "status, tags beside": ("status", "--config", "separate.yaml"),
    "status, project's python": ("status", "--config", "local.yaml"),
    "report": ("report", "--config", "config.yaml", "--out", "../report.html"),
    "init, nobody to ask": ("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}"),
    "init --from-flags": ("init", "--config", "n.yaml", "--from-flags", "--", ".venv/bin/python", "train.py", "--lr=3"),
    "queue add": ("queue", "add", "--config", "path.yaml", "--no-check"),
    "queue list": ("queue", "list"),
    "queue log": ("queue", "log", "1"),
    "diagnose --static, .venv": ("diagnose", "--config", "local.yaml", "--static"),
    "diagnose --static, PATH": ("diagnose", "--config", "path.yaml", "--static"),
    "study list": ("study", "list", "--config", "config.yaml"),
    "study show": ("study", "show", "--config", "config.yaml"),
    "study show, planted": ("study", "show", "--config", "config.yaml", "--study", "planted"),
    "study export": ("study", "export", "--config", "config.yaml", "../exported.json"),
    "search --dry-run": ("search", "--config", "config.yaml", "--dry-run"),
    "search --dry-run, PATH": ("search", "--config", "path.yaml", "--dry-run"),
    "apply --dry-run": ("apply", "--config", "config.yaml", "--dry-run"),
    "run --dry-run": ("run", "--config", "path.yaml", "--dry-run"),
    "monitor": ("monitor", "--for", "0.1s"),
    "daemon status": ("daemon", "status"),
}


class Project(CommandLine):
    """Project with planted things, each of which writes its name into the witness when it runs."""

    def __init__(self, place: Path) -> None:
        self.__dict__.update(recorded_project(place / "project").__dict__)
        self.witness = place / "witness"
        self.environ = {
            "HOME": str(place / "home"),
            "AUTOTUNE_DAEMON_DIR": str(place / "daemon"),
            "XDG_CONFIG_HOME": str(place / "settings"),
            "VIRTUAL_ENV": str(self.folder / ".venv"),
            "PATH": f":.:bin:{self.folder}/bin:{self.folder}/.venv/bin:{os.environ['PATH']}",
        }

    def script(self, name: str) -> Path:
        """Plant a program; return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {shlex.quote(name)} >> {shlex.quote(str(self.witness))}\n")
        path.chmod(0o755)
        return path

    def module(self, name: str) -> None:
        """Plant Python code."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os; open({str(self.witness)!r}, 'a').write({name + chr(10)!r})\n")

    def fired(self) -> set[str]:
        """Return the names of what has run, and forget them."""
        names = self.witness.read_text().splitlines() if self.witness.exists() else []
        self.witness.unlink(missing_ok=True)
        return set(names)


class _Pickled:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (str(self.path),)


def plant(project: Project) -> None:
    """Plant configs, programs, modules, an environment, a repository, and damage among the records."""
    folder = project.folder
    env = "    env: {PYTHONPATH: planted/path, BASH_ENV: planted/env, PAGER: planted/env}\n"
    for name in ("yaml-apply", "yaml-new", "substitution", "target", "env", "pickle"):
        project.script(f"planted/{name}")
    project.module("planted/path/sitecustomize.py")
    texts = {
        "local.yaml": CONFIG.replace("{python}", ".venv/bin/python") + env + TEMPLATES,
        "path.yaml": CONFIG.replace("{python}", "python") + env + TEMPLATES,
        "tagged.yaml": TAGGED,
        "plain.yaml": f"batch_size: 4\n{TEMPLATES}",
        "separate.yaml": "data: {batch_size: 4, num_workers: 1}\n",
        "separate.autotune.yaml": TAGGED,
        "matplotlibrc": "text.usetex: True\nbackend: module://planted_backend\nfigure.hooks: model:main\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text % {"planted": folder / "planted"} if "%(" in text else text)
    for name in PROGRAMS:
        project.script(name)
        project.script(f"bin/{name}")
    for name in MODULES:
        project.module(f"{name}.py")
    packages = f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for name in ("sitecustomize", "usercustomize", "torch/__init__", "tensorflow/__init__"):
        project.module(f"{packages}/{name}.py")
    (folder / ".venv" / "bin").mkdir()
    (folder / ".venv" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    project.module(f"{packages}/planted.pth")
    _git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("*.yaml filter=planted diff=planted\n")
    _git(folder, "add", ".gitattributes", "train.py", "config.yaml")
    _git(folder, "commit", "-qm", "first")
    for key in ("core.fsmonitor", "filter.planted.clean", "diff.planted.textconv", "core.pager"):
        _git(folder, "config", key, f"'{project.script(f'planted/{key}')}'")
    os.utime(folder / "config.yaml", (1e9, 1e9))  # git looks at what is inside again
    _plant_records(project)


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run([str(_GIT), *identity, *words], cwd=folder, check=True, capture_output=True)


def _plant_records(project: Project) -> None:
    """Plant among what autotune keeps: pickles, records with tags of YAML, modules beside them."""
    state = project.folder / ".autotune"
    pickled = pickle.dumps(_Pickled(project.folder / "planted" / "pickle"))
    (journal,) = (state / "studies").glob("*.journal")
    apply = f"!!python/object/apply:os.system [{project.folder}/planted/yaml-apply]"
    text = journal.read_text().replace(journal.stem, "planted").replace('"cpu_model": "', f'"cpu_model": "{apply}')
    (state / "studies" / "planted.journal").write_text(text)
    for name in ("studies/pickled.journal", "cache/planted.pkl", "searches/planted.pkl", "kept/planted.pkl"):
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_bytes(pickled)
    with next((state / "searches").glob("*.events.jsonl")).open("a") as file:
        file.write(json.dumps({"event": apply, "text": "`planted/substitution`"}) + "\n")
    project.module(".autotune/sitecustomize.py")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project, on the machine of the record."""
    with recorded_machine(), pytest.MonkeyPatch.context() as patch:
        looks = framework_versions  # into the environment of the project; the recorded machine has none
        patch.setattr(problem, "framework_versions", lambda *of: looks(*of) and {})
        made = Project(tmp_path_factory.mktemp("looking"))
        plant(made)
        made.fired()
        yield made


_programs: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        _programs.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)


def test_what_is_planted_runs_when_it_is_asked_for(project: Project) -> None:
    """Else the other tests would hold of what cannot run."""
    own = (".venv/bin/python", "-c", "import torch")
    for words in ((str(_GIT), "diff", "HEAD"), own, (sys.executable, "-c", "import yaml")):
        subprocess.run(
            words, cwd=project.folder, env={**os.environ, **project.environ}, capture_output=True, check=False
        )
    fired = " ".join(project.fired())
    expected = ("filter.planted.clean", "core.fsmonitor", "planted.pth", "packages/sitecustomize", "yaml.py")
    assert [name for name in expected if name not in fired] == []


@pytest.mark.parametrize(
    "name",
    [*COMMANDS, pytest.param("diagnose --static", marks=pytest.mark.services)],  # imports TensorFlow
)
def test_looking_starts_nothing_of_the_project(project: Project, name: str) -> None:
    """Nothing that is planted has run, and no program was started but those of the short list."""
    _programs.clear()
    done = project(*COMMANDS.get(name, name.split()), env=project.environ)
    assert done.returncode in (0, 1), done.stderr
    assert "this is a bug" not in done.stderr
    assert project.fired() == set()
    assert {program if program in STARTED else Path(program).name for program in _programs} <= STARTED


def test_init_starts_nothing_before_yes_and_diagnose_nothing_before_it_measures(project: Project) -> None:
    """`init` is answered with no, and `diagnose` is refused, since a search is at work."""
    done = project("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}", answers="n\n")
    assert "Nothing was written." in done.stdout + done.stderr
    opened = problem.open_problem(project.folder / "local.yaml", command=None, state_dir=None, storage=None)
    with sole_search(opened.state.search_lock(opened.study, opened.machine.name), opened.study):
        refused = project.forked("diagnose", "--config", "local.yaml", "--budget", "20s")
    assert "another search or worker on this machine" in refused.stderr
    assert project.fired() == set()


@pytest.mark.services
@pytest.mark.timeout(900)
def test_processes_that_look_import_nothing_of_the_project(project: Project) -> None:
    """Each command as its user starts it, and a daemon that serves its page."""
    env = {**os.environ, **project.environ}
    for words in COMMANDS.values():
        done = subprocess.run(
            [AUTOTUNE, *words], cwd=project.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [AUTOTUNE, "daemon", "run", "--web", "--web-port", str(port)], cwd=project.folder, env=env
    ) as daemon:
        ask = [AUTOTUNE, "daemon", "url"]
        try:
            url = until(
                lambda: subprocess.run(ask, env=env, capture_output=True, text=True, check=False).stdout.strip()
            )
            client = Client(port).sign_in(url)
            until(lambda: "path.yaml" in client.ask("/api/state").body.decode(), "the queue is not shown")
            assert [client.ask(path).status for path in ("/", "/metrics", "/health")] == [200, 200, 200]
        finally:
            daemon.send_signal(signal.SIGTERM)
    assert project.fired() == set()
