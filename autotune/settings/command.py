"""Command line of the trainer: split once, filled in token by token, never run through a shell."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autotune.errors import CannotEditYaml, CommandError, ConfigError
from autotune.settings.paths import exists, is_program
from autotune.settings.secrets import is_secret_name
from autotune.settings.text.document import Document, Leaf
from autotune.settings.text.keys import closest, shown

_FIELD = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_SWITCH_FIELD = re.compile(r"\{[^{}]*\?[^{}]*\}")
_OVERRIDE = re.compile(r"(?P<key>[^-{}=][^{}=]*)=(?P<field>\{[^{}?]+\})")
_OPERATORS = "|&;<>()"

IN_A_SHELL = """put the line into a script and name that, or name a shell yourself:
  bash -c 'python train.py --config "$0" | tee log' {config}"""
"""Remedy for a command that needs a shell."""


def split_command(text: str, where: str) -> tuple[str, ...]:
    """Split a command as a POSIX shell would; refuse syntax that only a shell could carry out.

    Args:
        text: The command; a backslash at the end of a line continues it.
        where: Place of the command, for errors.

    Raises:
        ConfigError: It is empty, has an open quote, or needs a shell: pipes, redirections, ``&&``, variables,
            substitutions, a second line, variables set in front.
    """
    text = text.strip().replace("\\\r\n", " ").replace("\\\n", " ")
    syntax = _shell_syntax(text)
    if syntax is not None:
        raise ConfigError(
            f"the command holds {syntax}, which only a shell understands, and none runs it",
            where=where,
            remedy=f"Quote it if it is meant literally, {IN_A_SHELL}",
        )
    try:
        tokens = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"the command cannot be split: {str(error).lower()}", where=where, remedy="Close the quote."
        ) from error
    if not tokens:
        raise ConfigError(
            "the command is empty", where=where, remedy="Write for example: python train.py --config {config}"
        )
    if re.match(r"[A-Za-z_]\w*=", tokens[0]):
        name, _, value = tokens[0].partition("=")
        raise ConfigError(
            f"the command sets {name} in front, which only a shell understands",
            where=where,
            remedy=f"Set it before: export {name}=...; trials get the environment of whoever starts the search."
            if is_secret_name(name)
            else f"Put it into the autotune section: env: {{{name}: {value!r}}}",
        )
    return tokens


def fill_command(
    tokens: tuple[str, ...],
    *,
    config: Path,
    python: str,
    trial_config: Document,
    where: str,
    quote: Callable[[str], str] | None = None,
    further: Mapping[str, Path] | None = None,
    needs_values: bool = True,
) -> tuple[str, ...]:
    """Fill in the placeholders.

    Args:
        tokens: The command, split.
        config: Value of ``{config}``: the trial's own copy.
        python: Value of ``{python}``: the interpreter that runs autotune.
        trial_config: The trial's config; ``{dotted.key}`` is the text of a scalar as it stands there. Of a switch,
            ``{dotted.key?--word}`` is the word if it is on, ``{!dotted.key?--word}`` if it is off; a token that is
            left with nothing in it is left out.
        where: Place of the command, for errors.
        further: Values of ``{config:NAME}``: the copies of further configs.
        needs_values: Whether values reach the trainer through placeholders only, not as overrides or variables.
        quote: Writes a value where the word is an override of it, ``key={key}``; None leaves it as it is.

    Raises:
        ConfigError: An unknown placeholder or single brace, a word that no program can be given, or the config would
            never reach the trainer.
    """
    own = {"config": os.fspath(config), "python": python}
    own |= {f"config:{name}": os.fspath(path) for name, path in (further or {}).items()}
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        name = match["name"]
        if not name:
            raise ConfigError(
                f"the command holds a lone {match[0]}", where=where, remedy="Write {{ and }} for literal braces."
            )
        key, asks, word = name.partition("?")
        if asks:
            used.add(key)
            wanted = not key.startswith("!")
            return word if _switch(key.removeprefix("!"), trial_config, where) is wanted else ""
        used.add(name)
        if name.startswith("config:") and name not in own:
            raise _no_such_file(name, own, where)
        return own[name] if name in own else _text_of(name, trial_config, where)

    def fill_token(token: str) -> str:
        override = _OVERRIDE.fullmatch(token) if quote is not None else None
        if quote is None or override is None:
            return _FIELD.sub(fill, token)
        return f"{override['key']}={quote(_FIELD.sub(fill, override['field']))}"

    filled = tuple(text for token in tokens if (text := fill_token(token)) or not _SWITCH_FIELD.fullmatch(token))
    if needs_values and not used - {"python"}:
        raise ConfigError(
            "the command names neither {config} nor a {key} of it, so no tuned value would reach the trainer",
            where=where,
            remedy="Put {config} where the command takes the config's path: --config {config}",
        )
    for word in filled:
        _require_word(word, where)
    return filled


def names_config(tokens: Sequence[str]) -> bool:
    """Return whether a command, placeholders not filled in, takes the path of its config: ``{config}``."""
    return any(match["name"] == "config" for token in tokens for match in _FIELD.finditer(token))


def _no_such_file(name: str, own: Mapping[str, str], where: str) -> ConfigError:
    known = [f"{{{one}}}" for one in own if one.startswith("config:")]
    return ConfigError(
        f"the command holds {{{name}}}, and there is no such file",
        where=where,
        remedy=f"There are {', '.join(known)}." if known else "Name the file in the section: files: [...]",
    )


def _require_word(text: str, where: str) -> None:
    if not is_word(text):
        raise ConfigError(
            f"the command holds {shown(text)}, which no program can be given",
            where=where,
            remedy="Leave out the zero byte, or the half of a surrogate pair (\\ud800 to \\udfff).",
        )


def is_word(text: str) -> bool:
    """Return whether a program can be given a text, as an argument or in its environment."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair; not so a byte that is no text, which Python writes as one
        return False


