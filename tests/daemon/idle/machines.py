"""Machines for the plays: a timeline on the fake driver, and a project with a search on it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.command_line import CONFIG
from tests.daemon.idle.timelines import machine_of, scenario_of
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario

_REPOSITORY = Path(__file__).parents[3]


def played(library: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Play the timeline of a seed; see `play.Played`."""
    machine = FakeGpu(library, folder, scenario_of(machine_of(seed)), at_s=0.0, began_s_ago=0.0)
    machine.tenants.mkdir()
    return _said("tests.daemon.idle.play", str(seed), env=machine.env)


def staged(library: Path, folder: Path, *, stranger: str, mood: str = "") -> dict[str, Any]:
    """Play a search of the toy trainer to which a stranger comes; see `staged.play`."""
    scenario = Scenario(gpus=(Gpu(memory_reserved_bytes=700 << 20),), follow=True)
    machine = FakeGpu(library, folder, scenario, at_s=None, began_s_ago=30.0)
    machine.tenants.mkdir()
    project = Path(tempfile.mkdtemp(prefix="a project ", dir=folder))
    (project / "config.yaml").write_text(CONFIG.replace("out:", f"mood: {json.dumps(mood)}\nout:"))
    (project / "train.py").write_text((_REPOSITORY / "tests" / "toys" / "toy_trainer.py").read_text())
    return _said("tests.daemon.idle.staged", str(project), stranger, env=machine.env)


def _said(module: str, *words: str, env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=env,
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said
