"""Tests of the profile that the steps of a trial make, and of reading what was seen inside the trainer."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.diagnose import profiles as ours
from autotune.diagnose.profiles import PlainSteps, SeenSteps, read_seen_steps, step_profile
from autotune.trainee import step_profile as trainees

GOOD: dict[str, Any] = {
    "v": 1, "framework": "PyTorch", "profiler_begin_s": 10.0, "steps": 4,
    "phases_ms": {"data": [1.0, 1.0], "forward": [10.0, 10.0], "backward": [20.0, 20.0], "rest": [9.0, 9.0]},
    "operations": [{"name": "aten::mm\n\u001b[2J", "times": 3.0, "host_ms": 10.0, "device_ms": 0.0}], "why_not": "",
}  # fmt: skip


def read(folder: Path, document: Any) -> SeenSteps:
    """Read a document as the trainer's side would have left it."""
    path = folder / ours.STEP_FILE
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    seen = read_seen_steps(path)
    assert seen is not None
    return seen


def test_phases_and_operations_are_those_of_a_step(tmp_path: Path) -> None:
    """Phases add up to the step, operations are shares of a step; texts in them cannot control the terminal."""
    profile = step_profile(read(tmp_path, GOOD), PlainSteps(batch_size=8.0))
    assert [(one.name, one.median_ms) for one in profile.phases] == [
        ("data", 1.0),
        ("forward", 10.0),
        ("backward", 20.0),
        ("the rest", 9.0),
    ]
    assert (profile.step.mean_ms, profile.steps, profile.batch_size) == (40.0, 2, 8.0)
    (one,) = profile.operations
    assert (one.name, one.times, one.host_ms, profile.profiled_steps) == ("aten::mm [2J", 3.0, 10.0, 4)
    assert profile.why_not is None
    assert profile.verdict == "Backward takes 50 % of the step: the arithmetic of the step is the limit, not its data."


def test_batches_from_no_loader_are_not_told_from_the_forward_pass(tmp_path: Path) -> None:
    """Where no fetch is seen, the step begins with the update."""
    phases = {"forward": [50.0] * 2, "backward": [20.0] * 2, "optimizer": [5.0] * 2}
    profile = step_profile(read(tmp_path, {**GOOD, "phases_ms": phases}), PlainSteps())
    assert [one.name for one in profile.phases] == ["data and forward", "backward", "optimizer"]
    assert "from no DataLoader" in profile.verdict


@pytest.mark.parametrize(
    ("waits_ms", "steps_ms", "said"),
    [
        (5.0, [50.0] * 100, "All but data takes 90 % of the step: the step itself is the limit"),
        (35.0, [50.0] * 100, "Data takes 70 % of the step: waiting for data is the limit"),
        (5.0, [50.0] * 98 + [500.0] * 2, "; one step in a hundred takes 10.0 times the median."),
        (None, [50.0] * 100, "unknown"),
    ],
)
def test_a_step_that_is_not_divided_has_what_the_trial_reports(
    waits_ms: float | None, steps_ms: list[float], said: str
) -> None:
    """Its length, and the waits for data where the trainer shows them."""
    waits = None if waits_ms is None else [waits_ms] * 100
    profile = step_profile(SeenSteps(), PlainSteps(steps_ms=steps_ms, waits_ms=waits, steps=100))
    assert said in profile.verdict
    assert profile.step.median_ms == 50.0
    assert profile.why_not == "operations are unknown: neither PyTorch nor TensorFlow trains"


def test_the_phases_that_a_profiler_has_seen_take_their_share_of_a_step_without_it(tmp_path: Path) -> None:
    """Under it a step takes twice as long; what they and the data leave is the rest."""
    traced = {
        "forward": [20.0] * 4,
        "loss": [2.0] * 4,
        "backward": [40.0] * 4,
        "optimizer": [8.0] * 4,
        "step": [100.0] * 4,
    }
    seen = read(tmp_path, {**GOOD, "framework": "TensorFlow", "phases_ms": {}, "traced_ms": traced})
    profile = step_profile(seen, PlainSteps(steps_ms=[50.0] * 100, waits_ms=[5.0] * 100, steps=100))
    assert [(one.name, one.median_ms) for one in profile.phases] == [
        ("data", 5.0),
        ("forward", 10.0),
        ("loss", 1.0),
        ("backward", 20.0),
        ("optimizer", 4.0),
        ("the rest", 10.0),
    ]
    assert all(one.tail_ms for one in profile.phases[:-1])
    assert profile.verdict.startswith("Backward takes 40 % of the step")


@pytest.mark.parametrize(
    "document",
    [
        {**GOOD, "v": 2},
        {**GOOD, "framework": "rm -rf"},
        {**GOOD, "steps": 0},
        {**GOOD, "phases_ms": {"rm -rf": [1.0]}},
        {**GOOD, "phases_ms": {"data": [float("nan")]}},
        {**GOOD, "phases_ms": {"data": [-1.0]}},
        {**GOOD, "phases_ms": {"data": [1.0] * 5000}},
        {**GOOD, "phases_ms": {"data": [1.0], "rest": [1.0, 1.0]}},
        {**GOOD, "traced_ms": {"forward": [1.0]}},
        {**GOOD, "operations": [{"name": "mm", "times": -1, "host_ms": 1.0, "device_ms": 0.0}]},
        {**GOOD, "operations": GOOD["operations"] * 51},
        "",
        "[" * 100_000,
        "\x00",
        "{}",
    ],
    ids=lambda document: str(document)[-40:],
)
def test_anything_else_is_refused(document: Any, tmp_path: Path) -> None:
    """A file that a trainer could have written instead is no profile."""
    with pytest.raises(ValueError, match=r"."):
        read(tmp_path, document)


def test_no_more_is_read_than_a_profile_can_have(tmp_path: Path) -> None:
    """Nor is a missing file an error."""
    (tmp_path / "big").write_bytes(b" " * (2 << 20))
    with pytest.raises(ValueError, match="more than"):
        read_seen_steps(tmp_path / "big")
    assert read_seen_steps(tmp_path / "none") is None


def test_both_sides_use_the_same_names() -> None:
    """What is written inside the trainer is looked for outside."""
    assert ours.STEP_FILE == trainees.FILE
    assert ours.STEP_VERSION == trainees.FORMAT_VERSION
    assert ours.STEP_VARIABLE == trainees.VARIABLE
    assert ours.BEGINS == trainees.BEGINS
