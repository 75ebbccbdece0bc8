"""One search whose points end in every way that a trainer has: their endings, and that it goes on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.records import Ending, Validity
from tests.toys.moody_trainer import MOODS

TRAINER = Path(__file__).parents[1] / "toys" / "moody_trainer.py"
CONFIG = f"""\
mood: well
autotune:
  command: "{{python}} '{TRAINER}' {{config}}"
  knobs: {{mood: {json.dumps([*MOODS])}}}
  trial: {{start_timeout_s: 5, min_s: 0.5, min_steps: 20, max_s: 1}}
"""
ENDS = {
    "well": (Ending.STOPPED, Validity.GOOD, ""),
    "slow": (Ending.STOPPED, Validity.NOT_STEADY, "far behind the fastest"),
    "no number": (Ending.DIVERGED, Validity.NOT_STEADY, "NaN or infinite"),
    "far off": (Ending.DIVERGED, Validity.NOT_STEADY, "its loss grew far above today's at the same step"),
    "short": (Ending.COMPLETED, Validity.NOT_STEADY, ""),
    "late": (Ending.NEVER_STARTED, Validity.UNMEASURED, ""),
    "crashes": (Ending.CRASHED, Validity.NOT_STEADY, "ValueError: there is no such layer"),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results in the folders of the search's trials, in order."""
    project = tmp_path_factory.mktemp("project")
    (project / "config.yaml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", "100s", "--json"],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"]["values"] == {"mood": "well"}
    return [json.loads(result.read_text()) for result in sorted(project.glob(".autotune/trials/*/*/result.json"))]


@pytest.mark.parametrize("mood", ENDS)
def test_an_ending_as_a_search_meets_it(trials: list[dict[str, Any]], mood: str) -> None:
    """Each ending has its name and its detail, and counts as far as it was measured."""
    ending, validity, detail = ENDS[mood]
    trial = next(trial for trial in trials if trial["values"]["mood"] == mood)
    assert (trial["ending"], trial["validity"]) == (ending, validity), trial["detail"]
    assert detail in trial["detail"]
