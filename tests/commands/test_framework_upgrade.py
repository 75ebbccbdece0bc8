"""Frameworks beside the trainer's interpreter that are other ones than before, or than those beside autotune."""

import sys
from pathlib import Path

import pytest

from autotune.search import problem
from autotune.study.identity import framework_versions
from tests.command_line import CONFIG, CommandLine

_PYTHON = "env/bin/python"


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the packages each time: `CommandLine` takes them for unchanging."""
    monkeypatch.setattr(problem, "framework_versions", lambda *given: framework_versions(*given))


def _install(environment: Path, version: str) -> None:
    """Make an environment with that TensorFlow, as far as packages' metadata say; its interpreter is none."""
    packages = environment / "lib" / "python3.11" / "site-packages"
    for old in packages.glob("tensorflow-*"):
        (old / "METADATA").unlink()
        old.rmdir()
    info = packages / f"tensorflow-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n")
    python = environment / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text("#!/bin/sh\ntouch started\n")
    python.chmod(0o755)


@pytest.mark.parametrize("typed", [False, True])
def test_numbers_of_another_version_are_not_applied(simulated: CommandLine, typed: bool) -> None:
    """Nothing is known yet of a new version, and that is said; where the config has no command, that nobody knows."""
    config, environment = simulated.folder / "config.yaml", simulated.folder / "env"
    _install(environment, "2.20.0")
    text = (
        CONFIG.replace('    command: "{python} train.py {config}"\n', "")
        if typed
        else CONFIG.replace("{python}", _PYTHON)
    )
    config.write_text(text)
    behind = ("--", _PYTHON, "train.py", "{config}") if typed else ()
    simulated("search", "--config", "config.yaml", "--budget", "1m", "--no-apply", *behind).well()
    assert simulated("apply", "--config", "config.yaml", "--trial", "0", "--force").returncode == 0

    _install(environment, "2.21.0")
    done = simulated("apply", "--config", "config.yaml", "--trial", "1", "--force")
    known = simulated("status", "--config", "config.yaml")
    if typed:
        assert "Measured with tensorflow 2.20.0" in " ".join(known.stdout.split())
    else:
        for refused in (done, known):
            assert refused.returncode == 1
            assert "with tensorflow 2.21.0" in refused.stderr
        assert config.read_text() == text


@pytest.mark.skipif("tensorflow-cpu" not in framework_versions(Path(sys.executable)), reason="TensorFlow is not here")
def test_another_framework_than_beside_autotune_is_said_before_a_search(simulated: CommandLine) -> None:
    """One sentence with both places, read from metadata: the interpreter is not started."""
    project = simulated.folder
    (project / "train.py").write_text("import tensorflow as tf\n")
    python = project / "env" / "bin" / "python"

    def said(version: str, interpreter: Path = python) -> str:
        _install(project / "env", version)
        command = (str(interpreter), "train.py", "{config}")
        done = simulated("search", "--config", "config.yaml", "--dry-run", "--", *command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ours = framework_versions(Path(sys.executable))["tensorflow-cpu"]
    other = (
        f"trials use tensorflow 2.13.1 of the command's {python}, not autotune's {ours}; to measure "
        f"that one, start the trainer with {sys.executable}"
    )
    assert other in said("2.13.1")
    assert "not autotune's" not in said(ours)
    assert "not autotune's" not in said("2.13.1", Path(sys.executable))
    next(project.glob("env/lib/*/site-packages/tensorflow-*/METADATA")).unlink()
    (project / "train.py").write_text("import model\n")
    (project / "model.py").write_text("from tensorflow import keras\n")
    lacking = f"model.py imports tensorflow, which is not installed for the command's {python}, but for autotune: "
    done = simulated("search", "--config", "config.yaml", "--dry-run", "--", str(python), "train.py", "{config}")
    assert lacking in done.stdout
    packages = next(project.glob("env/lib/*/site-packages"))
    (packages / "torch-2.0.dist-info").mkdir()
    (packages / "torch-2.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.0\n")
    (project / "train.py").write_text("import torch\nimport model\n")
    done = simulated("search", "--config", "config.yaml", "--dry-run", "--", str(python), "train.py", "{config}")
    assert lacking not in done.stdout, "it trains with another one"
    assert not (project / "started").exists()
