"""Reference page of the checks, rules and traps of ``autotune diagnose``."""

from autotune.diagnose.findings import GainBasis, Limit, Severity
from autotune.diagnose.tables import MEASURED_CHECKS, RULES, STATIC_CHECKS, Check
from autotune.search.traps import TRAPS
from scripts.documentation.tables import code, table


def checks_page() -> str:
    """Return the page."""
    rules = [(code(rule.id), rule.severity.value, code(rule.limit.value), rule.remedy) for rule in RULES]
    traps = [(code(trap.id), " or ".join(map(code, trap.kinds)), trap.remedy) for trap in TRAPS]
    return "\n\n".join(
        (
            "# Checks of `autotune diagnose`",
            "Look up what a check measures, and how to fix what it finds. [Why is it slow?](../diagnose.md) shows how "
            "to use the checks.",
            "## Static checks",
            _checks(STATIC_CHECKS),
            "## Checks with short trials",
            _checks(MEASURED_CHECKS),
            "## Rules for trainer code",
            "[The code](../diagnose.md#the-code) describes what each rule and trap finds.",
            table(("rule", "severity", "limit", "remedy"), rules),
            "## Traps in trainer code",
            table(("trap", "affected knobs", "remedy"), traps),
            "## Values",
            f"Severity of an issue: {_words(Severity)}. Evidence of a gain: {_words(GainBasis)}. Limit of a training: "
            f"{_words(Limit)}.",
        )
    )


def _checks(checks: tuple[Check, ...]) -> str:
    rows = [(code(check.id), check.question, check.how, check.threshold) for check in checks]
    return table(("check", "question", "method", "threshold"), rows)


def _words(words: type[Severity] | type[GainBasis] | type[Limit]) -> str:
    return ", ".join(code(word.value) for word in words)
