"""Training command as typed behind ``--``, made into a command for every trial."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config.command import IN_A_SHELL, split_command
from autotune.config.outputs import exists, is_same_file
from autotune.config.secrets import is_secret_name, secrets_of
from autotune.errors import ConfigError

_WHERE = "command line"
_OPERATORS = ("|", "||", "|&", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1")
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
        if word in _OPERATORS:
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
