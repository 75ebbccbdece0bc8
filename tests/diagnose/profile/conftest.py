"""Profiles of real trainers, as a script gets them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.workloads.tts.corpus import write_corpus

HERE = Path(__file__).parent
KERAS, LOOP, TORCH = (HERE / f"{name}_trainer.py" for name in ("keras", "loop", "torch"))
TOY = HERE.parents[1] / "toys" / "toy_trainer.py"

Profiled = Callable[..., dict[str, Any]]


def started(trainer: Path, config: str) -> str:
    """Return a config whose trainer this interpreter starts."""
    return f"{config}\nautotune:\n  command: \"{sys.executable} '{trainer}' {{config}}\"\n"


def shipped(folder: Path) -> str:
    """Return the config of the reference trainer, on a small corpus in a folder."""
    assert write_corpus(folder / "corpus", clips=12)
    text = (HERE.parents[2] / "configs" / "config.yaml").read_text()
    return text.replace("batch_size: 8", "batch_size: 2").replace("data/quickstart", str(folder / "corpus"))


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Profiled:
    """Profile the step, or the pipeline, of a trainer; no folder of a trial is left."""
    monkeypatch.chdir(tmp_path)

    def make(what: str, config: str, *trainer: str, file: str = "config.yaml") -> dict[str, Any]:
        Path(file).write_text(config)
        assert run(["profile", what, "--config", file, "--json", *trainer]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert list(Path(".autotune", "trials").glob("*/*")) == []
        if "phases" in document:
            document["phases"] = {phase["name"]: phase for phase in document["phases"]}
        return document

    return make
