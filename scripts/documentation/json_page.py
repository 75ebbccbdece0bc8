"""Reference page of the JSON objects: their keys, from the functions that build them and the records they hold."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autotune import records
from autotune.config.keys import listed
from autotune.diagnose import findings
from autotune.metrics import GPU_METRICS
from autotune.records import GpuFigures, SearchResult, Validation, Verdict
from autotune.report.diagnosis import diagnosis_document
from autotune.report.json_answer import answer_document
from scripts.documentation.docstrings import described
from scripts.documentation.tables import code

_LEFT_OUT = ("point", "figures")  # of records; the keys of figures are at the level of the other fields
_SPECIAL = {
    "format": "Version of the format, 2; it changes if a key is removed or changes its meaning.",
    "verdict": "`better`, `steadier` (as fast, with steadier steps or a busier GPU), `no_change`, `not_confirmed` "
    "(fewer than two pairs), or `no_baseline` (it has no measurement).",
    "why": "Reason for the verdict, in words.",
    "may_learn_more_slowly": "True if the answer changes the training and no race has shown that it converges as fast, "
    "or if the race shows overfitting.",
    "elapsed_s": "Seconds that the search took; null for an answer from the record.",
    "study": "Name of the study.",
    "diff": "Their diff, or null.",
    "paths": "`journal` (null with a database), `storage`, `trials`, and from a search `events`.",
    "outcomes": "Number of its trials with each [ending](endings.md).",
    "rules": "With `status --why`: `rule`, `inputs` and `result` of each rule behind the verdict.",
}


@dataclass(frozen=True)
class _Record:
    """Record that is an object in JSON.

    Attributes:
        further: Additional keys, or other meanings of its fields.
        brief: A text that names all its keys; a table of them if empty.
    """

    heading: str
    kind: type
    further: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    brief: str = ""


_OF_FIGURES = [name for name in ("uuid", "name", *GPU_METRICS) if name in described(GpuFigures)]

_STAGES = (
    "features_s", "step_s", "bound_batches_per_s", "reached_fraction", "waiting_for_host_fraction",
    "waiting_for_features_fraction", "verdict",
)  # fmt: skip

_RECORDS = (
    _Record(
        "A side: `baseline`, `best`, `candidate`, `same_training`",
        records.Side,
        {
            "metrics": ("object?", "[Medians](metrics.md) over the trials."),
            "stages": ("object?", f"Two stages on two devices: {listed([code(name) for name in _STAGES], 'and')}."),
            "speedup": ("number", "Only in `same_training`: its speed over the baseline's."),
        },
    ),
    _Record(
        "A ratio",
        records.Ratio,
        brief="`speedup`, `score_ratio`, bounds and gains hold the `ratio`, and the ends of its 95 % interval, `low` "
        "and `high`.",
    ),
    _Record(
        "One of `changes`",
        records.Change,
        {
            "worth": ("number?", described(records.Change)["worth"]),
            "worth_low, worth_high": ("number?", "Ends of its 95 % interval."),
            "along": ("list", "Further keys that change with it, if known: `path`, `old`, `new`."),
        },
    ),
    _Record(
        "`data` and `same_training_data`",
        records.DataFinding,
        brief=f"`effect` is {listed([code(effect.value) for effect in records.DataEffect], 'or')}; `evidence` is the "
        "reason.",
    ),
    _Record(
        "`whole`",
        records.WholeTraining,
        brief="`speedup` is a ratio, null if no pause was seen; `seen` lists the kinds of pause: "
        f"{listed([code(kind) for kind in records.PAUSE_NOUNS], 'or')}.",
    ),
    _Record(
        "`achieved`",
        records.Achieved,
        brief="Speed of real trainings over the baseline's: of their `steps`, and of the `whole` with pauses (null if "
        "unknown), over `counted_s` seconds with the share `pause_fraction` in pauses. `point` names the values, and "
        "`is_same_training` is true for those of the answer that leaves the training unchanged. `claimed` is the ratio "
        "of the confirmation, for steps only; `outcome` is `less`, `as` or `more` than that. `trainings` has one "
        "object per training. `claims_sd` is the error of the study's claims beyond their intervals, as a standard "
        "deviation of ln speed.",
    ),
    _Record("`gpus` of a side", records.PooledGpus),
    _Record(
        "One of `devices` of `gpus`",
        records.PooledGpu,
        {", ".join(_OF_FIGURES): ("number or string?", "See [the metrics of a GPU](metrics.md#of-a-gpu).")},
    ),
    _Record("One of `ranks`", records.RankMeasurement),
    _Record("`validation`", Validation),
    _Record("`race`", records.Race, {"proposed": ("object?", "Proposed learning rate: `path` and `value`.")}),
    _Record(
        "`winner` and `scaled` of a race",
        records.Raced,
        {"learning": ("string", f"{listed([code(one.value) for one in records.Learning], 'or')}.")},
    ),
    _Record(
        "`at_equal_time`, `at_equal_samples` and `held_out`",
        records.LossDifference,
        brief="Mean losses of `today`'s config and of the `other` one, and the ends of the 97.5 % interval of their "
        "difference, `low` and `high`.",
    ),
    _Record(
        "One of `broken`",
        records.BrokenPoint,
        brief="`changes` holds the values that differ from the baseline's, `speedup` the ratio (null with too few "
        "pairs), and `validation` the findings.",
    ),
    _Record("`answer`", records.ChangeSet, {"id": ("string", "Hash of its content, for `apply --answer`.")}),
    _Record("One of `keys` of an answer", records.KeyChange),
)
_DIAGNOSIS = (
    _Record(
        "`verdict` of a diagnosis",
        findings.DiagnosisVerdict,
        brief="`sentence` names the limit and the first thing to do; `limit` is null without trials; `bound` is the "
        "speed ratio if the limit cost nothing, null if unknown.",
    ),
    _Record("One of `issues` of a check", findings.Issue),
    _Record("One of `shares`", findings.TimeShare),
    _Record("One of `recommendations`", findings.Recommendation),
)


def json_page() -> str:
    """Return the page."""
    return "\n\n".join(
        (
            "# Keys of the JSON objects",
            "Look up a key of `search --json`, `status --json` and `diagnose --json`. Fractions are 0 to 1. A value "
            "whose type ends in `?` is null if unknown or missing. [JSON and exit codes](../json.md) describes errors "
            "and the objects of other commands.",
            "## Search and status",
            _list(_answer()),
            "More on the [confirmation](../how-it-decides.md#the-confirmation), [whole "
            "training](../how-it-decides.md#whole-training), [achieved "
            "speed](../how-it-decides.md#claimed-and-achieved), [validation](../how-it-decides.md#the-validation) and "
            "[race](../how-it-decides.md#the-race).",
            *(part for record in _RECORDS for part in _part(record)),
            "## Diagnosis",
            _list(_diagnosis()),
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
    rows = [(code(key), _of_json(meanings[key])) for key in (*keys, "rules")]
    return [*rows, (code("error"), _of_json(described(answer_document, "Args")["ended_by"]))]


def _diagnosis() -> list[tuple[str, str]]:
    empty = findings.Diagnosis(verdict=findings.DiagnosisVerdict(sentence=""), results=())
    keys = diagnosis_document(empty, elapsed_s=None, failed_on=None, paths={})
    meanings = {
        "format": _SPECIAL["format"],
        "verdict": described(findings.Diagnosis)["verdict"],
        "shares": described(findings.Diagnosis)["shares"],
        "checks": "One object per [check](checks.md): `id`, `question`, `issues`, `sentence`, `why_not`.",
        "recommendations": "All recommendations, the most certain gain first.",
        "failed_on": "The condition of `--fail-on` that holds, or null.",
        "elapsed_s": "Seconds that it took; missing with `--out`.",
        "paths": "Files and folders, by purpose.",
    }
    return [(code(key), _of_json(meanings[key])) for key in keys]


def _part(record: _Record) -> tuple[str, str]:
    assert is_dataclass(record.kind), "records are dataclasses"
    meanings, kinds = described(record.kind), get_type_hints(record.kind)
    names = [one.name for one in fields(record.kind) if one.name not in _LEFT_OUT]
    if record.brief:
        assert all(code(name) in record.brief for name in names), f"{record.heading}: the text names every key"
        return f"### {record.heading}", record.brief
    rows = {name: record.further.get(name) or (_type(kinds[name]), meanings[name]) for name in names}
    described_keys = [
        (f"{', '.join(map(code, keys.split(', ')))} ({kind})", _of_json(meaning))
        for keys, (kind, meaning) in (rows | record.further).items()
    ]
    return f"### {record.heading}", _list(described_keys)


def _list(keys: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"* {key}: {meaning}" for key, meaning in keys)


def _of_json(text: str) -> str:
    """Return a description with the names of JSON values."""
    return re.sub(r"\bNone\b", "null", text)


def _type(kind: Any) -> str:
    """Return the name of a type in JSON."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if {bool, str} <= set(get_args(kind)):
            return "any value"
        named = dict.fromkeys(_type(one) for one in get_args(kind) if one is not NoneType)
        return " or ".join(named) + "?" * (NoneType in get_args(kind))
    if origin is Literal:
        return " or ".join(code(str(one)) for one in get_args(kind))
    if origin is tuple:
        return "list"
    if isinstance(kind, type) and issubclass(kind, str):
        return "string"
    if origin is None and isinstance(kind, type) and not is_dataclass(kind):
        return {bool: "boolean", int: "integer", float: "number"}.get(kind, "object")
    return "list" if "Sequence" in str(kind) else "object"
