"""Groups, shared options and types of the commands."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from autotune.clock import parse_duration_s
from autotune.commands.output import say, say_aside
from autotune.errors import ConfigError
from autotune.process import require_resources
from autotune.trial.termination import signals_held


class LazyGroup(click.Group):
    """Group that imports a command, ``<package>.<name>.command``, on use.

    Args:
        table: Help of each command, by section.
    """

    def __init__(self, *, package: str, table: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._package = package
        self._table = table
        self.sentences = {name: sentence for section in table.values() for name, sentence in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if own := super().get_command(ctx, cmd_name):
            return own
        if cmd_name not in self.sentences:
            return None
        require_resources()
        with signals_held():
            command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        logging.lastResort = _Stderr(logging.WARNING)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table without importing commands."""
        for title, section in self._table.items():
            with formatter.section(title):
                formatter.write_dl(list(section.items()))


class OrderedGroup(click.Group):
    """Group that lists commands in definition order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # stderr is closed
            say_aside(self.format(record))


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click alone
    """Option type from a parser, whose ValueError is wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ShortHelp(click.Command):
    """Command with the common options in ``--help`` and all in ``--help-all``.

    Args:
        usual: Names of the common options.
    """

    def __init__(self, *arguments: Any, usual: tuple[str, ...], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._usual = (*usual, "help_all")
        show = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=self._print_all,
            help="Show all options and exit.",
        )
        self.params.append(show)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usual = [one for one in self.params if ctx.meta.get("all") or one.name in self._usual]
        shown = [*usual, *filter(None, [self.get_help_option(ctx)])]
        with formatter.section("Options"):
            formatter.write_dl([record for one in shown if (record := one.get_help_record(ctx))])

    def _print_all(self, context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
        if is_wanted and not context.resilient_parsing:
            context.meta["all"] = True
            say(context.get_help())
            context.exit()


def _checked_batch_limit(text: str) -> str:
    from autotune.config.schema import parse_batch_limit

    parse_batch_limit(text)
    return text


def _gpu_numbers(text: str) -> tuple[int, ...]:
    numbers = () if text.strip().lower() == "all" else tuple(text.split(","))
    if not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(f"{text!r} is neither 'all' nor a comma-separated list such as 0,1,3")
    return tuple(map(int, numbers))


DURATION = Parsed("duration", parse_duration_s)
"""Duration such as ``90s``, ``30m`` or ``1h30m``, in seconds."""

GPU_NUMBERS = Parsed("numbers", _gpu_numbers)
"""GPU numbers such as ``0,1,3``, as a tuple; empty for ``all``."""

BATCH_LIMIT = Parsed("limit", _checked_batch_limit)
"""Batch limit such as ``4x``, ``same`` or ``free``, as text."""


def _first_config(_context: click.Context, _option: click.Parameter, configs: tuple[Path, ...]) -> Path | None:
    config, *further = configs or (None,)
    if config is not None and further:
        from autotune.config.load import load_settings

        named = {os.path.realpath(path) for path in load_settings(config).further.values()}
        for path in filter(None, further):
            if os.path.realpath(path) not in named:
                raise ConfigError(
                    f"{path} is not listed in the section of {config}",
                    where="command line",
                    remedy=f"Add it there: files: [{os.path.relpath(path, config.parent)}], or run autotune init with "
                    "all configs.",
                )
    return config


def _config_option(name: str, of_several: str, **options: Any) -> Callable[..., Any]:
    help = f"The trainer's config: YAML, JSON, TOML or Python{of_several}."
    return click.option("--config", name, multiple=True, type=click.Path(path_type=Path), help=help, **options)


_WITH_SECTION = " (the one with the section)"
config_option = _config_option("config", _WITH_SECTION, required=True, callback=_first_config)
config_if_any_option = _config_option("config", _WITH_SECTION, callback=_first_config)
config_files_option = _config_option("configs", "; repeatable, the section goes into the first", required=True)
state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of studies and trials (default: AUTOTUNE_DIR, or .autotune next to .git).",
)
_storage_option = click.option(
    "--storage",
    metavar="ADDRESS",
    help="Storage of studies: journal:FOLDER, sqlite:FILE, postgresql://user@host/name, or file:FILE that holds one "
    "(default: AUTOTUNE_STORAGE, or journals in the state folder).",
)


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that locate studies."""
    return state_dir_option(_storage_option(function))


seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of the search's choices.",
)
warm_start_option = click.option(
    "--warm-start/--no-warm-start",
    default=True,
    help="Start with the best points of similar studies (default: yes).",
)
json_option = click.option(  # read by `Invocation.as_json`, which errors need as well
    "--json", is_flag=True, expose_value=False, help="Print one JSON object on stdout."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen; change and start nothing.")
force_option = click.option("--force", is_flag=True, help="Do not ask, even if a value was edited since.")
