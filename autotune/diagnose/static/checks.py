"""Table of the static checks, in the order in which they are shown."""

from autotune.diagnose.check import Check

STATIC_CHECKS: tuple[Check, ...] = (
    Check(
        id="configuration",
        question="Is the config free of mistakes, and does it suit this machine?",
        how="its values are read, and compared with the known knobs and with this machine's cores and GPUs",
        threshold="config_mistakes.py, config_for_machine.py and gpu_classes.py name each with its source",
    ),
    Check(
        id="code",
        question="Is there slow code in the trainer's own sources?",
        how="the script that the command starts, and the modules beside it that it imports, are read, not imported",
        threshold="what a rule knows, in code that training reaches; autotune/diagnose/static/code/rules.py names each",
    ),
)
