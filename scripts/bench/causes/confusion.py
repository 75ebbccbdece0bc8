"""Report of the benchmark of causes: the confusion table, the shares, and each verdict that is wrong."""

from collections.abc import Mapping, Sequence

from autotune.diagnose.findings import Limit
from scripts.bench.causes.cases import HEALTHY, Outcome, score_of
from scripts.bench.markdown import markdown_table

_NONE = "no verdict"


def report_of(outcomes: Sequence[Outcome], why_not: Mapping[str, str], *, command: str) -> str:
    """Return the whole report, in Markdown.

    Args:
        outcomes: Outcomes of the cases that were run.
        why_not: Cases that have no outcome, with the reason.
        command: The command that makes it.
    """
    parts = [f"`{command}`", _shares(outcomes), _confusion(outcomes), _each(outcomes)]
    if why_not:
        parts.append("Without an outcome: " + "; ".join(f"{name} ({why})" for name, why in why_not.items()) + ".")
    return "\n\n".join(part for part in parts if part) + "\n"


def _shares(outcomes: Sequence[Outcome]) -> str:
    rows = []
    real = [one for one in outcomes if one.case.is_real]
    simulated = [one for one in outcomes if not one.case.is_real]
    for kind, some in (("real", real), ("simulated", simulated), ("all", outcomes)):
        if some:
            score = score_of(some)
            rows.append(
                (kind, _share(score.right, score.cases), _share(score.false_alarms, score.healthy)),
            )
    return markdown_table(("cases", "right verdict, of those with a cause", "false alarms, of healthy ones"), rows)


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "none"


def _confusion(outcomes: Sequence[Outcome]) -> str:
    limits = [limit for limit in Limit if any(one.limit is limit for one in outcomes)]
    names = [str(limit.value) for limit in limits]
    if any(one.limit is None for one in outcomes):
        names.append(_NONE)
    causes = sorted({one.case.cause for one in outcomes}, key=lambda cause: (cause == HEALTHY, cause))
    rows = []
    for cause in causes:
        some = [one for one in outcomes if one.case.cause == cause]
        told = [one.limit.value if one.limit else _NONE for one in some]
        right = {one.limit.value for one in some if one.limit and one.is_right}
        cells = [f"**{told.count(name)}**" if name in right else str(told.count(name) or "") for name in names]
        rows.append((cause, *cells))
    return markdown_table(("cause, and the limit that the verdict names", *names), rows)


def _each(outcomes: Sequence[Outcome]) -> str:
    rows = [
        (
            one.case.name,
            " or ".join(sorted(limit.value for limit in one.case.expected)),
            "right" if one.is_right else "**wrong**",
            one.sentence.replace("|", "/").replace("\n", " "),
        )
        for one in outcomes
    ]
    return markdown_table(("case", "expected", "", "verdict"), rows)
