"""Temporary files of trainers: in a folder of each trial's own, and gone after a search; real processes."""

import json
import os
import signal
import time
from pathlib import Path

from tests.commands.conftest import Autotune, start_search

TRAINER = """\
import json, multiprocessing, os, tempfile, time
from autotune.trainee import step
handle, path = tempfile.mkstemp(prefix="left-behind-")
with multiprocessing.Manager() as manager:  # its socket is made there too
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps([path, os.environ["TMPDIR"], manager.address]) + "\\n")
    while True:
        time.sleep(0.002)
        step(samples=4)
"""


def _seen(project: Path) -> list[list[str]]:
    try:
        return [json.loads(line) for line in (project / "seen.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _train(project: Path) -> None:
    (project / "train.py").write_text(TRAINER)
    config = (project / "config.yaml").read_text()
    command = next(line for line in config.splitlines() if "command:" in line)
    (project / "config.yaml").write_text(config.replace(command, '    command: "{python} train.py {config}"'))


def test_each_trial_has_its_temporary_files_apart(project: Path, autotune: Autotune) -> None:
    """Forks of a warm interpreter too, which has looked up the system's place before; nothing is left of them."""
    _train(project)
    assert autotune("search", "--config", "config.yaml", "--budget", "8s").returncode == 0
    seen = _seen(project)
    assert len(seen) > 1
    assert len({folder for _, folder, _ in seen}) == len(seen)
    for path, folder, address in seen:
        assert Path(path).parent == Path(folder)
        assert Path(address).is_relative_to(folder)
        assert not Path(folder).exists()


def test_a_killed_search_leaves_nothing_after_the_next_one(project: Path, autotune: Autotune) -> None:
    """SIGKILL leaves no time to clear up."""
    _train(project)
    search = start_search(project, 60)
    end_s = time.monotonic() + 60
    while not _seen(project) and time.monotonic() < end_s:
        time.sleep(0.05)
    os.kill(search.pid, signal.SIGKILL)
    search.communicate()
    (killed,) = {folder for _, folder, _ in _seen(project)}
    assert autotune("search", "--config", "config.yaml", "--budget", "3s").returncode in (0, 1)
    if not Path(killed).is_relative_to(project):  # else it goes with its trial's folder
        assert not Path(killed).exists()
