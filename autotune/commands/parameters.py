"""Options that several commands share."""

import os
from pathlib import Path
from typing import Any

import click

from autotune.clock import parse_duration_s
from autotune.errors import ConfigError


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
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


class BatchLimitText(click.ParamType):  # type: ignore[type-arg]  # as above
    """A limit of the batch such as ``4x``, ``same`` or ``free``; the command gets the text."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks the text; wrong usage if it is no limit."""
        from autotune.config.schema import parse_batch_limit

        try:
            parse_batch_limit(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def _first_config_if_any(context: click.Context, option: click.Parameter, configs: tuple[Path, ...]) -> Path | None:
    return _first_config(context, option, configs) if configs else None


def _first_config(_context: click.Context, _option: click.Parameter, configs: tuple[Path, ...]) -> Path:
    config, *further = configs
    if further:
        from autotune.config.load import load_settings

        named = {os.path.realpath(path) for path in load_settings(config).further.values()}
        for path in further:
            if os.path.realpath(path) not in named:
                raise ConfigError(
                    f"{path} is none of the further configs that the section of {config} names",
                    where="command line",
                    remedy=f"Add it there: files: [{os.path.relpath(path, config.parent)}]; autotune init with all of "
                    "them does.",
                )
    return config


_CONFIG_HELP = "The file that the trainer reads: YAML, JSON or TOML."
config_option = click.option(
    "--config",
    "config",
    required=True,
    multiple=True,
    callback=_first_config,
    type=click.Path(path_type=Path),
    help=f"{_CONFIG_HELP} Of several the one with the section is enough.",
)
config_if_any_option = click.option(
    "--config",
    "config",
    multiple=True,
    callback=_first_config_if_any,
    type=click.Path(path_type=Path),
    help=f"{_CONFIG_HELP} Of several the one with the section is enough.",
)
config_files_option = click.option(
    "--config",
    "configs",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help=f"{_CONFIG_HELP} Given again for each further one; the section goes into the first.",
)
state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where studies and trials are kept (default: .autotune beside .git, or AUTOTUNE_DIR).",
)
storage_option = click.option(
    "--storage",
    metavar="ADDRESS",
    help="Where studies are kept: journal:FOLDER, sqlite:FILE, postgresql://user@host/name, or file:FILE for a file "
    "that holds one (default: AUTOTUNE_STORAGE, or journals in the state folder).",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="A number from 0 on, which makes the search's choices repeatable.",
)
warm_start_option = click.option(
    "--warm-start/--no-warm-start",
    default=True,
    help="Begin with the best points of studies of the same or a like training, on this hardware or another, or do "
    "not. Default: begin with them, if there are any.",
)
json_option = click.option(  # `Invocation.as_json` says it, to errors as well
    "--json", is_flag=True, expose_value=False, help="Print one JSON object on stdout."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen; change and start nothing.")
force_option = click.option("--force", is_flag=True, help="Do not ask, also where a value was edited since.")
entry_argument = click.argument("number", type=click.IntRange(min=1), metavar="ENTRY")
entries_argument = click.argument("numbers", nargs=-1, required=True, type=click.IntRange(min=1), metavar="ENTRY...")
entries_or_all_argument = click.argument("numbers", nargs=-1, type=click.IntRange(min=1), metavar="[ENTRY...]")