def resolve_executable(program: str, cwd: Path, search_path: str | None = None) -> Path:
    """Return the path of a command's program; a bare name is looked up as the shell does it.

    Args:
        program: The first token.
        cwd: The working directory of the trials.
        search_path: The trials' ``PATH``; None for that of this process.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
    """
    if os.sep in program:
        path = cwd / program
        if is_program(path):
            return path
        why = "cannot be executed" if exists(path) else "does not exist"
        remedy = f"Make it executable (chmod +x {shlex.quote(program)})." if os.path.isfile(path) else "Check the path."
        raise CommandError(f"{program} {why}", where=f"command, in {cwd}", remedy=remedy)
    found = shutil.which(program, path=search_path)
    if found is None:
        raise CommandError(
            f"there is no program {program} on the PATH",
            where="command",
            remedy="Activate the trainer's environment, or write the program's whole path.",
        )
    return cwd / found


def _text_of(name: str, trial_config: Document, where: str) -> str:
    return _leaf_of(name, trial_config, where).text


def _switch(name: str, trial_config: Document, where: str) -> bool:
    value = _leaf_of(name, trial_config, where).value
    if not isinstance(value, bool):
        raise ConfigError(
            f"the command asks whether {name} is on, but it is {shown(value)}",
            where=where,
            remedy=f"Write {{{name}}} for its value; only true and false can be asked for.",
        )
    return value


def _leaf_of(name: str, trial_config: Document, where: str) -> Leaf:
    try:
        return trial_config.leaf(name)
    except CannotEditYaml as error:
        guess = closest(name, ("config", "python", *trial_config.scalars))
        raise ConfigError(
            f"the command holds {{{name}}}: {error.message}",
            where=where,
            remedy=(f"Did you mean {{{guess}}}? " if guess else "")
            + "Known are {config}, {python} and the config's keys; "
            "write {{ and }} for literal braces.",
        ) from error


def _shell_syntax(text: str) -> str | None:
    """Return the first part of a command that needs a shell, quotes respected; None if nothing does."""
    quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`":
                return text[position : position + 12].split()[0]
        elif character in "'\"":
            quote = character
        elif character == "\n":
            return "a second line"
        elif character in _OPERATORS or character in "$`" or (character == "~" and not text[:position][-1:].strip()):
            return re.match(r"[|&;<>()]+|\S+", text[position:])[0]  # type: ignore[index]  # not blank
        position += 1
    return None
