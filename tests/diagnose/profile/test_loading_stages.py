"""Tests of the parser of the times of loading stages."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.diagnose.pipeline_profile import read_loading_stages


def test_no_file_has_no_stages(tmp_path: Path) -> None:
    """Trainers that wrap nothing have no stages."""
    assert read_loading_stages(tmp_path / "none") == ()


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"v": 2, "stages": {}},
        {"v": 1, "stages": []},
        {"v": 1, "stages": {"\x1b[2J": {"calls": 1, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": 0, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": True, "busy_s": 1.0}}},
        {"v": 1, "stages": {"read": {"calls": 1, "busy_s": float("nan")}}},
        {"v": 1, "stages": {"read": {"calls": 1, "busy_s": -1.0}}},
        {"v": 1, "stages": {"read": 7}},
        {"v": 1, "stages": {f"{a}{b}": {"calls": 1, "busy_s": 1} for a in "abcdefg" for b in "abcdefg"}},
    ],
    ids=lambda document: str(document)[:40],
)
def test_anything_else_is_passed_over(document: Any, tmp_path: Path) -> None:
    """What a trainer could have written there instead is not shown."""
    (tmp_path / "stages").write_text(json.dumps(document))
    assert read_loading_stages(tmp_path / "stages") == ()
    (tmp_path / "stages").write_text("[" * 60_000)
    assert read_loading_stages(tmp_path / "stages") == ()
