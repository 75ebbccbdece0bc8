"""Table of the static checks, in the order in which they are shown."""

from autotune.diagnose.check import Check

STATIC_CHECKS: tuple[Check, ...] = (
    Check(
        id="code",
        question="Is there slow code in the trainer's own sources?",
        how="the script that the command starts, and the modules beside it that it imports, are read, not imported",
        threshold="what a rule knows, in code that training reaches; autotune/diagnose/static/code/rules.py names each",
    ),
)
