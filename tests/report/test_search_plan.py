"""Plan of a search, as it is shown before the first trial."""

import io
from dataclasses import replace

from rich.console import Console

from autotune.report.knob_tables import KnobRow, SearchPlan, print_plan

ROW = KnobRow(
    paths=("data.workers",), baseline=1, choices=tuple(range(1, 13)), label="same training", sentence="at a time"
)
PLAN = SearchPlan(
    knobs=(ROW,),
    skipped={"data.cache": "it is a list"},
    combinations=12345,
    redirected=("log_dir", "out.dir"),
    notes=("key: s3://bucket\x1b[31m may send something away",),
    command=("python", "train.py", "{config}"),
    budget_s=1800.0,
)


def shown(plan: SearchPlan) -> str:
    """The screen, 100 columns wide."""
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_plan(console, plan)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_that_is_about_to_happen_has_its_line() -> None:
    """Keys that are not tuned and why, outputs, remarks without control sequences, the command, the time."""
    for line in (
        "not tuned: data.cache (it is a list)",
        "into each trial's own folder, starting empty: log_dir, out.dir",
        "key: s3://bucket may send something away",
        "command: python train.py {config}",
        "12,345 combinations; 30m for everything, part of it kept back to confirm the best against today's values",
    ):
        assert f"{line}\n" in shown(PLAN)


def test_of_many_choices_the_first_and_the_last_are_shown() -> None:
    """A row stays on its line."""
    assert "1, 2, 3, 4, 5, 6, …, 12" in shown(PLAN)


def test_without_redirected_outputs_there_is_no_line_on_them() -> None:
    """Nothing is said of what is not there."""
    assert "folder" not in shown(replace(PLAN, redirected=()))
