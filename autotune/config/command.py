"""Trainer's command line, as in the section or as typed; never run through a shell."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from autotune.config.document import Document, Leaf
from autotune.config.keys import closest, shown
from autotune.config.outputs import exists, is_program, is_same_file
from autotune.config.secrets import is_secret_name, secrets_of
from autotune.errors import CannotEditYaml, CommandError, ConfigError

_FIELD = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_SWITCH_FIELD = re.compile(r"\{[^{}]*\?[^{}]*\}")
_OVERRIDE = re.compile(r"(?P<key>[^-{}=][^{}=]*)=(?P<field>\{[^{}?]+\})")
_SHELL = re.compile(
    r"""\\. | '[^']*(?:'|\Z)
    | "(?:\\(?:.|\Z)|[^"\\$`])*(?:(?P<in_quotes>[$`]\S{0,11}) | "|\Z)  # variables count in double quotes
    | (?P<line>\n) | (?P<operator>[|&;<>()]+) | (?P<expansion>(?:[$`]|(?<!\S)~)\S*)""",
    re.DOTALL | re.VERBOSE,
)
_SHELL_REMEDY = """put the line into a script and give its name, or start a shell yourself:
  bash -c 'python train.py --config "$0" | tee log' {config}"""


def split_command(text: str, where: str) -> tuple[str, ...]:
    """Split a command as a POSIX shell does; a backslash at the end of a line continues it.

    Raises:
        ConfigError: It is empty, has an open quote, or needs a shell.
    """
    text = text.strip().replace("\\\r\n", " ").replace("\\\n", " ")
    if (syntax := _shell_syntax(text)) is not None:
        raise _needs_shell(f"contains {syntax}", where, f"Quote it if it is literal, {_SHELL_REMEDY}")
    try:
        tokens = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"the command cannot be split: {str(error).lower()}", where=where, remedy="Close the quote."
        ) from error
    if not tokens:
        raise _empty(where)
    if re.match(r"[A-Za-z_]\w*=", tokens[0]):
        name, _, value = tokens[0].partition("=")
        in_section = f"Put it into the autotune section: env: {{{name}: {value!r}}}"
        raise _needs_shell(f"sets {name} first", where, _EXPORT.format(name) if is_secret_name(name) else in_section)
    return tokens


_EXPORT = "Run `export {}=...` before the search: trials inherit its environment."


def _needs_shell(what: str, where: str, remedy: str) -> ConfigError:
    return ConfigError(f"the command {what}, which needs a shell; autotune uses none", where=where, remedy=remedy)


def _empty(where: str) -> ConfigError:
    remedy = "Write for example: python train.py --config {config}"
    return ConfigError("the command is empty", where=where, remedy=remedy)


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
    """Fill in the placeholders of a command.

    Args:
        config: Value of ``{config}``.
        python: Value of ``{python}``.
        trial_config: Values of ``{dotted.key}``; ``{dotted.key?--word}`` is the word if it is true,
            ``{!dotted.key?--word}`` if it is false, ``{dotted.key!=8?--word=}`` word and value unless it is 8; empty
            tokens are omitted.
        further: Values of ``{config:NAME}``.
        needs_values: Whether values reach the trainer only through placeholders.
        quote: Quotes a value in an override ``key={key}``; None keeps it unquoted.

    Raises:
        ConfigError: Unknown placeholder, single brace, invalid word, or config that would never reach the trainer.
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
                f"the command contains a single {match[0]}", where=where, remedy="Write {{ and }} for literal braces."
            )
        key, is_conditional, word = name.partition("?")
        if is_conditional and "!=" in key:
            key, _, default = key.partition("!=")
            used.add(key)
            text = _leaf_of(key, trial_config, where).text
            return "" if text == default else f"{word}{text}"
        if is_conditional:
            used.add(key)
            wanted = not key.startswith("!")
            return word if _switch(key.removeprefix("!"), trial_config, where) is wanted else ""
        used.add(name)
        if name.startswith("config:") and name not in own:
            known = [f"{{{one}}}" for one in own if one.startswith("config:")]
            raise ConfigError(
                f"the command contains {{{name}}}, but the section names no such file",
                where=where,
                remedy=f"Known: {', '.join(known)}." if known else "Name the file in the section: files: [...]",
            )
        return own[name] if name in own else _leaf_of(name, trial_config, where).text

    def fill_token(token: str) -> str:
        if quote is not None and (override := _OVERRIDE.fullmatch(token)):
            return f"{override['key']}={quote(_FIELD.sub(fill, override['field']))}"
        return _FIELD.sub(fill, token)

    filled = tuple(text for token in tokens if (text := fill_token(token)) or not _SWITCH_FIELD.fullmatch(token))
    if needs_values and not used - {"python"}:
        raise ConfigError(
            "the command contains neither {config} nor a {key}, so no tuned value would reach the trainer",
            where=where,
            remedy="Write {config} in place of the config's path: --config {config}",
        )
    for word in filled:
        if not is_word(word):
            raise ConfigError(
                f"the command contains {shown(word)}, which cannot be an argument",
                where=where,
                remedy="Remove the zero byte or lone surrogate (\\ud800 to \\udfff).",
            )
    return filled


def takes_values(tokens: Sequence[str]) -> bool:
    """Return whether a command has a placeholder for its config or a value."""
    return any(match["name"] not in (None, "", "python") for token in tokens for match in _FIELD.finditer(token))


def names_config(tokens: Sequence[str]) -> bool:
    """Return whether a command contains ``{config}``."""
    return any(match["name"] == "config" for token in tokens for match in _FIELD.finditer(token))


_TORCH_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("accelerate", "accelerate.commands.launch"),
)
_LAUNCHERS = (*_TORCH_LAUNCHERS, "deepspeed", "srun", "mpirun")
_RANKS_ON_NODE = (
    *("--nproc-per-node", "--num-gpus", "--num-accelerators", "--ntasks-per-node", "--npernode"),
    "--num-processes",
)
_NODES = "--num-machines"  # accelerate counts the processes of all machines


def ranks_on_node(tokens: Sequence[str]) -> int:
    """Return the number of ranks per node that the command's launcher starts; 1 if unknown."""
    names = [os.path.basename(token) for token in tokens]
    launcher = next((place for place, name in enumerate(names) if name in _LAUNCHERS), None)
    if launcher is None:
        return 1
    words = [part for token in tokens[launcher:] for part in token.split("=", 1)]
    numbers = {name.replace("_", "-"): int(value) for name, value in pairwise(words) if value.isdecimal()}
    ranks = next((numbers[name] for name in _RANKS_ON_NODE if name in numbers), 1)
    return max(1, ranks // max(1, numbers.get(_NODES, 1)))


def limits_threads(tokens: Sequence[str]) -> bool:
    """Return whether a command's launcher sets ``OMP_NUM_THREADS=1`` for several ranks."""
    return any(os.path.basename(token) in _TORCH_LAUNCHERS for token in tokens)


def is_word(text: str) -> bool:
    """Return whether a text can be an argument or an environment variable of a program."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate, unless it stands for an undecodable byte
        return False


def resolve_executable(program: str, cwd: Path, search_path: str | None = None) -> Path:
    """Return the path of a command's program; a bare name is searched for in `search_path`, default ``PATH``.

    Raises:
        CommandError: There is no such program, or it is not executable.
    """
    if os.sep in program:
        path = cwd / program
        if is_program(path):
            return path
        why = "is not executable" if exists(path) else "does not exist"
        remedy = f"Make it executable (chmod +x {shlex.quote(program)})." if os.path.isfile(path) else "Check the path."
        raise CommandError(f"{program} {why}", where=f"command, in {cwd}", remedy=remedy)
    found = shutil.which(program, path=search_path)
    if found is None:
        raise CommandError(
            f"program not found on the PATH: {program}",
            where="command",
            remedy="Activate the trainer's environment, or write the program's full path.",
        )
    return cwd / found


def _switch(name: str, trial_config: Document, where: str) -> bool:
    value = _leaf_of(name, trial_config, where).value
    if not isinstance(value, bool):
        raise ConfigError(
            f"the command uses {name} as a switch, but it is {shown(value)}",
            where=where,
            remedy=f"Write {{{name}}} for its value; a switch is true or false.",
        )
    return value


def _leaf_of(name: str, trial_config: Document, where: str) -> Leaf:
    try:
        return trial_config.leaf(name)
    except CannotEditYaml as error:
        guess = closest(name, ("config", "python", *trial_config.scalars))
        raise ConfigError(
            f"the command contains {{{name}}}: {error.message}",
            where=where,
            remedy=(f"Did you mean {{{guess}}}? " if guess else "")
            + "Use {config}, {python} or a key of the config; write {{ and }} for literal braces.",
        ) from error


def _shell_syntax(text: str) -> str | None:
    """Return the first part of a command, outside of quotes, that needs a shell."""
    found = next((match for match in _SHELL.finditer(text) if match.lastgroup), None)
    return None if found is None else "a second line" if found["line"] else found[found.lastgroup or 0]


# Command as typed after ``--``, turned into a command for every trial.


_WHERE = "command line"
_SHELL_WORDS = ("|", "||", "|&", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1")
_PLACEHOLDER = re.compile(r"(\{(?:config:|!)?\w[\w.-]*(?:\?[^{}]*)?\})|[{}]")


@dataclass(frozen=True, kw_only=True)
class TypedCommand:
    """Typed command, and the variables set before it."""

    words: tuple[str, ...]
    env: dict[str, str]

    def tokens(self, config: Path, cwd: Path, further: Mapping[str, Path] | None = None) -> tuple[str, ...]:
        """Return the command with ``{config}`` in place of the config's path, ``{config:NAME}`` of further ones.

        Typed placeholders stay; other braces are doubled. `cwd` is where the command was typed.
        """
        fields = {"config": config, **{f"config:{name}": path for name, path in (further or {}).items()}}
        return tuple(_with_config(literal(word), fields, cwd) for word in self.words)


def read_typed(words: Sequence[str]) -> TypedCommand:
    """Parse a command that a shell has split; a single word with blanks is a whole command in quotes.

    Raises:
        ConfigError: It is empty, needs a shell, or sets a variable that looks like a secret.
    """
    words = _split(words)
    env: dict[str, str] = {}
    while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        if is_secret_name(match[1]):
            raise _secret(match[1], _EXPORT.format(match[1]))
        env[match[1]] = match[2]
        words = words[1:]
    if not words:
        raise _empty(_WHERE)
    return TypedCommand(words=words, env=env)


def refuse_secrets(words: Sequence[str]) -> None:
    """Raise a ConfigError if a command to be written into a file seems to contain a secret."""
    if secrets := secrets_of(words):
        remedy = (
            "Let the trainer read it from a file or an environment variable, which trials inherit.\n"
            "For a single search, give it after the -- of autotune search."
        )
        raise _secret(secrets[0].name, remedy)


def _secret(name: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name} looks like a secret, and the command goes into a file", where=_WHERE, remedy=remedy)


def typed_tokens(words: Sequence[str], config: Path, cwd: Path) -> tuple[str, ...] | None:
    """Return a typed command with ``{config}`` in place of the config's path; None if not typed.

    Raises:
        ConfigError: As `read_typed`; or it sets variables.
    """
    if not words:
        return None
    typed = read_typed(words)
    if typed.env:
        remedy = f"Set it for autotune; trials inherit it: {next(iter(typed.env))}=... autotune ..."
        raise _needs_shell(f"sets {', '.join(typed.env)} first", _WHERE, remedy)
    return typed.tokens(config, cwd)


def _split(words: Sequence[str]) -> tuple[str, ...]:
    if len(words) == 1 and any(character.isspace() for character in words[0]) and not exists(Path(words[0])):
        return split_command(words[0], _WHERE)
    if word := next((word for word in words if word in _SHELL_WORDS), None):
        raise _needs_shell(f"contains {word}", _WHERE, f"Remove it, or {_SHELL_REMEDY}")
    return tuple(words)


def literal(word: str) -> str:
    """Double the braces in a word, except those of placeholders."""
    return _PLACEHOLDER.sub(lambda match: match[1] or match[0] * 2, word)


def with_further(tokens: Sequence[str], further: Mapping[str, Path], cwd: Path) -> tuple[str, ...]:
    """Return a command with ``{config:NAME}`` in place of the paths of further configs."""
    return tuple(
        _with_config(token, {f"config:{name}": path for name, path in further.items()}, cwd) for token in tokens
    )


def _with_config(word: str, fields: Mapping[str, Path], cwd: Path) -> str:
    for field, config in fields.items():
        for start in (0, word.find("=") + 1):
            if word[start:] and is_same_file(cwd / word[start:], config):
                return f"{word[:start]}{{{field}}}"
    return word


_WITHOUT_STORAGE = frozenset({"init", "revert", "run"})


@dataclass(frozen=True, kw_only=True)
class TypedOptions:
    """Typed options that identify a study."""

    config: Path
    state_dir: Path | None = None
    storage: str | None = None

    def command(self, verb: str, *more: str) -> str:
        """Return a command line for the same study, quoted for a shell."""
        options = ["--config", str(self.config), *more]
        if self.state_dir is not None and verb != "run":
            options += ["--state-dir", str(self.state_dir)]
        if self.storage is not None and verb not in _WITHOUT_STORAGE:
            options += ["--storage", self.storage]
        return shlex.join(["autotune", verb, *options])
