"""Reference page of the JSON objects: their keys, from the functions that build them and the records they hold."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autotune import records
from autotune.diagnose import findings
from autotune.metrics import GPU_METRICS
from autotune.records import GpuFigures, SearchResult, Validation, Verdict
from autotune.report.diagnosis import diagnosis_document
from autotune.report.json_answer import answer_document
from scripts.documentation.docstrings import described
from scripts.documentation.tables import code, table

_LEFT_OUT = ("point", "figures")  # of records; the keys of figures are at the level of the other fields
_SPECIAL = {
    "format": "Version of the format; it changes if a key is removed or changes its meaning.",
    "verdict": "`better`, `steadier`, `no_change`, or `no_baseline`: the baseline has no measurement.",
    "why": "Reason for the verdict, in words.",
    "may_learn_more_slowly": "True if the answer changes the training and no race has shown that it "
    "converges as fast, or if the race shows overfitting.",
}


@dataclass(frozen=True)
class _Record:
    """Record that is an object in JSON; `further` holds additional keys, or other meanings of its fields."""

    heading: str
    kind: type
    further: Mapping[str, tuple[str, str]] = field(default_factory=dict)


_OF_FIGURES = [name for name in ("uuid", "name", *GPU_METRICS) if name in described(GpuFigures)]

_RECORDS = (
    _Record(
        "A side: `baseline`, `best`, `candidate`, `same_training`",
        records.Side,
        {"speedup": ("number", "Only in `same_training`: its speed over the baseline's.")},
    ),
    _Record("A ratio: `speedup`, `score_ratio`, a bound, a gain", records.Ratio),
    _Record(
        "One of `changes`",
        records.Change,
        {
            "worth": ("number or null", described(records.Change)["worth"]),
            "worth_low": ("number or null", "Lower end of its 95 % interval."),
            "worth_high": ("number or null", "Upper end of its 95 % interval."),
        },
    ),
    _Record("One of `along` of a change", records.MovedKey),
    _Record("`gpus` of a side", records.PooledGpus),
    _Record(
        "One of `devices` of `gpus`",
        records.PooledGpu,
        {", ".join(_OF_FIGURES): ("number, string or null", "See [the metrics of a GPU](metrics.md#of-a-gpu).")},
    ),
    _Record("`validation`", Validation),
    _Record(
        "`race`",
        records.Race,
        {"proposed": ("object or null", "Proposed learning rate: `path` and `value`.")},
    ),
    _Record("`winner` and `scaled` of a race", records.Raced),
    _Record("`at_equal_time`, `at_equal_samples` and `held_out`", records.LossDifference),
    _Record("One of `broken`", records.BrokenPoint),
    _Record("`answer`", records.ChangeSet, {"id": ("string", "A hash of its content.")}),
    _Record("One of `keys` of an answer", records.KeyChange),
)
_DIAGNOSIS = (
    _Record("`verdict` of a diagnosis", findings.DiagnosisVerdict),
    _Record("One of `issues` of a check", findings.Issue),
    _Record("One of `shares` of a diagnosis", findings.TimeShare),
    _Record("A recommendation", findings.Recommendation),
)


def json_page() -> str:
    """Return the page."""
    return "\n\n".join(
        (
            "# Keys of the JSON objects",
            "[JSON and exit codes](../json.md) describes when each object is printed. Fractions are 0 to 1; unknown "
            "values are null. [Metrics](metrics.md) lists the `metrics` of a side.",
            "## `search --json`, `status --json`",
            table(("key", "meaning"), _answer()),
            *(part for record in _RECORDS for part in _part(record)),
            "## `diagnose --json`",
            table(("key", "meaning"), _diagnosis()),
            *(part for record in _DIAGNOSIS for part in _part(record)),
        )
    )


def _answer() -> list[tuple[str, str]]:
    result = SearchResult(
        verdict=Verdict.NO_BASELINE, why="", baseline=None, best=None, candidate=None, speedup=None, score_ratio=None,
        smallest_gain=None, same_training=None, trials=0, outcomes={}, changes=(),
    )  # fmt: skip
    keys = answer_document(result, elapsed_s=None, study="", paths={})
    meanings = {**described(SearchResult), **described(answer_document, "Args"), **_SPECIAL}
    rows = [(code(key), _of_json(meanings[key])) for key in keys]
    return [*rows, (code("error"), _of_json(described(answer_document, "Args")["ended_by"]))]


def _diagnosis() -> list[tuple[str, str]]:
    empty = findings.Diagnosis(verdict=findings.DiagnosisVerdict(sentence=""), results=())
    keys = diagnosis_document(empty, elapsed_s=None, failed_on=None, paths={})
    meanings = {
        **described(diagnosis_document, "Args"),
        "format": _SPECIAL["format"],
        "verdict": described(findings.Diagnosis)["verdict"],
        "shares": described(findings.Diagnosis)["shares"],
        "checks": "One object per [check](checks.md): `id`, `question`, `issues`, `sentence`, `why_not`.",
        "recommendations": "All recommendations, the most certain gain first.",
    }
    return [(code(key), _of_json(meanings[key])) for key in keys]


def _part(record: _Record) -> tuple[str, str]:
    assert is_dataclass(record.kind), "records are dataclasses"
    meanings, kinds = described(record.kind), get_type_hints(record.kind)
    rows = {
        one.name: (_type(kinds[one.name]), meanings[one.name])
        for one in fields(record.kind)
        if one.name not in _LEFT_OUT
    }
    cells = [
        (", ".join(map(code, keys.split(", "))), kind, _of_json(meaning))
        for keys, (kind, meaning) in {**rows, **record.further}.items()
    ]
    return f"### {record.heading}", table(("key", "type", "meaning"), cells)


def _of_json(text: str) -> str:
    """Return a description with the names of JSON values."""
    return re.sub(r"\bNone\b", "null", text)


def _type(kind: Any) -> str:
    """Return the name of a type in JSON."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if {bool, str} <= set(get_args(kind)):
            return "any value"
        named = [_type(one) for one in get_args(kind) if one is not NoneType]
        return " or ".join(dict.fromkeys((*named, *(["null"] if NoneType in get_args(kind) else []))))
    if origin is Literal:
        return " or ".join(code(str(one)) for one in get_args(kind))
    if origin is tuple:
        return "list"
    if isinstance(kind, type) and issubclass(kind, str):
        return "string"
    if origin is None and isinstance(kind, type) and not is_dataclass(kind):
        return {bool: "boolean", int: "integer", float: "number"}.get(kind, "object")
    return "list" if "Sequence" in str(kind) else "object"
