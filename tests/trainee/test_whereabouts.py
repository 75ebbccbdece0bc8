"""The line of the trainer's own that its loop stays in, sampled in the trial of a diagnosis."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.records import WHEREABOUTS_VARIABLE
from tests.trainee.conftest import Observed

RESTING = """\
import json
import time

from autotune.trainee import step


def rest():
    json.loads("1")
    time.sleep(0.2)


for number in range(1, 60):
    time.sleep(0.001)
    if number % 10 == 0:
        rest()
    step(samples=1)
"""


@pytest.mark.parametrize("asked", [True, False])
def test_a_line_that_the_loop_stays_in_is_told_with_its_time(
    run: Callable[..., Observed], tmp_path: Path, asked: bool
) -> None:
    """Each stay once it is over, in the innermost line of the trainer's; only where that is wanted."""
    (tmp_path / "train.py").write_text(RESTING)
    seen = run(sys.executable, tmp_path / "train.py", **({WHEREABOUTS_VARIABLE: "1"} if asked else {}))
    stays = [event for event in seen.kind("cost") if event.place == f"{tmp_path}/train.py:9 rest"]
    assert len(stays) == (5 if asked else 0)
    assert all(event.cost == "stay" and (event.duration_s or 0.0) > 0.1 for event in stays)
    assert len(seen.kind("step")) == 59
