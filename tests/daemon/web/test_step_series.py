"""The last minute of a trial, as its files have it."""

import json
from pathlib import Path

import pytest

from autotune.daemon.web.step_series import LONGEST_S, PER_S, step_series


def write_steps(folder: Path, *steps: tuple[float, float | None]) -> Path:
    """Write the step file of a trial: the time of each step, and how long it waited."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"v": 1, "pid": 4711, "clock": "monotonic", "start_s": 100.0, "source": "step"}
    lines = [{"k": "step", "t_s": t_s, "wait_s": wait_s, "samples": 8} for t_s, wait_s in steps]
    (folder / "steps.4711.0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (header, *lines)))
    return folder


def test_each_tenth_of_a_second_has_the_step_under_way(tmp_path: Path) -> None:
    """A step of 0.4 s counts four times, one of 50 ms is a part of its tenth; waits go with their steps."""
    folder = write_steps(tmp_path, (100.0, None), (100.4, 0.1), (100.45, 0.0), (100.5, None), (100.6, 0.05))
    series = step_series(folder)
    assert series["step_ms"] == pytest.approx([400.0, 400.0, 400.0, 400.0, 50.0, 100.0])
    assert series["wait_ms"] == pytest.approx([100.0, 100.0, 100.0, 100.0, 0.0, 50.0])
    assert series["gpu"] == [None] * 6


def test_the_gpu_is_what_its_driver_said(tmp_path: Path) -> None:
    """Windows that reach beyond the steps count as far as they lie among them."""
    folder = write_steps(tmp_path, *((100.0 + 0.1 * place, None) for place in range(11)))
    windows = [[100.2, 0.4, 1.0], [100.6, 0.2, 0.5]]
    line = {"k": "busy", "t_s": 100.7, "uuid": "GPU-1", "source": "samples", "windows": windows}
    (folder / "samples.jsonl").write_text(json.dumps(line) + "\n{torn")
    series = step_series(folder)
    assert series["gpu"] == [1.0, 1.0, None, None, 0.5, 0.5, None, None, None, None]


def test_an_hour_is_shown_as_its_last_minute(tmp_path: Path) -> None:
    """And where nothing is kept, or one step, there is nothing to show."""
    series = step_series(write_steps(tmp_path / "long", *((100.0 + 0.5 * place, 0.0) for place in range(1000))))
    assert len(series["step_ms"]) == len(series["gpu"]) == LONGEST_S * PER_S
    assert step_series(write_steps(tmp_path / "short", (100.0, None))) is None
    assert step_series(tmp_path / "gone") is None
