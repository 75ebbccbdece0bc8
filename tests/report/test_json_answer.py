"""The object that scripts read."""

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.metrics import GPU_METRICS
from autotune.records import Change, SearchResult, Side, Verdict
from autotune.report.json_answer import answer_document
from autotune.stage_times import PipelineTimes, StageTimes
from tests.report.conftest import BASELINE, BEST, MakeResult, on_gpus, pooled_gpu

PROMISED = {
    "format", "verdict", "baseline", "best", "candidate", "speedup", "score_ratio", "trials", "outcomes", "elapsed_s",
    "study", "paths",
}  # fmt: skip
BESIDES = {
    "why", "objective", "smallest_gain", "gain_of_ten_minutes", "same_training", "changes", "why_no_gpu", "cautions",
    "validation", "race", "why_not_raced", "may_learn_more_slowly", "confirmed_on", "broken", "diff", "interrupted",
    "answer", "search",
}  # fmt: skip


def _document(result: SearchResult, elapsed_s: float | None = 1700.5) -> dict[str, Any]:
    """As a script gets it: through JSON."""
    document = answer_document(result, elapsed_s=elapsed_s, study="config-1", paths={"journal": "/j"})
    read: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return read


def test_all_promised_keys_are_there_and_no_unknown_ones(search_result: MakeResult) -> None:
    """Also where they have nothing to say: absent is null, not missing."""
    nothing = search_result(
        verdict=Verdict.NO_BASELINE, baseline=None, best=None, speedup=None, score_ratio=None, smallest_gain=None,
        same_training=None, changes=(), outcomes={},
    )  # fmt: skip
    for result in (search_result(), nothing):
        assert set(_document(result)) == PROMISED | BESIDES
    document = _document(nothing, elapsed_s=None)
    assert {key for key, value in document.items() if value is None} == {
        "baseline", "best", "candidate", "speedup", "score_ratio", "smallest_gain", "gain_of_ten_minutes",
        "same_training", "elapsed_s", "why_no_gpu", "validation", "race", "diff", "interrupted", "answer",
    }  # fmt: skip


def test_a_better_config(search_result: MakeResult) -> None:
    """Values by key path with their YAML types, metrics by name, ratios with their intervals."""
    document = _document(search_result())
    assert (document["format"], document["verdict"]) == (2, "better")
    assert document["best"]["values"] == BEST
    assert document["baseline"]["values"] == BASELINE
    assert document["baseline"]["values"]["train.xla"] is False
    assert document["best"]["metrics"]["samples_per_s"] == 100.0
    assert document["best"]["metrics"]["gpu_utilization"] is None
    assert document["speedup"] == {"ratio": 2.0, "low": 1.9, "high": 2.1}
    assert (document["trials"], document["outcomes"]) == (20, {"stopped": 19, "crashed": 1})
    assert (document["elapsed_s"], document["study"], document["paths"]) == (1700.5, "config-1", {"journal": "/j"})
    assert document["changes"][0] == {
        "path": "data.batch_size", "old": 8, "new": 32, "worth": 1.43, "group": 0, "label": "batch",
        "worth_low": 1.31, "worth_high": 1.57,
        "effective_batch": "The effective batch changes from 8 to 32", "along": [],
    }  # fmt: skip
    assert document["same_training"]["values"]["data.cache"] == "memory"
    assert document["same_training"]["speedup"] == 1.4


def test_a_change_of_unknown_worth_has_nulls(search_result: MakeResult) -> None:
    """The three keys are there, whatever is known."""
    change = Change(path="a", old=1, new=2, worth=None, group=0, label="batch")
    (written,) = _document(search_result(changes=(change,)))["changes"]
    assert (written["worth"], written["worth_low"], written["worth_high"]) == (None, None, None)


def test_no_baseline_has_no_metrics_of_it(search_result: MakeResult) -> None:
    """Today's values are known although they gave no numbers."""
    result = search_result(
        verdict=Verdict.NO_BASELINE, baseline=Side(point="p", values=BASELINE, metrics=None), speedup=None
    )
    document = _document(result)
    assert document["baseline"] == {"values": BASELINE, "metrics": None, "gpus": None, "stages": None}
    assert document["speedup"] is None


def test_the_stages_of_a_pipeline_are_there(search_result: MakeResult) -> None:
    """Means and shares, which say which device waits for which."""
    data = StageTimes(batches=100, busy_s=5.0, input_s=0.0, room_s=5.0)
    times = PipelineTimes(passed_s=10.0, data=data, model=StageTimes(batches=100, busy_s=8.0, input_s=2.0, room_s=0.0))
    stages = _document(search_result(best=replace(search_result().best, stages=times)))["best"]["stages"]
    assert stages.pop("verdict") == times.verdict()
    assert stages == {
        "features_s": 0.05,
        "step_s": 0.08,
        "bound_batches_per_s": 12.5,
        "reached_fraction": pytest.approx(0.8),
        "waiting_for_host_fraction": 0.0,
        "waiting_for_features_fraction": 0.2,
    }


def test_gpus_are_there_device_by_device(search_result: MakeResult) -> None:
    """With the words that people read, the verdict and every figure; what is not known is null."""
    gpu = pooled_gpu("91 % flat", 0.91, samples=96, covered_fraction=0.98)
    best = on_gpus(search_result().best, gpu, effective_utilization=0.88, gpu_utilization=0.91)
    document = _document(search_result(best=best, why_no_gpu=None, cautions=("it was warm",)))
    assert document["baseline"]["gpus"] is None
    gpus = document["best"]["gpus"]
    assert (gpus["effective_utilization"], gpus["utilization"]) == (0.88, None)
    (device,) = gpus["devices"]
    words = {"uuid", "name", "scored", "role", "reference", "against_reference", "text", "verdict", "meaning"}
    assert set(device) == (set(GPU_METRICS) - {"effective_utilization"}) | words
    assert (device["text"], device["verdict"], device["utilization"], device["period_s"]) == (
        "91 % flat", "flat", 0.91, None,
    )  # fmt: skip
    assert (document["objective"], document["cautions"]) == ("effective_utilization", ["it was warm"])
