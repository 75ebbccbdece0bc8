"""Reference page of the command line: every command with its options, as click reports them."""

import inspect
from collections.abc import Iterator

import click

from autotune.cli import command_line
from autotune.commands.parameters import LazyGroup
from scripts.documentation.tables import code, prose, table


def commands_page() -> str:
    """Return the page."""
    parts = ["# The command line", _EXIT_CODES]
    parts += [_section(context) for context in every_command(command_line, "autotune")]
    return "\n\n".join(parts)


def every_command(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command and of its subcommands.

    Args:
        command: The command.
        name: Name of the command.
        parent: Context of its group.
    """
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            assert child is not None, "listed commands exist"
            yield from every_command(child, below, context)


def help_paragraphs(command: click.Command) -> list[tuple[bool, str]]:
    """Return the paragraphs of a command's help, each with whether it is preformatted."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    found = []
    for paragraph in text.split("\n\n"):
        is_preformatted = paragraph.startswith("\b")
        found.append((is_preformatted, paragraph.removeprefix("\b").strip("\n")))
    return found


def option_rows(context: click.Context) -> list[tuple[str, str]]:
    """Return each option of a command, as typed, with its help; ``--help`` is omitted."""
    records = (parameter.get_help_record(context) for parameter in context.command.params)
    return [record for record in records if record is not None]


def _section(context: click.Context) -> str:
    usage = " ".join(context.command.get_usage(context).removeprefix("Usage: ").split())
    parts = [f"## `{context.command_path}`", f"```\n{usage}\n```"]
    for is_preformatted, paragraph in help_paragraphs(context.command):
        parts.append(f"```\n{inspect.cleandoc(paragraph)}\n```" if is_preformatted else prose(paragraph))
    if isinstance(context.command, LazyGroup):
        rows = [(code(name), sentence) for name, sentence in context.command.sentences.items()]
        parts.append(table(("command", "purpose"), rows))
    elif isinstance(context.command, click.Group):
        rows = [(code(name), one.short_help or "") for name, one in context.command.commands.items()]
        parts.append(table(("command", "purpose"), rows))
    elif rows := option_rows(context):
        parts.append(table(("option", "meaning"), [(code(name), prose(text)) for name, text in rows]))
    return "\n\n".join(parts)


_EXIT_CODES = (
    'Durations: `90s`, `30m`, `2h` or `1h30m`. Exit codes: 0 done (also "no change"); 1 an expected error; 2 wrong '
    "usage; 3 a bug (a crash log is written); 130 interrupted; 143 terminated by SIGTERM. Results go to stdout, "
    "progress and errors to stderr."
)
