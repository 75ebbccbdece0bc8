"""FIFOs, links, devices and folders where autotune's own files are: nothing is waited for, and nothing followed."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

TRAINER = Path(__file__).parents[1] / "toys" / "replacing_trainer.py"
CONFIG = """\
data: {batch_size: 4}
out: {log_dir: logs}
autotune:
    command: %s
    knobs: {data.batch_size: [4, 16, 64]}
    trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""


@pytest.mark.parametrize(
    "kind", ["fifo", "link", *(pytest.param(kind, marks=pytest.mark.services) for kind in ("folder", "device"))]
)
def test_a_trainer_that_replaces_our_files(kind: str, project: Path, autotune: Autotune) -> None:
    """The search ends with an answer or an error, and the target of a link is as it was."""
    victim = project / "thesis.txt"
    victim.write_text("all of it")
    leads_to = "/dev/zero" if kind == "device" else str(victim)
    command = shlex.join(["{python}", str(TRAINER), "{config}", kind, leads_to])
    (project / "config.yaml").write_text(CONFIG % json.dumps(command))
    done = autotune("search", "--config", "config.yaml", "--json", "--budget", "8s")
    answer = json.loads(done.stdout)
    assert done.returncode in (0, 1), done.stderr
    assert "verdict" in answer or "error" in answer
    if kind != "folder":  # nothing can be written where a folder is
        assert answer.get("trials", 0) >= 2, answer
    assert victim.read_text() == "all of it"
    known = autotune("status", "--config", "config.yaml", "--json")
    assert known.returncode in (0, 1), known.stderr


@pytest.mark.parametrize("separate", [False, True])
def test_a_fifo_for_a_config_is_refused(separate: bool, project: Path, autotune: Autotune) -> None:
    """Reading one that nobody writes into would take for ever; the same for the section in a file of its own."""
    path = project / "config.yaml"
    if separate:
        path.write_text("data: {batch_size: 4}\n")
        path = project / "config.autotune.yaml"
    else:
        path.unlink()
    os.mkfifo(path)
    done = autotune("search", "--config", "config.yaml", "--dry-run")
    assert done.returncode == 1
    assert f"{path.name}: this is no ordinary file" in done.stderr


def test_a_pipe_for_a_config_is_refused(project: Path) -> None:
    """A pipe, ``--config <(...)``, can be read once only, and cannot be written to."""
    line = f"{shlex.quote(sys.executable)} -m autotune search --dry-run --config <(cat config.yaml)"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "this is no ordinary file" in done.stderr
