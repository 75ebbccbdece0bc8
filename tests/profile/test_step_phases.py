"""Tests of the profile of a training step."""

import json
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.errors import TrialError
from autotune.profile.step_phases import profile_shipped_step, step_profile


def test_the_phases_of_the_shipped_step_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase of the shipped model's step has a time, or a reason; together they are about the step."""
    assert run(["profile", "step", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    phases = {phase["name"]: phase for phase in document["phases"]}
    assert list(phases) == ["data", "copy to device", "forward", "loss", "backward", "optimizer", "the rest"]
    assert all((phase["median_ms"] is None) == bool(phase["why_not"]) for phase in phases.values())
    assert phases["forward"]["median_ms"] > 0
    assert 0.5 < document["adds_up"] < 2.0


def test_phases_are_differences_and_what_is_missing_is_said() -> None:
    """A phase is what its function takes beyond the one before; without a GPU nothing was copied to one."""
    times_ms = {"data": [1.0] * 5, "forward": [10.0] * 5, "loss": [11.0] * 5, "gradients": [31.0] * 5}
    times_ms |= {"update": [35.0] * 5, "step": [40.0] * 5}
    profile = step_profile("a model", {"device": "CPU", "batch_size": 8, "times_ms": times_ms})
    assert [phase.median_ms for phase in profile.phases] == [1.0, None, 10.0, 1.0, 20.0, 4.0, 4.0]
    assert profile.phases[1].why_not == "there is no GPU"
    assert profile.adds_up == pytest.approx(0.9)


def test_a_process_that_fails_says_so(tmp_path: Path) -> None:
    """The last line of a failed process is the error's, with what to do."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'tensorflow'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(TrialError, match="No module named 'tensorflow'"):
        profile_shipped_step(str(python))
