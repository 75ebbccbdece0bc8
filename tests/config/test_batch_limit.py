"""Limits of the batch as they are written."""

import math
from pathlib import Path

import pytest

from autotune.config.load import load_settings
from autotune.config.schema import BatchLimit, parse_batch_limit
from autotune.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("4x", BatchLimit(factor=4.0)),
        (" 1.5X", BatchLimit(factor=1.5)),
        ("1x", BatchLimit(factor=1.0)),
        ("same", BatchLimit(factor=1.0, is_fixed=True)),
        ("free", BatchLimit(factor=math.inf)),
    ],
)
def test_factors_and_words(text: str, limit: BatchLimit) -> None:
    """Any factor from 1 on, and two words."""
    assert parse_batch_limit(text) == limit
    assert limit.is_free is (text == "free")


@pytest.mark.parametrize("text", ["", "4", "x", "0.5x", "0x", "-4x", "nanx", "infx", "4xx", "four", "1e3x"])
def test_what_is_no_limit(text: str) -> None:
    """The message says what would be one."""
    with pytest.raises(ValueError, match=r"4x|1x"):
        parse_batch_limit(text)


@pytest.mark.parametrize("written", ["4", "0.5x", "[4x]", "true", "most"])
def test_a_section_with_no_limit_in_it(tmp_path: Path, written: str) -> None:
    """File, line and key are named, and what to write."""
    config = tmp_path / "config.yaml"
    config.write_text(f"batch_size: 8\nautotune:\n  batch: {written}\n")
    with pytest.raises(ConfigError, match="no limit of the batch") as caught:
        load_settings(config)
    assert "config.yaml:3 (autotune.batch)" in str(caught.value)
    assert "batch: 4x" in str(caught.value)
