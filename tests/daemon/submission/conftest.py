"""Project whose workers are submitted, and requests to do so."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.worker_submission import SubmissionRequest

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))
Request = Callable[..., SubmissionRequest]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a path that is hard to quote, and a config in it; the working directory."""
    folder = tmp_path / 'it\'s a "project" 100%'
    folder.mkdir()
    (folder / "my config.yaml").write_text(
        'batch_size: 4\nautotune: {command: "{python} train.py --config {config}"}\n'
    )
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def request_of(project: Path) -> Request:
    """Make a request as typed in the project; the storage counts as reachable."""

    def make(engine: str, *words: str, **changes: Any) -> SubmissionRequest:
        fields: dict[str, Any] = {
            "engine": engine, "count": None, "image": None, "gpus": None, "template": None, "secret": None,
            "reachable": True, "dry_run": False, "config": Path("my config.yaml"), "storage": None, "budget_s": None,
            "seed": 0, "same_training": False, "batch": None, "allow_busy_gpu": False, "state_dir": None,
            "words": words,
        }  # fmt: skip
        return SubmissionRequest(**{**fields, **changes})

    return make
