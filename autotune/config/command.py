"""Command line of the trainer, as the section has it and as it is typed: never run through a shell."""

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
_OPERATORS = "|&;<>()"
IN_A_SHELL = """put the line into a script and name that, or name a shell yourself:
  bash -c 'python train.py --config "$0" | tee log' {config}"""
"""Remedy for a command that needs a shell."""


def split_command(text: str, where: str) -> tuple[str, ...]:
    """Split a command as a POSIX shell would; refuse syntax that only a shell could carry out.

    Args:
        text: The command; a backslash at the end of a line continues it.

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
        config: Value of ``{config}``: the trial's own copy.
        python: Value of ``{python}``: the interpreter that runs autotune.
        trial_config: The trial's config; ``{dotted.key}`` is the text of a scalar as it stands there. Of a switch,
            ``{dotted.key?--word}`` is the word if it is on, ``{!dotted.key?--word}`` if it is off, and
            ``{dotted.key!=8?--word=}`` the word and the value unless that is 8; a token that is left with nothing in it
            is left out.
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
        if asks and "!=" in key:
            key, _, usual = key.partition("!=")
            used.add(key)
            text = _leaf_of(key, trial_config, where).text
            return "" if text == usual else f"{word}{text}"
        if asks:
            used.add(key)
            wanted = not key.startswith("!")
            return word if _switch(key.removeprefix("!"), trial_config, where) is wanted else ""
        used.add(name)
        if name.startswith("config:") and name not in own:
            known = [f"{{{one}}}" for one in own if one.startswith("config:")]
            raise ConfigError(
                f"the command holds {{{name}}}, and there is no such file",
                where=where,
                remedy=f"There are {', '.join(known)}." if known else "Name the file in the section: files: [...]",
            )
        return own[name] if name in own else _leaf_of(name, trial_config, where).text

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
        if not is_word(word):
            raise ConfigError(
                f"the command holds {shown(word)}, which no program can be given",
                where=where,
                remedy="Leave out the zero byte, or the half of a surrogate pair (\\ud800 to \\udfff).",
            )
    return filled


def takes_values(tokens: Sequence[str]) -> bool:
    """Return whether a command has a place for its config, or for a value of it."""
    return any(match["name"] not in (None, "", "python") for token in tokens for match in _FIELD.finditer(token))


def names_config(tokens: Sequence[str]) -> bool:
    """Return whether a command, placeholders not filled in, takes the path of its config: ``{config}``."""
    return any(match["name"] == "config" for token in tokens for match in _FIELD.finditer(token))


_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch"),
    *("deepspeed", "srun", "mpirun"),
)
_RANKS_ON_NODE = ("--nproc-per-node", "--num-gpus", "--ntasks-per-node", "--npernode", "--num-processes")
_NODES = "--num-machines"  # accelerate's processes are those of all of them


def ranks_on_node(tokens: Sequence[str]) -> int:
    """Return the number of ranks that the launcher in a command starts on each node; 1 where it does not say."""
    names = [os.path.basename(token) for token in tokens]
    launcher = next((place for place, name in enumerate(names) if name in _LAUNCHERS), None)
    if launcher is None:
        return 1
    words = [part for token in tokens[launcher:] for part in token.split("=", 1)]
    told = {name.replace("_", "-"): int(value) for name, value in pairwise(words) if value.isdecimal()}
    ranks = next((told[name] for name in _RANKS_ON_NODE if name in told), 1)
    return max(1, ranks // max(1, told.get(_NODES, 1)))


def is_word(text: str) -> bool:
    """Return whether a program can be given a text, as an argument or in its environment."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair; not so a byte that is no text, which Python writes as one
        return False


