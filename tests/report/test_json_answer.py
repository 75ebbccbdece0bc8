"""The object that scripts read: the files beside this module hold format 2 as it is promised."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TrialError
from autotune.records import (
    BrokenPoint,
    Change,
    Learning,
    LossDifference,
    Race,
    Raced,
    RankMeasurement,
    Ratio,
    SearchResult,
    Side,
    Validation,
    Verdict,
)
from autotune.report.json_answer import answer_document
from autotune.stage_times import PipelineTimes, StageTimes
from tests.report.conftest import BASELINE, MakeResult, on_gpus, pooled_gpu

LOSSES = LossDifference(today=3.12, other=2.95, low=-0.21, high=-0.12)


def _everything(result: SearchResult) -> dict[str, Any]:
    """Two GPUs' worth of figures, stages, a race, a validation, and a change whose worth is not known."""
    data = StageTimes(batches=100, busy_s=5.0, input_s=0.0, room_s=5.0)
    stages = PipelineTimes(passed_s=10.0, data=data, model=StageTimes(batches=100, busy_s=8.0, input_s=2.0, room_s=0.0))
    ranks = tuple(RankMeasurement(number=number, node="n1", step_s=0.1, data_wait_fraction=0.3) for number in range(2))
    gpu = pooled_gpu("91 % flat", 0.91, samples=96, covered_fraction=0.98)
    best = on_gpus(result.best, gpu, effective_utilization=0.88, gpu_utilization=0.91)
    raced = Raced(learning=Learning.FASTER, at_equal_time=LOSSES, learning_speed=1.5)
    broke = Validation(trained_s=12.0, broke=("crashed",))
    unknown = Change(path="a", old=1, new=2, worth=None, group=2, label="batch")
    return {
        "best": replace(best, stages=replace(stages), ranks=ranks),
        "changes": (*result.changes, unknown),
        "race": Race(winner=raced, scaled=raced, trained_s=9.0, pairs=2, learning_rate_key="lr", learning_rate=0.2),
        "validation": Validation(trained_s=65.0, epoch_ends=2),
        "broken": (BrokenPoint(changes={"a": 1}, speedup=Ratio(ratio=2.5, low=2.4, high=2.6), validation=broke),),
        "cautions": ("it was warm",),
    }


def _nothing(_result: SearchResult) -> dict[str, Any]:
    """Today's values are known although they gave no numbers; absent is null, not missing."""
    unknown = dict.fromkeys(("best", "speedup", "score_ratio", "smallest_gain", "same_training"))
    baseline = Side(point="p", values=BASELINE, metrics=None)
    return {"verdict": Verdict.NO_BASELINE, "baseline": baseline, "changes": (), "outcomes": {}, **unknown}


@pytest.mark.parametrize("changes", [_everything, _nothing])
def test_a_script_finds_what_format_2_promises(search_result: MakeResult, changes: Any) -> None:
    """As in its file, which is written anew where WRITE_SCREENS is set: then see that no key has gone."""
    result = search_result(**changes(search_result()))
    document = answer_document(result, elapsed_s=1700.5, study="config-1", paths={"journal": "/j"})
    written = json.dumps(document, allow_nan=False, indent=1, sort_keys=True) + "\n"
    file = Path(__file__).parent / "documents" / f"answer{changes.__name__}.json"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text(written)
    assert json.loads(written) == json.loads(file.read_text())


def test_an_error_stands_beside_what_was_found(search_result: MakeResult) -> None:
    """Where one ended the search before its time."""
    error = TrialError("none worked", where="/trials", remedy="Look there.")
    document = answer_document(search_result(), elapsed_s=None, study="s", paths={}, ended_by=error)
    assert document["error"] == {
        "kind": "trial", "message": "none worked", "where": "/trials", "remedy": "Look there.",
    }  # fmt: skip
