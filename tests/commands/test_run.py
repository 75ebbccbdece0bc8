"""``autotune run``: the process becomes the trainer."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from autotune.errors import AutotuneError
from autotune.trial import python_command
from autotune.trial.trainings import TrainingHeader
from tests.command_line import CommandLine, typed
from tests.commands.conftest import Autotune

FLAG_TRAINER = Path(__file__).parents[1] / "toys" / "flag_trainer.py"
CONFIG = """\
batch_size: 4
use_xla: true
out_dir: checkpoints   # real ones
steps: 2
status: 77
autotune:
  folder: .
  command: "{python} '%s' --batch_size={batch_size} {use_xla?--use_xla} --out_dir {out_dir}
    --steps={steps} --status={status}"
  env: {MODE: "on", OTHER: ''}
  set: {steps: 1}
"""


@pytest.fixture
def config(project: Path) -> Path:
    """Config with a trainer that takes flags."""
    path = project / "config.yaml"
    path.write_text(CONFIG % FLAG_TRAINER)
    return path


def test_real_training_gets_the_configs_own_values(config: Path) -> None:
    """Nothing is redirected, shortened or copied; stdout and exit status are the trainer's, wherever it is typed."""
    done = typed("run", "--config", str(config), cwd=Path("/"))
    assert (done.returncode, done.stderr) == (77, "")
    assert json.loads(done.stdout) == {
        "batch_size": 4,
        "num_workers": 1,
        "lr": 0.1,
        "use_xla": True,
        "out_dir": "checkpoints",
        "steps": 2,
        "status": 77,
        "v": False,
        "mode": "on",
    }


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_go_to_the_trainer(config: Path, project: Path, signum: signal.Signals) -> None:
    """The same process gets them, and dies of them as it does by itself."""
    config.write_text(config.read_text().replace("steps: 2", "steps: -1"))
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "run", "--config", "config.yaml"], cwd=project, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert b"batch_size" in running.stdout.readline()
        command = Path(f"/proc/{running.pid}/cmdline").read_bytes().split(b"\0")
        assert os.fsencode(FLAG_TRAINER) in command
        running.send_signal(signum)
        assert running.wait(timeout=60) == -signum


def test_stdin_is_the_trainers_and_a_closed_pipe_ends_it(project: Path) -> None:
    """The trainer reads stdin, and is not left with the signals that Python ignores for itself."""
    (project / "config.yaml").write_text("n: 3\nautotune: {command: 'head -n {n}'}\n")
    command = [sys.executable, "-m", "autotune", "run", "--config", "config.yaml"]
    done = subprocess.run(command, cwd=project, input="1\n2\n3\n4\n", capture_output=True, text=True, check=False)
    assert done.stdout == "1\n2\n3\n"
    (project / "config.yaml").write_text("word: y\nautotune: {command: 'yes {word}'}\n")
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        assert endless.stdout.readline() == b"y\n"
        endless.stdout.close()
        assert endless.wait(timeout=60) == -signal.SIGPIPE


@pytest.mark.usefixtures("config")
def test_a_dry_run_says_what_would_start(project: Path) -> None:
    """The command is shown as a line that could be pasted into a shell."""
    done = CommandLine(project)("run", "--config", "config.yaml", "--dry-run")
    assert done.stdout.startswith("MODE=on OTHER='' ")
    assert done.stdout.endswith("--batch_size=4 --use_xla --out_dir checkpoints --steps=2 --status=77\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n", "there is no training command"),
        ("a: 1\nautotune: {command: 'nosuchprogram {config}'}\n", "program not found on the PATH: nosuchprogram"),
        ("a: 1\nautotune: {command: 'true {b}'}\n", "no such key"),
        ("a: 1\nautotune: {command: './script {config}'}\n", "cannot be started"),
    ],
)
def test_a_command_that_cannot_be_started_is_an_expected_error(
    project: Path, autotune: Autotune, text: str, said: str
) -> None:
    """Exit status 1, as for every other expected error."""
    (project / "config.yaml").write_text(text)
    (project / "script").write_text("no first line\n")
    (project / "script").chmod(0o755)
    done = autotune("run", "--config", "config.yaml")
    assert done.returncode == 1
    assert said in done.stderr


