"""Commands that only look, in a project where everything that a tool may start is planted: nothing of it is started.

``python -m tests.soak looking`` prints which programs each command started, and what was planted.
"""

import json
import os
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.search.problem import open_problem
from autotune.study.storage.lock import sole_search
from tests.commands.conftest import TRAINER, answered
from tests.commands.test_queue import until
from tests.daemon.web.client import Client

_STRACE, _GIT = shutil.which("strace"), shutil.which("git")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(_STRACE is None, reason="strace is not installed"),
    pytest.mark.skipif(_GIT is None, reason="git is not installed"),
]

AUTOTUNE = Path(sys.executable).with_name("autotune")
STARTED = {
    "autotune",
    "python",
    *(f"{place}/{name}" for place in ("/bin", "/usr/bin") for name in ("fc-list", "uname")),
}
"""The short list: the command itself, and its own interpreter again, which imports nothing of the project; what
matplotlib and TensorFlow ask, from the system's own folders."""


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
SECTION = """
data:
    batch_size: 4
    num_workers: 1
out: {log_dir: logs}
template: "{{ ''.__class__ }}"
shell: "$(%(folder)s/planted/substitution) `%(folder)s/planted/substitution`"
optimizer: {_target_: os.system, command: %(folder)s/planted/target}

autotune:
    command: "%(python)s train.py {config}"
    folder: .
    %(env)s
    knobs:
        data.batch_size: [4, 16, 64]
        data.num_workers: [1, 2]
    trial: {min_s: 0.3, min_steps: 10, max_s: 0.5}
"""
TAGGED = """
system: !!python/object/apply:os.system ["%(folder)s/planted/yaml-apply"]
popen: !!python/object/new:subprocess.Popen [["%(folder)s/planted/yaml-new"]]
module: !!python/module:model
name: !!python/name:model.anything
autotune: {command: !!python/object/apply:os.system ["%(folder)s/planted/yaml-apply"]}
"""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Project with planted things, each of which writes its name into the witness when it runs.

    Attributes:
        folder: Its folder.
        witness: The witness.
        names: Names of what is planted.
        environ: Environment of the commands.
    """

    folder: Path
    witness: Path
    names: list[str]
    environ: dict[str, str]

    def script(self, name: str, path: Path | None = None) -> Path:
        """Plant a program; return its path."""
        path = path or self.folder / "planted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {shlex.quote(name)} >> {shlex.quote(str(self.witness))}\n")
        path.chmod(0o755)
        self._name(name)
        return path

    def module(self, name: str, path: Path, *, rest: str = "") -> None:
        """Plant Python code."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self.line(name)}\n{rest}\n")
        self._name(name)

    def line(self, name: str) -> str:
        """Return a line of Python."""
        self._name(name)
        flags = "os.O_WRONLY | os.O_APPEND | os.O_CREAT"
        return f"import os; os.write(os.open({str(self.witness)!r}, {flags}), {(name + chr(10)).encode()!r})"

    def fired(self) -> list[str]:
        """Return the names of what has run, and forget them."""
        names = self.witness.read_text().splitlines() if self.witness.exists() else []
        self.witness.unlink(missing_ok=True)
        return sorted(set(names))

    def _name(self, name: str) -> None:
        if name not in self.names:
            self.names.append(name)


