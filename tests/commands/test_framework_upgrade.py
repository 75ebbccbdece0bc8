"""Records of a config, once the frameworks beside its trainer's interpreter have changed."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import CONFIG, TRAINER, Autotune

_FIELD = "'{config}'"  # as `shlex` quotes it


def _install(environment: Path, version: str) -> None:
    """Make an environment with that TensorFlow, as far as packages' metadata say; its interpreter is the tests' own."""
    packages = environment / "lib" / "python3.11" / "site-packages"
    for old in packages.glob("tensorflow-*"):
        (old / "METADATA").unlink()
        old.rmdir()
    info = packages / f"tensorflow-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {version}\n")
    python = environment / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


@pytest.mark.services
@pytest.mark.parametrize("typed", [False, True])
def test_numbers_of_another_version_are_not_applied(project: Path, autotune: Autotune, typed: bool) -> None:
    """Nothing is known yet of a new version, and that is said; where the config has no command, that nobody knows."""
    config, environment = project / "config.yaml", project / "env"
    _install(environment, "2.20.0")
    command = (str(environment / "bin" / "python"), str(TRAINER), "{config}")
    written = "" if typed else f"    command: {json.dumps(shlex.join(command).replace(_FIELD, '{config}'))}"
    lines = [written if "command:" in line else line for line in (CONFIG % TRAINER).splitlines()]
    text = "\n".join(lines)
    config.write_text(text)
    behind = ("--", *command) if typed else ()
    searched = autotune("search", "--config", "config.yaml", "--budget", "7s", "--json", *behind)
    assert searched.returncode == 0, searched.stderr
    assert autotune("apply", "--config", "config.yaml", "--trial", "0", "--force").returncode == 0

    _install(environment, "2.21.0")
    done = autotune("apply", "--config", "config.yaml", "--trial", "1", "--force")
    known = autotune("status", "--config", "config.yaml")
    if typed:
        assert "Measured with tensorflow 2.20.0" in " ".join(known.stdout.split())
    else:
        for refused in (done, known):
            assert refused.returncode == 1
            assert "with tensorflow 2.21.0" in refused.stderr
        assert config.read_text() == text
