"""Screen of a diagnosis: the verdict, the issues with what to do, and what was looked at without finding any."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.diagnose.diagnosis import CHECKS
from autotune.diagnose.findings import (
    NO_LIMIT,
    CheckResult,
    Diagnosis,
    Evidence,
    Issue,
    Recommendation,
    Severity,
    ratio_text,
)
from autotune.messages import Language, Message, _, translated
from autotune.report.json_answer import FORMAT
from autotune.report.plain_text import value_text
from autotune.space.knob import Label

_SEVERITIES = {
    Severity.ERROR: (_("error"), "bold red"),
    Severity.WARNING: (_("warning"), "yellow"),
    Severity.NOTE: (_("note"), "dim"),
}
_LABELS: Mapping[str, Message] = {
    Label.SAME_TRAINING: _("same training"),
    Label.BATCH: _("batch"),
    Label.PRECISION: _("precision"),
    Label.UNKNOWN: _("unknown"),
}
_COLUMNS = (_("change"), _("gain"), _("training"), _("cost"))


def print_diagnosis(console: Console, diagnosis: Diagnosis, language: Language = Language.ENGLISH) -> None:
    """Print a diagnosis.

    Args:
        console: Where to.
        diagnosis: What was found.
        language: Language of its sentences; what others have said, as a driver or the trainer, stays as it is.
    """

    def say(text: str, style: str = "") -> None:
        console.print(Text(translated(text, language), style=style))

    say(diagnosis.verdict.sentence, "bold")
    if diagnosis.issues:
        console.print()
    for issue in diagnosis.issues:
        if issue.sentence not in diagnosis.verdict.sentence:
            _print_issue(console, issue, language)
    if recommendations := diagnosis.recommendations:
        console.print()
        say(_("What to do, the most certain gain first"), "bold")
        if language is Language.ENGLISH:
            console.print(_table(recommendations))
        else:
            _print_one_by_one(console, recommendations, language)
    looked = [result for result in diagnosis.results if not result.issues]
    if looked:
        console.print()
        say(_("Looked at as well"), "bold")
    for result in looked:
        question = _question(result)
        outcome = result.sentence or _("{question} Nothing was found.", question=question)
        if result.why_not:
            outcome = _("not seen: {why}", why=result.why_not)
        say(_("  {check}: {outcome}", check=result.check, outcome=outcome), "dim")


def _question(result: CheckResult) -> str:
    return next(check.question for check in CHECKS if check.id == result.check)


def _print_issue(console: Console, issue: Issue, language: Language) -> None:
    severity, style = _SEVERITIES[issue.severity]
    line = Text()
    line.append(f"{translated(severity, language)} ", style=style)
    line.append(f"[{issue.check}: {issue.rule}] " if issue.rule else f"[{issue.check}] ", style="dim")
    line.append(translated(issue.sentence, language))
    if issue.place and issue.place not in issue.sentence:
        line.append(f" ({issue.place})", style="dim")
    console.print(line)


def _table(recommendations: tuple[Recommendation, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    change, gain, training, cost = _COLUMNS
    table.add_column(change, ratio=3, overflow="fold")
    table.add_column(gain, no_wrap=True)
    table.add_column(training, no_wrap=True)
    table.add_column(cost, overflow="fold")
    for one in recommendations:
        table.add_row(Text(_change(one)), Text(_gain(one)), Text(one.label), Text(one.cost))
    return table


def _print_one_by_one(console: Console, recommendations: tuple[Recommendation, ...], language: Language) -> None:
    """Print recommendations as sentences: columns of a table would change places in a line of mixed directions."""
    gain, training, cost = _COLUMNS[1:]
    for one in recommendations:
        parts = [_change(one), _("{name}: {text}", name=gain, text=_gain(one))]
        parts.append(_("{name}: {text}", name=training, text=_LABELS[one.label]))
        if one.cost:
            parts.append(_("{name}: {text}", name=cost, text=one.cost))
        console.print(Text("\n    ".join(translated(part, language) for part in parts)))


def _change(one: Recommendation) -> str:
    values = ", ".join(f"{path}: {value_text(value)}" for path, value in one.values.items())
    if not values or values in one.sentence:
        return one.sentence
    return _("{values} ({sentence})", values=values, sentence=one.sentence)


def _gain(one: Recommendation) -> Message:
    if one.gain is None:
        return _("not tried")
    if one.evidence is Evidence.MEASURED:
        return ratio_text(one.gain)
    if one.gain.high > NO_LIMIT:
        return _("no longer the limit")
    return _("at most {gain}", gain=f"{one.gain.high:.2f}x")


# Diagnosis as one JSON object, for scripts.


def diagnosis_document(
    diagnosis: Diagnosis, *, elapsed_s: float | None, failed_on: str | None, paths: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the object of ``diagnose --json``.

    Args:
        diagnosis: What was found.
        elapsed_s: Time that it took, in seconds; None where that is not told.
        failed_on: The condition of ``--fail-on``, if it holds; else None.
        paths: Files and folders, by purpose.
    """
    return {
        "format": FORMAT,
        "verdict": asdict(diagnosis.verdict),
        "checks": [
            {
                "id": result.check,
                "question": _question(result),
                "issues": [asdict(issue) for issue in result.issues],
                "sentence": result.sentence or None,
                "why_not": result.why_not or None,
            }
            for result in diagnosis.results
        ],
        "recommendations": [asdict(one) for one in diagnosis.recommendations],
        "failed_on": failed_on,
        "elapsed_s": elapsed_s,
        "paths": dict(paths),
    }
