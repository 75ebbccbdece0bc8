"""One search whose points end in every way that a trainer has: their endings, and that it goes on."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.records import Ending, Validity
from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, project_in

MOODS = {
    "well": Training(samples=8, step_s=0.05, noise=0.02, loss=1.0),
    "slow": Training(samples=8, step_s=2.5),
    "no number": Training(samples=8, step_s=0.05, loss=lambda step: 1.0 if step < 10 else math.nan),
    "far off": Training(samples=8, step_s=0.05, loss=lambda step: 1.0 + 1.2**step),
    "short": Training(samples=8, step_s=0.05, steps=3),
    "late": Training(start_s=math.inf),
    "crashes": Training(samples=8, step_s=0.05, steps=3, exit_code=1, stderr="ValueError: there is no such layer\n"),
}
CONFIG = f"""\
mood: well
autotune:
  command: "{{python}} train.py {{config}}"
  knobs: {{mood: {json.dumps([*MOODS])}}}
  trial: {{start_timeout_s: 60, min_s: 2, min_steps: 20, max_s: 4}}
"""
ENDS = {
    "well": (Ending.STOPPED, Validity.GOOD, ""),
    "slow": (Ending.STOPPED, Validity.NOT_STEADY, "far behind the fastest"),
    "no number": (Ending.DIVERGED, Validity.NOT_STEADY, "NaN or infinite"),
    "far off": (Ending.DIVERGED, Validity.NOT_STEADY, "its loss grew far above today's at the same step"),
    "short": (Ending.COMPLETED, Validity.NOT_STEADY, ""),
    "late": (Ending.HUNG, Validity.UNMEASURED, ""),
    "crashes": (Ending.CRASHED, Validity.NOT_STEADY, "ValueError: there is no such layer"),
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """Project with that search."""

    def trainer(config: Mapping[str, Any]) -> Training:
        return MOODS[config["mood"]]

    commands = project_in(tmp_path_factory.mktemp("project"), trainer, CONFIG)
    answer = commands.search("--json", budget="10m").document
    assert answer["best"]["values"] == {"mood": "well"}
    assert answer["outcomes"]["crashed"] == 1
    return commands


@pytest.mark.parametrize("mood", ENDS)
def test_an_ending_as_a_search_meets_it(searched: CommandLine, mood: str) -> None:
    """Each ending has its name and its detail, and counts as far as it was measured."""
    ending, validity, detail = ENDS[mood]
    results = sorted(searched.folder.glob(".autotune/trials/*/*/result.json"))
    trials = [json.loads(result.read_text()) for result in results]
    trial = [trial for trial in trials if trial["values"]["mood"] == mood][-1]
    assert (trial["ending"], trial["validity"]) == (ending, validity), trial["detail"]
    assert detail in trial["detail"]
