"""Tests of what the profiler inside a trainer has written, as it is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.diagnose import step_profile
from autotune.diagnose.step_profile import Place, parse_step_times, read_step_times
from autotune.trainee import step_profile as trainees

GOOD: dict[str, Any] = {
    "v": 1, "of": "a model", "compiled": "graph", "device": "CPU", "batch_size": 8, "held": [[1.0, 2.0], [3.0, 4.0]],
    "draws": True, "times_ms": {"forward": [1.0, 2.0], "copy": [1.0, 1.0, 1.0]}, "why_not": {"loss": "no"},
}  # fmt: skip
MARKED: dict[str, Any] = {
    "v": 1, "of": "a model", "compiled": "eager", "device": "cuda:0", "batch_size": None, "held": [],
    "marked_ms": {"forward": [1.0, 2.0], "rest": [0.0, 0.5]}, "plain_ms": [3.0, 4.0, 5.0],
    "why_not": {"backward": "no"},
    "places": [{"what": "buffers", "device": "cpu", "count": 2, "names": ["mask\n\u001b[2J"]}],
}  # fmt: skip


def test_times_and_marks_are_read() -> None:
    """Texts in them cannot control the terminal."""
    times = parse_step_times(json.dumps(GOOD))
    assert times.times_ms == {"forward": (1.0, 2.0), "copy": (1.0, 1.0, 1.0)}
    assert times.held == ((1.0, 2.0), (3.0, 4.0))
    marked = parse_step_times(json.dumps(MARKED))
    assert (marked.marked_ms, marked.plain_ms) == ({"forward": (1.0, 2.0), "rest": (0.0, 0.5)}, (3.0, 4.0, 5.0))
    assert marked.places == (Place(what="buffers", device="cpu", count=2, names=("mask [2J",)),)
    assert parse_step_times(json.dumps({"v": 1, "error": "a\x1b[2Jb\nc"})).error == "a[2Jb c"


@pytest.mark.parametrize(
    "text",
    [
        *(
            json.dumps({**good, **change})
            for good, change in [
                (GOOD, {"v": 2}),
                (GOOD, {"times_ms": {"rm -rf": [1.0, 2.0]}}),
                (GOOD, {"times_ms": {"forward": [1.0, float("nan")]}}),
                (GOOD, {"times_ms": {"forward": [1.0, -2.0]}}),
                (GOOD, {"times_ms": {"forward": [1.0] * 5000}}),
                (GOOD, {"times_ms": {"forward": [1.0, 2.0], "loss": [1.0, 2.0, 3.0]}}),
                (GOOD, {"held": [[3.0, 4.0], [1.0, 2.0]]}),
                (GOOD, {"of": None}),
                (MARKED, {"marked_ms": {"forward": [1.0, 2.0], "rest": [0.0]}}),
                (MARKED, {"plain_ms": [1.0]}),
                (MARKED, {"places": [{"what": "buffers", "device": "cpu", "count": -1, "names": []}]}),
            ]
        ),
        "",
        "[" * 100_000,
        "\x00",
        "{}",
    ],
    ids=lambda text: text[-40:],
)
def test_anything_else_is_refused(text: str, tmp_path: Path) -> None:
    """A file that a trainer could have written instead is no profile; no more is read than one can have."""
    with pytest.raises(ValueError, match=r"."):
        parse_step_times(text)
    (tmp_path / "big").write_bytes(b" " * (2 << 20))
    with pytest.raises(ValueError, match="more than"):
        read_step_times(tmp_path / "big")
    assert read_step_times(tmp_path / "none") is None


def test_both_sides_use_the_same_names() -> None:
    """What is written inside the trainer is looked for outside."""
    assert step_profile.FILE == trainees.FILE
    assert step_profile.VERSION == trainees.FORMAT_VERSION
    assert step_profile.VARIABLE == trainees.VARIABLE
    assert step_profile.BEGINS == trainees.BEGINS
    assert step_profile.NO_PROFILE == trainees.NO_PROFILE
