"""Key paths of a config: their types and spelling, and the closest one to a user's typo."""

import difflib
import os
from collections.abc import Iterable, Mapping
from enum import Enum

from autotune.errors import ConfigError
from autotune.records import Scalar

KeyPath = str | tuple[str | int, ...]
"""A dotted path (``data.batch_size``, ``callbacks.0.every``), or its parts, for keys that contain dots."""

NewValues = Mapping[str, Scalar] | Mapping[tuple[str | int, ...], Scalar] | Mapping[KeyPath, Scalar]
"""Values to be written, by key path; spelled out because a Mapping's key type allows no other."""


def shown(value: object, longest: int = 60) -> str:
    """Return a value as messages show it: of a long one the beginning and its length."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 20]}... ({len(text):,} characters)"


def dotted(path: KeyPath) -> str:
    """Return the path as people write it."""
    return path if isinstance(path, str) else ".".join(str(part) for part in path)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that a user who wrote `name` most likely meant.

    The same last part in another section beats similar spelling: ``batch_size`` means ``data.batch_size``.
    """
    candidates = list(known)
    last = name.rpartition(".")[2]
    same_last = [candidate for candidate in candidates if candidate.rpartition(".")[2] == last]
    found = difflib.get_close_matches(name, same_last or candidates, n=1, cutoff=0.0 if same_last else 0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the closest known name, or lists a few where none is close."""
    names = sorted(known)
    guess = closest(name, names)
    if guess is not None:
        return f"Did you mean {guess}?"
    if not names:
        return "There is none to choose from."
    return f"There are: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}."


class Syntax(Enum):
    """Syntax that a config is written in; its value is its name."""

    YAML = "YAML"
    JSON = "JSON"
    TOML = "TOML"

    @property
    def suffix(self) -> str:
        """Suffix of the names of a trial's own copies."""
        return f".{self.value.lower()}"


def syntax_of(name: str) -> Syntax:
    """Return the syntax of a file by its name; YAML unless the suffix says otherwise.

    Raises:
        ConfigError: It is one that cannot be edited.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".gin":
        remedy = (
            "Type what is to be tuned on the command line (--gin_bindings='train.batch_size=16'), or read it\n"
            "from a YAML file or from flags of your own; for flags: autotune init --from-flags."
        )
        raise ConfigError("gin configs are not supported", where=name, remedy=remedy)
    return {".json": Syntax.JSON, ".toml": Syntax.TOML}.get(suffix, Syntax.YAML)
