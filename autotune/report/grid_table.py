"""Screen of a grid of batch sizes and workers."""

from rich.console import Console
from rich.table import Table

from autotune.profile.grid import Cell, Grid
from autotune.report.plain_text import plain, value_text


def print_grid(console: Console, grid: Grid) -> None:
    """Print the trials of a grid, and what they come to."""
    keys = list(grid.cells[0].values)
    table = Table(*(plain(key) for key in keys), "samples/s", "waiting", "variation")
    for cell in grid.cells:
        table.add_row(*(plain(value_text(cell.values[key])) for key in keys), *_numbers(cell))
    console.print(table)
    console.print(plain(grid.sentence, longest=400), soft_wrap=True)


def _numbers(cell: Cell) -> tuple[str, str, str]:
    if cell.samples_per_s is None:
        return "none", plain(cell.why_not or ""), ""
    waiting = "" if cell.waiting_fraction is None else f"{cell.waiting_fraction:.0%}"
    return f"{cell.samples_per_s:.4g}", waiting, "" if cell.variation is None else f"{cell.variation:.0%}"
