"""Screen of a diagnosis: the verdict, the issues with what to do, and what was looked at without finding any."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.diagnose.checks import CHECKS
from autotune.diagnose.findings import CheckResult, Diagnosis, Evidence, Issue, Recommendation, Severity
from autotune.diagnose.wording import ratio_text
from autotune.report.plain_text import value_text

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print a diagnosis.

    Args:
        console: Where to.
        diagnosis: What was found.
    """
    console.print(Text(diagnosis.verdict.sentence, style="bold"), soft_wrap=False)
    questions = {check.id: check.question for check in CHECKS}
    with_issues = [result for result in diagnosis.results if result.issues]
    if with_issues:
        console.print()
    for result in with_issues:
        for issue in result.issues:
            if issue.sentence not in diagnosis.verdict.sentence:
                _print_issue(console, issue)
    recommendations = diagnosis.recommendations
    if recommendations:
        console.print()
        console.print(Text("What to do, the most certain gain first", style="bold"))
        console.print(_table(recommendations))
    looked = [result for result in diagnosis.results if not result.issues]
    if looked:
        console.print()
        console.print(Text("Looked at as well", style="bold"))
        for result in looked:
            console.print(Text(f"  {result.check}: {_outcome(result, questions)}", style="dim"))


def _print_issue(console: Console, issue: Issue) -> None:
    line = Text()
    line.append(f"{issue.severity.value} ", style=_STYLES[issue.severity])
    line.append(f"[{issue.check}: {issue.rule}] " if issue.rule else f"[{issue.check}] ", style="dim")
    line.append(issue.sentence)
    if issue.place and issue.place not in issue.sentence:
        line.append(f" ({issue.place})", style="dim")
    console.print(line)


def _table(recommendations: tuple[Recommendation, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("change", ratio=3, overflow="fold")
    table.add_column("gain", no_wrap=True)
    table.add_column("training", no_wrap=True)
    table.add_column("cost", overflow="fold")
    for one in recommendations:
        table.add_row(Text(_change(one)), Text(_gain(one)), Text(one.label), Text(one.cost))
    return table


def _change(one: Recommendation) -> str:
    values = ", ".join(f"{path}: {value_text(value)}" for path, value in one.values.items())
    return one.sentence if not values or values in one.sentence else f"{values} ({one.sentence})"


def _gain(one: Recommendation) -> str:
    if one.gain is None:
        return "not tried"
    return ratio_text(one.gain) if one.evidence is Evidence.MEASURED else f"at most {one.gain.high:.2f}x"


def _outcome(result: CheckResult, questions: dict[str, str]) -> str:
    if result.why_not:
        return f"not seen: {result.why_not}"
    return result.sentence or f"{questions[result.check]} Nothing was found."
