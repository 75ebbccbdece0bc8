"""Answer of a search as one JSON object, for scripts."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.errors import AutotuneError
from autotune.metrics import GPU_METRICS
from autotune.records import Change, ChangeSet, PooledGpus, Race, Raced, SearchResult, Side
from autotune.stage_times import PipelineTimes

FORMAT = 2
"""Format version of the object."""

_WORDS = (  # of a GPU, beside its numbers
    "uuid", "name", "scored", "role", "reference", "against_reference", "text", "verdict", "meaning",
)  # fmt: skip


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
        result: The answer.
        elapsed_s: Time that the search took, in seconds; None of an answer from the record.
        study: Name of the study.
        paths: Files and folders, by purpose.
        answer: What ``apply`` would write; None where there is nothing.
        diff: Change to the config that ``apply`` would make, as a diff; None where there is none.
        interrupted: What interrupted the search, in words; None if nothing did.
        ended_by: Error that ended the search before its time; None if none did.
    """
    same_training = result.same_training
    return {
        "format": FORMAT,
        "verdict": result.verdict.value,
        "why": result.why,
        "objective": result.objective,
        "baseline": _side(result.baseline),
        "best": _side(result.best),
        "candidate": _side(result.candidate),
        "speedup": asdict(result.speedup) if result.speedup else None,
        "score_ratio": asdict(result.score_ratio) if result.score_ratio else None,
        "smallest_gain": result.smallest_gain,
        "gain_of_ten_minutes": result.gain_of_ten_minutes,
        "same_training": {**_whole(same_training[0]), "speedup": same_training[1]} if same_training else None,
        "changes": [_change(change) for change in result.changes],
        "validation": asdict(result.validation) if result.validation else None,
        "race": _race(result.race) if result.race else None,
        "why_not_raced": result.why_not_raced,
        "may_learn_more_slowly": result.may_learn_more_slowly,
        "confirmed_on": list(result.confirmed_on),
        "broken": [asdict(point) for point in result.broken],
        "trials": result.trials,
        "outcomes": dict(result.outcomes),
        "elapsed_s": elapsed_s,
        "study": study,
        "why_no_gpu": result.why_no_gpu,
        "cautions": list(result.cautions),
        "search": result.search,
        "answer": {"id": answer.id, **asdict(answer)} if answer else None,
        "diff": diff,
        "interrupted": interrupted,
        "paths": dict(paths),
        **({"error": _error(ended_by)} if ended_by else {}),
    }


def error_document(error: AutotuneError) -> dict[str, Any]:
    """Return the object that is printed instead when a command fails."""
    return error_object(kind=error.kind, message=error.message, where=error.where, remedy=error.remedy)


def error_object(*, kind: str, message: str, where: str | None, remedy: str | None) -> dict[str, Any]:
    """Return the error object for a failure without an `AutotuneError`: wrong usage, an interrupt."""
    return {"format": FORMAT, "error": {"kind": kind, "message": message, "where": where, "remedy": remedy}}


def _error(error: AutotuneError) -> dict[str, Any]:
    return {"kind": error.kind, "message": error.message, "where": error.where, "remedy": error.remedy}


def _change(change: Change) -> dict[str, Any]:
    """Return a change; what it is worth stands as a number, as ever, with its interval beside it."""
    worth = change.worth
    return {
        **asdict(change),
        "worth": worth.ratio if worth else None,
        "worth_low": worth.low if worth else None,
        "worth_high": worth.high if worth else None,
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    return _whole(side) if side else None


def _whole(side: Side) -> dict[str, Any]:
    return {
        "values": dict(side.values),
        "metrics": dict(side.metrics) if side.metrics else None,
        "gpus": _gpus(side.gpus) if side.gpus else None,
        "stages": _stages(side.stages) if side.stages else None,
    }


def _stages(times: PipelineTimes) -> dict[str, Any]:
    """Return the times of a pipeline over two devices, as shares and means."""
    return {
        "features_s": times.features_s,
        "step_s": times.step_s,
        "bound_batches_per_s": times.bound,
        "reached_fraction": times.reached,
        "waiting_for_host_fraction": times.data.input_s / times.passed_s,
        "waiting_for_features_fraction": times.model.input_s / times.passed_s,
        "verdict": times.verdict(),
    }


def _race(race: Race) -> dict[str, Any]:
    """Return a race; the learning rate that is proposed stands beside what was raced."""
    proposed = race.proposed_rate
    return {
        **asdict(race),
        "winner": _raced(race.winner),
        "scaled": _raced(race.scaled) if race.scaled else None,
        "proposed": {"path": proposed[0], "value": proposed[1]} if proposed else None,
    }


def _raced(raced: Raced) -> dict[str, Any]:
    return {**asdict(raced), "learning": raced.learning.value}


def _gpus(gpus: PooledGpus) -> dict[str, Any]:
    """Return the GPUs of a side; the figures of a device stand beside its other fields."""
    names = [name for name in (*_WORDS, *GPU_METRICS) if name != "effective_utilization"]
    return {**asdict(gpus), "devices": [{name: device.value(name) for name in names} for device in gpus.devices]}
