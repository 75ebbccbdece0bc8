"""Temporary files of trainers: in a folder of each trial's own, and gone after a search."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.records import TrialPlan
from autotune.trial.folders import make_temporary_folder
from scripts.bench.simulated_runner import Training
from tests.command_line import project_in, run_forked, toy


def used(plan: TrialPlan) -> Path:
    """Leave a file in the temporary folder of a trial, which whoever launches it makes; return the folder."""
    make_temporary_folder(plan.folder)
    folder = Path(plan.env["TMPDIR"])
    assert os.listdir(folder) == []
    (folder / "left-behind").touch()
    return folder


def test_each_trial_has_its_temporary_files_apart(tmp_path: Path) -> None:
    """Nothing is left of them."""

    def train(config: Mapping[str, Any]) -> Training:
        folders.add(used(autotune.simulator.plans[-1]))
        return toy(config)

    folders: set[Path] = set()
    autotune = project_in(tmp_path, train)
    assert autotune.search(budget="1m").returncode == 0
    assert 1 < len(folders) == len(autotune.simulator.plans)
    assert not any(folder.exists() for folder in folders)


def test_a_killed_search_leaves_nothing_after_the_next_one(tmp_path: Path) -> None:
    """SIGKILL leaves no time to clear up."""
    note = tmp_path / "note"

    def train(config: Mapping[str, Any]) -> Training:
        if not note.exists():
            note.write_text(str(used(autotune.simulator.plans[-1])))
            os.kill(os.getpid(), signal.SIGKILL)
        return toy(config)

    autotune = project_in(tmp_path / "project", train)
    words = ("search", "--config", "config.yaml", "--budget", "1m")
    assert run_forked(*words, cwd=autotune.folder, simulator=autotune.simulator).returncode == -signal.SIGKILL
    assert os.path.exists(note.read_text())
    assert autotune(*words).returncode == 0
    assert not os.path.exists(note.read_text())
