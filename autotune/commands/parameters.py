"""Options that several commands share."""

from pathlib import Path
from typing import Any

import click

from autotune.durations import parse_duration_s


class Duration(click.ParamType[float]):
    """A duration such as ``90s``, ``30m`` or ``1h30m``; the command gets seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Reads the text; wrong usage if it is no duration."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


config_option = click.option(
    "--config",
    "config",
    required=True,
    type=click.Path(path_type=Path),
    help="The file that the trainer reads: YAML, JSON or TOML.",
)
state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where studies and trials are kept (default: .autotune beside .git, or AUTOTUNE_DIR).",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="A number from 0 on, which makes the search's choices repeatable.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen; change and start nothing.")
force_option = click.option("--force", is_flag=True, help="Do not ask, also where a value was edited since.")
