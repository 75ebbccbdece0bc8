"""What several commands show of a search."""

import sys
from collections.abc import Mapping

from rich.console import Console

from autotune.records import Ending
from autotune.report.answer import Failure
from autotune.report.plan import KnobRow, print_plan
from autotune.search.setup import Setup
from autotune.search.tuner import Failed
from autotune.space.catalog import KNOWN_KNOBS
from autotune.trial.outcome import EXPLANATIONS

_FILE_WIDTH = 160  # where there is no terminal to ask


def text_console(*, stderr: bool = False) -> Console:
    """A console for plain prose: nothing in it is taken for markup or coloured by guess."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, markup=False, width=None if stream.isatty() else _FILE_WIDTH)


def show_plan(console: Console, setup: Setup, budget_s: float) -> None:
    """Shows what a search is about to do."""
    sentences = {row.kind: row.sentence for row in KNOWN_KNOBS}
    print_plan(
        console,
        [
            KnobRow(
                paths=knob.paths,
                today=knob.today,
                choices=knob.choices,
                label=knob.label.value,
                sentence=sentences.get(knob.kind or "", ""),
            )
            for knob in setup.space.knobs
        ],
        skipped={skipped.path: skipped.why for skipped in setup.skipped} | dict(setup.settings.outputs.left),
        combinations=setup.space.size,
        redirected=setup.settings.outputs.redirected,
        command=setup.command,
        budget_s=budget_s,
    )


def failures(failed: Mapping[Ending, Failed], outcomes: Mapping[str, int]) -> list[Failure]:
    """The runs that gave no numbers as the final screen shows them, one for each kind of ending."""
    return [
        Failure(
            run=first.record,
            count=outcomes.get(ending.value, 1),
            sentence=EXPLANATIONS[ending].sentence,
            remedy=EXPLANATIONS[ending].remedy,
            stderr_tail=first.stderr_tail,
            folder=str(first.folder),
        )
        for ending, first in failed.items()
    ]
