"""Tests of the parser of what the profiler inside a trainer has written."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.diagnose import step_profile
from autotune.diagnose.step_profile import Place, parse_step_times, read_step_times
from autotune.trainee import step_profile as trainees

GOOD: dict[str, Any] = {
    "v": 1,
    "of": "a model",
    "compiled": "graph",
    "device": "CPU",
    "batch_size": 8,
    "held": [[1.0, 2.0], [3.0, 4.0]],
    "draws": True,
    "times_ms": {"forward": [1.0, 2.0], "copy": [1.0, 1.0, 1.0]},
    "why_not": {"loss": "no"},
}


MARKED: dict[str, Any] = {
    "v": 1,
    "of": "a model",
    "compiled": "eager",
    "device": "cuda:0",
    "batch_size": None,
    "held": [],
    "marked_ms": {"forward": [1.0, 2.0], "rest": [0.0, 0.5]},
    "plain_ms": [3.0, 4.0, 5.0],
    "why_not": {"backward": "no"},
    "places": [{"what": "buffers", "device": "cpu", "count": 2, "names": ["mask\n"]}],
}


def test_marks_are_read() -> None:
    """Times of marked steps and of plain ones, and what is on which device."""
    times = parse_step_times(json.dumps(MARKED))
    assert times.marked_ms == {"forward": (1.0, 2.0), "rest": (0.0, 0.5)}
    assert times.plain_ms == (3.0, 4.0, 5.0)
    assert times.why_not == {"backward": "no"}
    assert times.places == (Place(what="buffers", device="cpu", count=2, names=("mask",)),)


@pytest.mark.parametrize(
    "change",
    [
        {"marked_ms": {"forward": [1.0, 2.0], "rest": [0.0]}},
        {"marked_ms": {"gradients": [1.0, 2.0]}},
        {"plain_ms": None},
        {"plain_ms": [1.0]},
        {"places": {}},
        {"places": [7]},
        {"places": [{"what": "buffers", "device": "cpu", "count": -1, "names": []}]},
        {"places": [{"what": "buffers", "device": "cpu", "count": 1, "names": "x"}]},
        {"places": [{}] * 1000},
    ],
    ids=str,
)
def test_other_marks_are_refused(change: dict[str, Any]) -> None:
    """A file that a trainer could have written instead is no profile."""
    with pytest.raises(ValueError, match=r"."):
        parse_step_times(json.dumps({**MARKED, **change}))


def test_times_are_read() -> None:
    """What the writer writes is read."""
    times = parse_step_times(json.dumps(GOOD))
    assert times.times_ms == {"forward": (1.0, 2.0), "copy": (1.0, 1.0, 1.0)}
    assert times.held == ((1.0, 2.0), (3.0, 4.0))


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"times_ms": {"rm -rf": [1.0, 2.0]}},
        {"times_ms": {"forward": [1.0, "2"]}},
        {"times_ms": {"forward": [1.0, float("nan")]}},
        {"times_ms": {"forward": [1.0, True]}},
        {"times_ms": {"forward": [1.0, -2.0]}},
        {"times_ms": {"forward": [1.0] * 5000}},
        {"times_ms": {"forward": [1.0, 2.0], "loss": [1.0, 2.0, 3.0]}},
        {"times_ms": []},
        {"batch_size": "many"},
        {"held": [[2.0, 1.0]]},
        {"held": [[3.0, 4.0], [1.0, 2.0]]},
        {"held": 7},
        {"of": None},
        {"why_not": {"loss": 3}},
    ],
    ids=str,
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    """A file that a trainer could have written instead is no profile."""
    with pytest.raises(ValueError, match=r"."):
        parse_step_times(json.dumps({**GOOD, **change}))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\x00", "{}"])
def test_rubbish_is_refused(text: str) -> None:
    """Rubbish is no profile."""
    with pytest.raises(ValueError, match=r"."):
        parse_step_times(text)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    """No more is read than a profile can have."""
    (tmp_path / "big").write_bytes(b" " * (2 << 20))
    with pytest.raises(ValueError, match="more than"):
        read_step_times(tmp_path / "big")
    assert read_step_times(tmp_path / "none") is None


def test_texts_cannot_control_the_terminal() -> None:
    """Escape sequences of a trainer do not reach the screen."""
    assert parse_step_times(json.dumps({"v": 1, "error": "a\x1b[2Jb\nc"})).error == "a[2Jb c"


def test_both_sides_use_the_same_names() -> None:
    """What is written inside the trainer is looked for outside."""
    assert step_profile.FILE == trainees.FILE
    assert step_profile.VERSION == trainees.FORMAT_VERSION
    assert step_profile.VARIABLE == trainees.VARIABLE
    assert step_profile.BEGINS == trainees.BEGINS
    assert step_profile.NO_PROFILE == trainees.NO_PROFILE