@contextmanager
def planted_project(place: Path) -> Iterator[Planted]:
    """Make the project: a search of it, as its user made one, and then all that is planted."""
    folder = place / "project"
    folder.mkdir()
    environ = {
        **os.environ,
        "HOME": str(place / "home"),
        "AUTOTUNE_DAEMON_DIR": str(place / "daemon"),
        "XDG_CONFIG_HOME": str(place / "settings"),
        "VIRTUAL_ENV": str(folder / ".venv"),
        "PATH": f":.:bin:{folder}/bin:{folder}/.venv/bin:{os.environ['PATH']}",
    }
    planted = Planted(folder=folder, witness=place / "witness", names=[], environ=environ)
    planted.module("trainer that is imported", folder / "train.py", rest=TRAINER.read_text())
    _plant_configs(planted)
    search = [AUTOTUNE, "search", "--config", "config.yaml", "--budget", "12s", "--no-apply"]
    done = subprocess.run(search, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    _plant_repository(planted)
    for name in PROGRAMS:
        planted.script(f"{name} on the PATH", folder / name)
        planted.script(f"{name} on the PATH", folder / "bin" / name)
    for name in MODULES:
        planted.module(f"{name}.py in the working directory", folder / f"{name}.py")
    _plant_environment(planted)
    _plant_records(planted)
    for name in (".envrc", "Makefile", ".bashrc"):
        planted.script(name, folder / name)
    settings = "text.usetex: True\nbackend: module://planted_backend\nfigure.hooks: model:main\n"
    (folder / "matplotlibrc").write_text(settings)
    planted.fired()
    yield planted


def _plant_configs(planted: Planted) -> None:
    """Write configs whose trainers are started by our interpreter, by one of the project, and by one on the PATH."""
    folder = planted.folder
    for name in ("yaml-apply", "yaml-new", "substitution", "target", "env BASH_ENV", "env PAGER"):
        planted.script(name)
    planted.module("env PYTHONPATH", folder / "planted/pythonpath/sitecustomize.py")
    own = {"PYTHONPATH": "pythonpath", "BASH_ENV": "env BASH_ENV", "PAGER": "env PAGER"}
    env = f"env: {json.dumps({name: f'{folder}/planted/{value}' for name, value in own.items()})}"
    texts = {
        "config.yaml": SECTION % {"folder": folder, "python": "{python}", "env": ""},
        "own.yaml": SECTION % {"folder": folder, "python": "{python}", "env": env},
        "local.yaml": SECTION % {"folder": folder, "python": ".venv/bin/python", "env": env},
        "path.yaml": SECTION % {"folder": folder, "python": "python", "env": env},
        "tagged.yaml": TAGGED % {"folder": folder},
        "plain.yaml": "batch_size: 4\nnum_workers: 1\n",
        "separate.yaml": "batch_size: 4\n",
        "separate.autotune.yaml": TAGGED % {"folder": folder},
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    allowed = ("-c", "protocol.file.allow=always", "-c", "safe.directory=*")
    subprocess.run([_GIT, *identity, *allowed, *words], cwd=folder, check=True, capture_output=True)  # type: ignore[list-item]


def _plant_repository(planted: Planted) -> None:
    """Make the project a repository in which a git that looks at it starts something."""
    folder = planted.folder
    _git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("*.yaml filter=planted diff=planted\n")
    _git(folder, "add", ".gitattributes", "train.py", "config.yaml")
    _git(folder, "commit", "-qm", "first")
    for key in ("core.fsmonitor", "filter.planted.clean", "diff.planted.textconv", "core.pager"):
        _git(folder, "config", key, f"'{planted.script(f'git {key}')}'")
    os.utime(folder / "config.yaml", (1e9, 1e9))  # git looks at what is inside again


def _plant_environment(planted: Planted) -> None:
    """Make a virtual environment in the project that runs code at each start of its interpreter."""
    place = planted.folder / ".venv"
    packages = place / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (place / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (place / "bin" / name).symlink_to(os.path.realpath(sys.executable))
    home = os.path.dirname(os.path.realpath(sys.executable))
    (place / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    for name in ("sitecustomize", "usercustomize", "torch/__init__", "tensorflow/__init__"):
        planted.module(f"{name}.py of the project's environment", packages / f"{name}.py")
    (packages / "planted.pth").write_text(planted.line("a .pth of the project's environment") + "\n")
    for name, version in (("torch", "2.1.0"), ("tensorflow", "2.9.0"), ("planted", "1.0")):
        about = packages / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        entry_points = "[console_scripts]\nautotune = model:main\n[optuna.storages]\nx = model\n"
        (about / "entry_points.txt").write_text(entry_points)


class _Pickled:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (str(self.path),)


def _plant_records(planted: Planted) -> None:
    """Plant among what autotune keeps: a pickle, records with tags of YAML, modules beside them."""
    state = planted.folder / ".autotune"
    pickled = pickle.dumps(_Pickled(planted.script("a pickle")))
    (journal,) = (state / "studies").glob("*.journal")
    text = journal.read_text()
    apply = f"!!python/object/apply:os.system [{planted.script('a tag in a record')}]"
    (state / "studies/planted.journal").write_text(
        text.replace(journal.stem, "planted").replace('"cpu_model": "', f'"cpu_model": "{apply}')
    )
    (state / "studies/pickled.journal").write_bytes(pickled)
    for trial in (state / "trials").glob("*/*"):
        planted.module("inject/ of a trial's folder", trial / "inject/sitecustomize.py")
        (trial / "planted.pkl").write_bytes(pickled)
        (trial / "config.yaml").write_text(TAGGED % {"folder": planted.folder})
    for name in ("cache/planted.pkl", "searches/planted.pkl", "kept/planted.pkl"):
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).write_bytes(pickled)
    events = next((state / "searches").glob("*.events.jsonl"))
    with events.open("a") as file:
        file.write(json.dumps({"event": apply, "text": "`planted/substitution`"}) + "\n")
    planted.module("sitecustomize.py in the state folder", state / "sitecustomize.py")


COMMANDS: Mapping[str, Sequence[str]] = {
    "--version": ("--version",),
    "status": ("status", "--config", "config.yaml"),
    "status --json": ("status", "--config", "config.yaml", "--json"),
    "status, tags of YAML": ("status", "--config", "tagged.yaml"),
    "status, tags beside": ("status", "--config", "separate.yaml"),
    "status, project's python": ("status", "--config", "local.yaml"),
    "report": ("report", "--config", "config.yaml", "--out", "../report.html"),
    "report --against": ("report", "--config", "config.yaml", "--against", "planted", "--out", "../against.html"),
    "init, nobody to ask": ("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}"),
    "init --from-flags": ("init", "--config", "n.yaml", "--from-flags", "--", ".venv/bin/python", "train.py", "--lr=3"),
    "queue add": ("queue", "add", "--config", "path.yaml", "--no-check"),
    "queue list": ("queue", "list"),
    "queue log": ("queue", "log", "1"),
    "diagnose --static": ("diagnose", "--static"),
    "diagnose --static, own": ("diagnose", "--config", "own.yaml", "--static"),
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
    "worker --dry-run": ("worker", "--config", "config.yaml", "--submit", "ssh", "--dry-run", "--", "somewhere"),
    "monitor": ("monitor", "--for", "1s"),
    "daemon status": ("daemon", "status"),
}


def traced(planted: Planted, trace: Path, *arguments: str) -> list[str]:
    """Return the command line that runs autotune in the project's environment, and writes down what it starts."""
    environ = [f"{name}={value}" for name, value in planted.environ.items()]
    watched = [str(_STRACE), "-f", "-qq", "-s", "4096", "-e", "trace=execve,execveat", "-o", str(trace)]
    return ["/usr/bin/env", "-i", *environ, *watched, str(AUTOTUNE), *arguments]


def started(trace: Path) -> list[str]:
    """Return the programs that a command tried to start, each once: by name those of the short list, else by path."""
    own = {str(AUTOTUNE): "autotune", sys.executable: "python"}
    paths = re.findall(r'execve(?:at)?\((?:AT_FDCWD, )?"((?:[^"\\]|\\.)*)"', trace.read_text())
    return sorted({own.get(path, path) for path in paths})


def looked(planted: Planted, name: str) -> list[str]:
    """Run one command of the table; return what it started."""
    trace = planted.folder.parent / "trace"
    done = subprocess.run(
        traced(planted, trace, *COMMANDS[name]),
        cwd=planted.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "No such option" not in done.stderr
    return started(trace)


def asked_before_yes(planted: Planted) -> list[str]:
    """Run `init` on a terminal up to its question, and say no."""
    trace = planted.folder.parent / "trace"
    words = ("init", "--config", "plain.yaml", "--", "python", "train.py", "{config}")
    code = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    program = ("-I", "-c", code, *traced(planted, trace, *words))
    _, screen = answered(planted.folder, {b"Start the trainer once": b"n\n", b"Write this to": b"n\n"}, program=program)
    assert "Nothing was written." in screen
    return started(trace)


def refused_diagnosis(planted: Planted) -> list[str]:
    """Run `diagnose` where a search is at work: it ends before it measures."""
    problem = open_problem(planted.folder / "local.yaml", command=None, state_dir=None, storage=None)
    lock = problem.state.search_lock(problem.study, problem.machine.name)
    trace = planted.folder.parent / "trace"
    with sole_search(lock, problem.study):
        words = traced(planted, trace, "diagnose", "--config", "local.yaml", "--budget", "20s")
        done = subprocess.run(words, cwd=planted.folder, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1
    assert "another search or worker of this machine" in done.stderr
    return started(trace)


def served_page(planted: Planted) -> list[str]:
    """Serve the page of a daemon with an entry in its queue, and ask for all that it shows."""
    looked(planted, "queue add")
    trace = planted.folder.parent / "trace"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = traced(planted, trace, "daemon", "run", "--web", "--web-port", str(port))
    with subprocess.Popen(words, cwd=planted.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        ask = [AUTOTUNE, "daemon", "url"]
        url = lambda: subprocess.run(ask, env=planted.environ, capture_output=True, text=True, check=False)  # noqa: E731
        try:
            until(lambda: url().returncode == 0, "the daemon does not serve")
            client = Client(port).sign_in(url().stdout.strip())
            until(lambda: client.ask("/api/state").status == 200, "there is no state")
            assert [client.ask(path).status for path in ("/", "/metrics", "/health")] == [200, 200, 200]
            until(lambda: "path.yaml" in client.ask("/api/state").body.decode(), "the queue is not shown")
        finally:
            for child in psutil.Process(daemon.pid).children():
                child.send_signal(signal.SIGTERM)
            daemon.wait(30)
    return started(trace)


OTHERS = {
    "init, answered with no": asked_before_yes,
    "diagnose, refused": refused_diagnosis,
    "the page": served_page,
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """The project."""
    with planted_project(tmp_path_factory.mktemp("looking")) as made:
        yield made


def test_what_is_planted_runs_when_it_is_asked_for(planted: Planted) -> None:
    """Else the other tests would hold of what cannot run."""
    folder = planted.folder
    own = (".venv/bin/python", "-c", "import torch")
    for words in ((_GIT, "diff", "HEAD"), own, (sys.executable, "-c", "import yaml")):
        subprocess.run([str(word) for word in words], cwd=folder, env=planted.environ, capture_output=True, check=False)
    fired = planted.fired()
    for name in (
        "git filter.planted.clean", "git core.fsmonitor",
        "a .pth of the project's environment", "sitecustomize.py of the project's environment",
        "torch.py in the working directory", "yaml.py in the working directory",
    ):  # fmt: skip
        assert name in fired


@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_looking_starts_nothing_of_the_project(planted: Planted, name: str) -> None:
    """Nothing that is planted has run, and no program was tried but those of the short list."""
    programs = looked(planted, name) if name in COMMANDS else OTHERS[name](planted)
    assert planted.fired() == []
    assert set(programs) <= STARTED
