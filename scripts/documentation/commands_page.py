"""Reference page of the command line: every command with its options, as click reports them."""

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from autotune.cli import command_line
from autotune.commands.parameters import LazyGroup
from scripts.documentation.tables import code, prose, table


def commands_page() -> str:
    """Return the page."""
    contexts = list(every_command(command_line, "autotune"))
    uses = Counter(row for context in contexts for row in option_rows(context))
    common = [row for row, number in uses.most_common() if number >= _COMMON]
    parts = ["# The command line", _OPENING]
    parts += ["## Options of several commands", _options(common), _ARGUMENTS]
    parts += [_section(context, common) for context in contexts]
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
    """Return each option of a command, as typed, with its help; ``--help``, and that it is required, are omitted."""
    records = (parameter.get_help_record(context) for parameter in context.command.params)
    return [(name, text.removesuffix(_REQUIRED)) for name, text in filter(None, records) if text]


def _section(context: click.Context, common: Sequence[tuple[str, str]]) -> str:
    parts, params = [f"## `{context.command_path}`"], context.command.params
    if not isinstance(context.command, click.Group) and any(isinstance(one, click.Argument) for one in params):
        parts.append(code(" ".join(context.command.get_usage(context).removeprefix("Usage: ").split())))
    for is_preformatted, paragraph in help_paragraphs(context.command):
        parts.append(f"```\n{inspect.cleandoc(paragraph)}\n```" if is_preformatted else prose(paragraph))
    if isinstance(context.command, LazyGroup) and context.parent is None:
        rows = [(f"[{code(name)}](#autotune-{name})", text) for name, text in context.command.sentences.items()]
        parts.append(table(("command", "purpose"), rows))
    elif isinstance(context.command, click.Group):
        names = (f"[{code(name)}](#{context.command_path.replace(' ', '-')}-{name})" for name in _names(context))
        parts.append(f"Commands: {', '.join(names)}.")
    else:
        rows = option_rows(context)
        if own := [row for row in rows if row not in common]:
            parts.append(_options([(name, text + " Required." * _is_required(name, params)) for name, text in own]))
        if shared := [name for name, text in rows if (name, text) in common]:
            names = (code(name.split()[0]) + " (required)" * _is_required(name, params) for name in shared)
            parts.append(f"{'Also' if own else 'Options'}: {', '.join(names)}.")
    return "\n\n".join(parts)


def _names(context: click.Context) -> list[str]:
    assert isinstance(context.command, click.Group), "only groups have commands"
    return context.command.list_commands(context)


def _is_required(name: str, params: Iterable[click.Parameter]) -> bool:
    """Return whether a command requires an option, by its name as typed."""
    return any(one.required and name.split()[0] in one.opts for one in params)


def _options(rows: Iterable[tuple[str, str]]) -> str:
    return table(("option", "meaning"), [(code(name), prose(text)) for name, text in rows])


_COMMON = 3  # commands: an option of as many has its row in the common table alone
_REQUIRED = "  [required]"
_OPENING = (
    "Look up the options of each command. Durations are `90s`, `30m`, `2h` or `1h30m`. Results go to stdout, progress "
    "and errors to stderr. [Exit codes](../json.md#exit-codes)."
)
_ARGUMENTS = (
    "`TRAINER` is the training command, after `--`; default: that of the config's `autotune:` section. `search` shows "
    "its less usual options with `--help-all`."
)