@pytest.fixture
def state(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The daemon's state folder."""
    folder = project.parent / "daemon state"
    monkeypatch.setenv("AUTOTUNE_DAEMON_DIR", str(folder))
    return folder


def _training(state: Path) -> tuple[Path, dict[str, object]]:
    """Return the folder of the last training, and its header."""
    folders = (state / socket.gethostname() / "trainings").iterdir()
    folder = max(folders, key=lambda one: one.stat().st_mtime_ns)
    return folder, json.loads((folder / "training.json").read_text())


_STEPPING = """\
import json, os, sys
from autotune.trainee import step
for _ in range(3):
    step(samples=4)
print(json.dumps({"argv": sys.argv[1:], "watched": "AUTOTUNE_WATCH_DIR" in os.environ, "path": sys.path}))
sys.exit(7)
"""


def test_a_watched_training_is_the_same_training(project: Path, state: Path, autotune: Autotune) -> None:
    """Output, exit status and import path are the trainer's own; its pace lies in the daemon's state folder.

    So it is where the daemon is not to watch it: it is counted all the same, and not with `python train.py`.
    """
    (project / "train.py").write_text(_STEPPING)
    (project / "config.yaml").write_text(
        "batch_size: 4\nautotune:\n  folder: .\n"
        '  command: "{python} train.py --batch_size={batch_size} --api-key=hunter22"\n'
    )
    counted, done = (autotune("run", "--config", "config.yaml", *more) for more in ((), ("--watch",)))
    assert (done.returncode, done.stderr) == (counted.returncode, counted.stderr) == (7, "")
    words = [sys.executable, "train.py", "--batch_size=4", "--api-key=hunter22"]
    alone = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == json.loads(counted.stdout) == {**json.loads(alone.stdout), "watched": True}
    folder, header = _training(state)
    assert header["is_watched"] is True
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.glob("pace.*.0.0.jsonl"))
    assert header["config"] == str(project / "config.yaml")
    assert header["config_sha256"] == hashlib.sha256((project / "config.yaml").read_bytes()).hexdigest()
    assert header["values"] == {"batch_size": 4}
    assert header["confirmed"] is None
    assert "hunter22" not in (folder / "training.json").read_text()
    read = TrainingHeader.read(folder)
    assert read is not None
    assert read.argv[-2:] == ("--batch_size=4", "--api-key=***")


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a process that would become the trainer say so, as an error."""

    def become(argv: Sequence[str], env: Mapping[str, str], _cwd: Path) -> NoReturn:
        raise AutotuneError(f"{'watched' if 'AUTOTUNE_WATCH_DIR' in env else 'alone'}: {' '.join(argv[1:])}")

    monkeypatch.setattr(python_command, "exec_program", become)


_WATCH_ONLY = ("run", "--watch-only", "--", sys.executable)


@pytest.mark.usefixtures("becomes")
def test_any_command_can_be_watched(tmp_path: Path, state: Path) -> None:
    """It needs no config; one that is given is noted, and not filled in; one that hides its steps is said."""
    (tmp_path / "train.py").touch()
    done = CommandLine(tmp_path)(*_WATCH_ONLY, "-S", "-E", "train.py", "{lr}")
    assert "watched: -S -E train.py {lr}" in done.stderr
    assert "-E and -S in the command keeps the observer out" in done.stderr
    assert _training(state)[1]["config"] is None


@pytest.mark.parametrize("options", [("--watch-only",), ("--watch", "--", "true"), ()])
def test_what_cannot_be_watched_is_wrong_usage(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A config or a command is needed, and it is said which."""
    said = CommandLine(tmp_path)("run", *options).refusal(2)
    assert "--config" in said or "--watch-only -- python" in said


@pytest.mark.usefixtures("becomes")
def test_a_training_that_cannot_be_watched_trains(tmp_path: Path, state: Path) -> None:
    """A state folder in which a file is, and one that others may write to, are said and passed over."""
    state.write_text("a file")
    done = CommandLine(tmp_path)(*_WATCH_ONLY, "train.py")
    assert "this training is not watched" in done.stderr
    assert "alone: train.py" in done.stderr
    state.unlink()
    (state / socket.gethostname()).mkdir(parents=True)
    (state / socket.gethostname()).chmod(0o777)
    done = CommandLine(tmp_path)(*_WATCH_ONLY, "train.py")
    assert "others may write" in done.stderr
    assert "alone: train.py" in done.stderr
