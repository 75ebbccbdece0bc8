"""Answer of a search as a JSON object."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.errors import AutotuneError
from autotune.metrics import GPU_METRICS
from autotune.records import ChangeSet, PooledGpus, SearchResult, Side
from autotune.stage_times import PipelineTimes

FORMAT = 2
"""Format version of the object."""

_ERROR = ("kind", "message", "where", "remedy")


def answer_document(
    result: SearchResult,
    *,
    elapsed_s: float | None,
    study: str,
    paths: Mapping[str, str | None],
    answer: ChangeSet | None = None,
    diff: str | None = None,
    interrupted: str | None = None,
    ended_by: AutotuneError | None = None,
) -> dict[str, Any]:
    """Return the object of ``search --json`` and ``status --json``.

    Args:
        elapsed_s: None for an answer from the record.
        answer: Changes that ``apply`` would write.
        interrupted: Interrupt, in words.
        ended_by: Error that ended the search early.
    """
    document = asdict(result)
    del document["is_apart"]
    for name in ("baseline", "best", "candidate"):
        side = getattr(result, name)
        document[name] = _side(side) if side else None
    if result.same_training:
        document["same_training"] = {**_side(result.same_training[0]), "speedup": result.same_training[1]}
    # The format has the ratio and the ends of its interval as separate numbers.
    for change, worth in ((change, change["worth"] or {}) for change in document["changes"]):
        change |= {"worth": worth.get("ratio"), "worth_low": worth.get("low"), "worth_high": worth.get("high")}
    if result.race:
        proposed = result.race.proposed_rate
        document["race"]["proposed"] = {"path": proposed[0], "value": proposed[1]} if proposed else None
    return {
        "format": FORMAT,
        **document,
        "may_learn_more_slowly": result.may_learn_more_slowly,
        "elapsed_s": elapsed_s,
        "study": study,
        "answer": {"id": answer.id, **asdict(answer)} if answer else None,
        "diff": diff,
        "interrupted": interrupted,
        "paths": dict(paths),
        **({"error": {name: getattr(ended_by, name) for name in _ERROR}} if ended_by else {}),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "values": dict(side.values),
        "metrics": dict(side.metrics) if side.metrics else None,
        "gpus": _gpus(side.gpus) if side.gpus else None,
        "stages": _stages(side.stages) if side.stages else None,
        "ranks": [asdict(rank) for rank in side.ranks],
    }


def _stages(times: PipelineTimes) -> dict[str, Any]:
    return {
        "features_s": times.features_s,
        "step_s": times.step_s,
        "bound_batches_per_s": times.bound,
        "reached_fraction": times.reached,
        "waiting_for_host_fraction": times.data.input_s / times.passed_s,
        "waiting_for_features_fraction": times.model.input_s / times.passed_s,
        "verdict": times.verdict(),
    }


def _gpus(gpus: PooledGpus) -> dict[str, Any]:
    words = ("uuid", "name", "scored", "role", "reference", "against_reference", "text", "verdict", "meaning")
    names = [name for name in (*words, *GPU_METRICS) if name != "effective_utilization"]
    return {**asdict(gpus), "devices": [{name: device.value(name) for name in names} for device in gpus.devices]}