def resolve_executable(program: str, cwd: Path, search_path: str | None = None) -> Path:
    """Return the path of a command's program; a bare name is looked up as the shell does it.

    Args:
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


# Command as typed behind ``--``, made into a command for every trial.


_WHERE = "command line"
_SHELL_WORDS = ("|", "||", "|&", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1")
_PLACEHOLDER = re.compile(r"(\{(?:config:|!)?\w[\w.-]*(?:\?[^{}]*)?\})|[{}]")


@dataclass(frozen=True, kw_only=True)
class TypedCommand:
    """Typed command, and the variables set in front of it.

    Attributes:
        env: The variables that were set in front.
    """

    words: tuple[str, ...]
    env: dict[str, str]

    def tokens(self, config: Path, cwd: Path, further: Mapping[str, Path] | None = None) -> tuple[str, ...]:
        """Return the command with ``{config}`` in place of the config's own path, ``{config:NAME}`` of further ones.

        Placeholders that were typed stay; other braces are literal, and doubled.

        Args:
            cwd: The directory in which the command was typed, and in which trials start.
            further: Further configs by their names.
        """
        fields = {"config": config, **{f"config:{name}": path for name, path in (further or {}).items()}}
        return tuple(_with_config(literal(word), fields, cwd) for word in self.words)


def read_typed(words: Sequence[str]) -> TypedCommand:
    """Parse a command that a shell has split already.

    Args:
        words: The typed words; a single word with blanks in it is a whole command in quotes.

    Raises:
        ConfigError: It is empty, only a shell could carry it out, or a variable in it looks like a secret.
    """
    words = _split(words)
    env: dict[str, str] = {}
    while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        if is_secret_name(match[1]):
            raise ConfigError(
                f"{match[1]} looks like a secret, and the command goes into a file",
                where=_WHERE,
                remedy=f"Set it before: export {match[1]}=...; trials get the environment of whoever starts the "
                "search.",
            )
        env[match[1]] = match[2]
        words = words[1:]
    if not words:
        raise ConfigError(
            "the command is empty",
            where=_WHERE,
            remedy="Type how training is started: -- python train.py --config {config}",
        )
    return TypedCommand(words=words, env=env)


def refuse_secrets(words: Sequence[str]) -> None:
    """Raise an error if a command that is about to be written into a file holds a secret.

    Raises:
        ConfigError: A flag, a key or a URL looks like one.
    """
    if secrets := secrets_of(words):
        raise ConfigError(
            f"{secrets[0].name} looks like a secret, and the command goes into a file",
            where=_WHERE,
            remedy="Let the trainer read it from an environment variable, or from a file; trials get the environment\n"
            "of whoever starts the search. For one search only, it may stand behind the -- of autotune search.",
        )


def typed_tokens(words: Sequence[str], config: Path, cwd: Path) -> tuple[str, ...] | None:
    """Return a command as `search` and `run` take it: for this invocation only, nothing of it is written down.

    Args:
        config: The config, whose own path is replaced by ``{config}``.
        cwd: The directory in which the command was typed, and in which trials start.

    Returns:
        The command, placeholders not filled in; None if nothing was typed.

    Raises:
        ConfigError: As `read_typed`; or it sets variables in front.
    """
    if not words:
        return None
    typed = read_typed(words)
    if typed.env:
        names = ", ".join(typed.env)
        raise ConfigError(
            f"the command sets {names} in front, which only a shell understands",
            where=_WHERE,
            remedy=f"Set it in front of autotune instead: {next(iter(typed.env))}=... autotune ...; "
            "trials get the environment of whoever starts them.",
        )
    return typed.tokens(config, cwd)


def _split(words: Sequence[str]) -> tuple[str, ...]:
    if len(words) == 1 and any(character.isspace() for character in words[0]) and not exists(Path(words[0])):
        return split_command(words[0], _WHERE)
    for word in words:
        if word in _SHELL_WORDS:
            raise ConfigError(
                f"the command holds {word}, which only a shell understands, and none runs it",
                where=_WHERE,
                remedy=f"Leave it out, or {IN_A_SHELL}",
            )
    return tuple(words)


def literal(word: str) -> str:
    """Double the braces in a word of a command, except those of placeholders."""
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
    """Options of a command that name a study, as they were typed.

    What the environment or the section says is not among them: it applies to the next command by itself.

    Attributes:
        state_dir: Folder of all state; None if it was not said.
        storage: Where studies are kept; None if it was not said.
    """

    config: Path
    state_dir: Path | None = None
    storage: str | None = None

    def command(self, verb: str, *more: str) -> str:
        """Return a command line for the same study, quoted for a shell; `more` options stand behind."""
        options = ["--config", str(self.config), *more]
        if self.state_dir is not None and verb != "run":
            options += ["--state-dir", str(self.state_dir)]
        if self.storage is not None and verb not in _WITHOUT_STORAGE:
            options += ["--storage", self.storage]
        return shlex.join(["autotune", verb, *options])
