"""Page of the checks of ``autotune diagnose``, and of the rules about sources."""

from autotune.diagnose.findings import GainBasis, Limit, Severity
from autotune.diagnose.tables import MEASURED_CHECKS, RULES, STATIC_CHECKS, Check
from autotune.search.traps import TRAPS
from scripts.documentation.tables import code, table


def checks_page() -> str:
    """Return the page."""
    rules = [(code(rule.id), rule.sentence, rule.severity.value, code(rule.limit.value), rule.remedy) for rule in RULES]
    traps = [
        (code(trap.id), trap.sentence.format(name="…"), " or ".join(map(code, trap.kinds)), trap.remedy)
        for trap in TRAPS
    ]
    return "\n\n".join(
        (
            "# Checks of `autotune diagnose`",
            "[Why is it slow?](../diagnose.md) says how they work together.",
            "## Without a training",
            _checks(STATIC_CHECKS),
            "## With short trials",
            _checks(MEASURED_CHECKS),
            "## Rules about the trainer's sources",
            table(("rule", "what it finds", "weight", "limit", "what to do"), rules),
            "## Traps in the trainer's sources",
            table(("trap", "what it finds", "knobs that it is about", "what to do"), traps),
            "## Words",
            f"Weight of an issue: {_words(Severity)}. Ground of a gain: {_words(GainBasis)}. Limit of a training: "
            f"{_words(Limit)}.",
        )
    )


def _checks(checks: tuple[Check, ...]) -> str:
    rows = [(code(check.id), check.question, check.how, check.threshold) for check in checks]
    return table(("check", "question", "how", "an issue from"), rows)


def _words(words: type[Severity] | type[GainBasis] | type[Limit]) -> str:
    return ", ".join(code(word.value) for word in words)
