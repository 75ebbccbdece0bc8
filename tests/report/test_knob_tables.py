"""Plan of a search, and inventory of a config, as they are shown."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.report.knob_tables import Inventory, KnobRow, SearchPlan, print_inventory, print_plan

MANY = KnobRow(
    paths=("data.workers",), baseline=1, choices=tuple(range(1, 13)), label="same training", sentence="at a time"
)
BATCH = KnobRow(paths=("data.batch_size", "grad_accum"), baseline=8, choices=(4, 8), label="batch", sentence="per step")
PLAN = SearchPlan(
    knobs=(MANY,),
    skipped={"data.cache": "it is a list"},
    combinations=12345,
    redirected=("log_dir", "out.dir"),
    notes=("key: s3://bucket\x1b[31m may send something away",),
    command=("python", "train.py", "{config}"),
    budget_s=1800.0,
)
INVENTORY = Inventory(
    knobs=(BATCH,),
    not_taken={"a.prefetch": "it is a list", "-v\x1b[31m": "short"},
    redirected=("log_dir", "out.dir"),
    left={"save_dir": "it is built on another key"},
    command=("python", "train.py", "{config}"),
)


def shown(what: SearchPlan | Inventory) -> str:
    """The screen, 100 columns wide."""
    file = io.StringIO()
    console = Console(file=file, width=100, highlight=False, markup=False)
    print_plan(console, what) if isinstance(what, SearchPlan) else print_inventory(console, what)
    return file.getvalue()


BOTH = ["into each trial's own folder, starting empty: log_dir, out.dir", "command: python train.py {config}"]
OF_PLAN = [
    "not tuned: data.cache (it is a list)",
    "key: s3://bucket may send something away",
    "12,345 combinations; 30m for everything, part of it kept back to confirm the best against today's values",
]
OF_INVENTORY = [
    "not taken: a.prefetch: it is a list",
    "looks like an output and stays: save_dir: it is built on another key",
]


@pytest.mark.parametrize(("what", "lines"), [(PLAN, OF_PLAN), (INVENTORY, OF_INVENTORY)], ids=("plan", "inventory"))
def test_everything_has_its_line(what: SearchPlan | Inventory, lines: list[str]) -> None:
    """Keys that are not tuned and why, outputs, remarks, the command, the time; nothing steers the terminal."""
    screen = shown(what)
    assert [line for line in (*BOTH, *lines) if f"{line}\n" not in screen] == []
    assert "\x1b" not in screen


def test_keys_that_are_left_for_one_reason_share_a_line() -> None:
    """A table of trainings has dozens of them."""
    why = "it is in another section"
    screen = shown(replace(INVENTORY, not_taken={f"{env}.batch_size": why for env in "abcde"}))
    assert f"not taken: a.batch_size, b.batch_size, c.batch_size and 2 more: {why}\n" in screen


def test_a_row_has_what_is_tried_and_what_moves_along() -> None:
    """Of many choices the first and the last are shown; what is not there has no line."""
    assert "1, 2, 3, 4, 5, 6, …, 12" in shown(PLAN)
    assert "folder" not in shown(replace(PLAN, redirected=()))
    assert "data.batch_size   8       4, 8    batch              per step" in shown(INVENTORY)
    assert "\ngrad_accum " in shown(INVENTORY)
    assert "No knob was found by its name. Name what may vary" in shown(replace(INVENTORY, knobs=()))
