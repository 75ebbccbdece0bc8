"""Inventory of a config, as init prints it."""

import io

from rich.console import Console

from autotune.report.knob_tables import Inventory, KnobRow, print_inventory

ROW = KnobRow(paths=("data.batch_size", "grad_accum"), baseline=8, choices=(4, 8), label="batch", sentence="per step")


def shown(*rows: KnobRow) -> str:
    """The screen, 100 columns wide."""
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    inventory = Inventory(
        knobs=rows,
        not_taken={"a.prefetch": "it is a list", "-v\x1b[31m": "short"},
        redirected=("log_dir", "out.dir"),
        left={"save_dir": "it is built on another key"},
        command=("python", "train.py", "{config}"),
    )
    print_inventory(console, inventory)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_everything_found_has_its_line() -> None:
    """Knobs with what moves along, what is none and why, outputs, and the command."""
    screen = shown(ROW)
    assert "data.batch_size   8       4, 8    batch              per step" in screen
    assert "\ngrad_accum " in screen
    for line in (
        "not taken: a.prefetch: it is a list",
        "into each trial's own folder, starting empty: log_dir, out.dir",
        "looks like an output and stays: save_dir: it is built on another key",
        "command: python train.py {config}",
    ):
        assert f"{line}\n" in screen


def test_no_knob_is_said() -> None:
    """With what to do about it."""
    assert "No knob was found by its name. Name what may vary" in shown()


def test_what_a_config_holds_cannot_steer_the_terminal() -> None:
    """Escape sequences in keys are shown as nothing."""
    assert "\x1b" not in shown(ROW)
