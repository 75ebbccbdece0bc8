"""Folder of a diagnosis: what is in it, and what it never replaces."""

import json
import sys
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.commands.diagnose_run import Diagnosed, Profiles, keep, make_profiles, require_folder
from autotune.commands.report_page import read_diagnosis
from autotune.diagnose.findings import (
    CheckResult,
    Diagnosis,
    DiagnosisVerdict,
    GainBasis,
    Issue,
    Recommendation,
    Severity,
)
from autotune.diagnose.profiles import Phase, StepProfile
from autotune.errors import ConfigError
from autotune.records import Ratio
from autotune.search.problem import open_problem

KERAS = Path(__file__).parents[1] / "diagnose" / "profile" / "keras_trainer.py"

GAIN = Ratio(ratio=1.9, low=1.8, high=2.0)
BEST = Recommendation(sentence="two workers", values={"data.num_workers": 2}, gain=GAIN, evidence=GainBasis.MEASURED)
MORE = Issue(check="switches", severity=Severity.WARNING, sentence="More workers help.", recommendations=(BEST,))
FOUND = Diagnosis(
    verdict=DiagnosisVerdict(sentence="Input-bound: the step waits.", limit=None),
    results=(CheckResult(check="switches", issues=(MORE,)),),
)


def kept(folder: Path, profiles: Profiles | None = None) -> None:
    """Keep the diagnosis above."""
    require_folder(folder)
    done = Diagnosed(diagnosis=FOUND, problem=None, has_failed=False, failed_on=None, profiles=profiles)
    keep(folder, done, SystemClock())


def test_it_holds_the_verdict_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary begins with the verdict, names what else is there, and has no colours, whatever the terminal has."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    kept(tmp_path / "a" / "b")
    found = {path.name: path.read_text() for path in (tmp_path / "a" / "b").iterdir()}
    assert sorted(found) == ["diagnosis.json", "machine.json", "summary.txt"]
    assert found["summary.txt"].startswith("Input-bound: the step waits.")
    assert "\x1b" not in found["summary.txt"]
    assert "In this folder: summary.txt" not in found["summary.txt"]
    assert "data:\n  num_workers: 2  # 1.90x (1.80 to 2.00)\n" in found["summary.txt"]
    assert "diagnosis.json, machine.json" in found["summary.txt"]
    assert json.loads(found["machine.json"])["cores"] >= 1


def test_a_later_diagnosis_replaces_an_earlier_one(tmp_path: Path) -> None:
    """Profiles of the earlier one do not stay beside the later verdict; what is not of a diagnosis stays."""
    kept(tmp_path)
    (tmp_path / "profile-step.json").write_text("{}")
    (tmp_path / "notes.md").write_text("mine")
    kept(tmp_path)
    assert not (tmp_path / "profile-step.json").exists()
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_a_report_reads_it(tmp_path: Path) -> None:
    """Its verdict, what it recommends, and the parts of the step; a profile that is none is an error."""
    nothing = Phase(name="data", mean_ms=None, median_ms=None, quartiles_ms=None, why_not="it is not shown")
    forward = Phase(name="forward", mean_ms=3.0, median_ms=3.0, quartiles_ms=(2.9, 3.1))
    step = StepProfile(framework="PyTorch", batch_size=8, steps=9, phases=(forward, nothing), step=forward)
    kept(tmp_path, Profiles(step=step))
    found = read_diagnosis(tmp_path)
    assert found.verdict == "Input-bound: the step waits."
    assert found.issues == [("warning", "More workers help.")]
    assert [sentence for sentence, _ in found.recommendations] == ["data.num_workers: 2 (two workers)"]
    assert [(one.name, one.mean_ms) for one in found.step_parts] == [("forward", 3.0), ("data", None)]
    assert read_diagnosis(tmp_path / "diagnosis.json").step_parts == ()
    (tmp_path / "profile-step.json").write_text('{"phases": [{"name": "forward"}]}')
    with pytest.raises(ConfigError, match="this is not a diagnosis"):
        read_diagnosis(tmp_path)


@pytest.mark.parametrize("text", ["my own summary", '{"format": 1}'])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, text: str) -> None:
    """That is said before a diagnosis takes its minutes."""
    for name in ("summary.txt", "diagnosis.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"contains a summary.txt that is not from a diagnosis"):
        require_folder(tmp_path)
    assert (tmp_path / "summary.txt").read_text() == text


@pytest.mark.services
@pytest.mark.timeout(300)
def test_both_profiles_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real trainer, as far as the time goes; for what does not fit it is said why."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(
        "batch_size: 8\nload_s: 0.01\nslow_every: 8\nxla: false\neager: false\nepochs: 10000\n"
        f"autotune:\n  command: \"{sys.executable} '{KERAS}' {{config}}\"\n"
    )
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    clock = SystemClock()
    made = make_profiles(problem, clock, ends_s=clock.now_s() + 120.0)
    kept(tmp_path / "kept", made)
    assert json.loads((tmp_path / "kept/profile-pipeline.json").read_text())["steps"]["median_ms"] > 0
    phases = json.loads((tmp_path / "kept/profile-step.json").read_text())["phases"]
    assert "data" in [phase["name"] for phase in phases]
    late = make_profiles(problem, clock, ends_s=clock.now_s() + 1.0)
    kept(tmp_path / "kept", late)
    assert "No profile of the step: out of time." in (tmp_path / "kept/summary.txt").read_text()
    assert not (tmp_path / "kept/profile-step.json").exists()
