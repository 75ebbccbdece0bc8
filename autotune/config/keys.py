"""Key paths of a config: types, spelling, suggestions for typos, and validation of their values."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from autotune.errors import ConfigError
from autotune.records import Scalar

KeyPath = str | tuple[str | int, ...]
"""Dotted path (``data.batch_size``, ``callbacks.0.every``), or its parts if keys contain dots."""

NewValues = Mapping[str, Scalar] | Mapping[tuple[str | int, ...], Scalar] | Mapping[KeyPath, Scalar]
"""Values to write, by key path; three types because a Mapping is invariant in its keys."""


def shown(value: object, longest: int = 60) -> str:
    """Return a value as shown in messages; a long one is cut, with its length."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 20]}... ({len(text):,} characters)"


def scalar_text(value: Scalar) -> str:
    """Return a config value in YAML spelling."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def listed(words: Sequence[str], last: str = "and") -> str:
    """Join words with commas, and `last` before the last one."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of others: ``a, b, c and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, e.g. ``1 error`` or ``2 errors``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def dotted(path: KeyPath) -> str:
    """Return a path in dotted form."""
    return path if isinstance(path, str) else ".".join(str(part) for part in path)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the most likely meaning of a mistyped name; the same last part beats similar spelling."""
    candidates = list(known)
    last = name.rpartition(".")[2]
    same_last = [candidate for candidate in candidates if candidate.rpartition(".")[2] == last]
    found = difflib.get_close_matches(name, same_last or candidates, n=1, cutoff=0.0 if same_last else 0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known name, or with some of them."""
    names = sorted(known)
    guess = closest(name, names)
    if guess is not None:
        return f"Did you mean {guess}?"
    if not names:
        return "There are none."
    return f"Known: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}."


class Syntax(Enum):
    """Syntax of a config; the value is its display name."""

    YAML = "YAML"
    JSON = "JSON"
    TOML = "TOML"
    PYTHON = "Python"

    @property
    def suffix(self) -> str:
        return ".py" if self is Syntax.PYTHON else f".{self.value.lower()}"


def syntax_of(name: str) -> Syntax:
    """Return the syntax of a file by its suffix, YAML by default; raise a ConfigError if it cannot be edited."""
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".gin":
        remedy = (
            "Set the values to tune on the command line (--gin_bindings='train.batch_size=16'), or read them\n"
            "from a YAML file or your own flags; for flags: autotune init --from-flags."
        )
        raise ConfigError("gin configs are not supported", where=name, remedy=remedy)
    return {".json": Syntax.JSON, ".toml": Syntax.TOML, ".py": Syntax.PYTHON}.get(suffix, Syntax.YAML)


_Model = TypeVar("_Model", bound=msgspec.Struct)
_KINDS = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false", "array": "a list"}
_LIMITS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}


def converted(value: Any, model: type[_Model], place: Callable[..., str], *around: str, strict: bool = True) -> _Model:
    """Convert plain data to a model of its keys; `strict` rejects text as a number.

    Args:
        place: Returns file, line and name of a key path.
        around: Keys around the value.

    Raises:
        ConfigError: An unknown or missing key, a wrong type, or a value out of range.
    """
    try:
        return msgspec.convert(value, model, strict=strict)
    except msgspec.ValidationError as error:
        raise _translated(str(error), value, model, place, around) from error


def _translated(
    complaint: str, value: Any, model: type[msgspec.Struct], place: Callable[..., str], around: tuple[str, ...]
) -> ConfigError:
    """Translate a msgspec error such as ``Expected `float`, got `str` - at `$.trial.max_s` `` for the user."""
    what, path = re.fullmatch(r"(.*?)(?: - at `\$(.*)`)?", complaint, re.S).groups(default="")  # type: ignore[union-attr]  # matches anything
    keys: list[str | int] = [*around]
    hint: Any = model
    for name, index in re.findall(r"\.(\w+)|\[([0-9]+)\]", path):
        keys.append(int(index) if index else name)
        value = value[keys[-1]]
        hint = _hint_of(hint, name)
    missing = re.fullmatch("Object (missing required|contains unknown) field `(.*)`", what, re.S)
    if missing:
        keys.append(missing[2])
    name, where = ".".join(map(str, keys)), place(*keys)
    if missing and missing[1] == "missing required":
        return ConfigError(f"{name} is missing", where=where, remedy=f"Add {missing[2]}: ...")
    if missing:
        known = next(one for one in (hint, *get_args(hint)) if hasattr(one, "__struct_encode_fields__"))
        remedy = did_you_mean(missing[2], known.__struct_encode_fields__)
        return ConfigError(f"unknown key {name}", where=where, remedy=remedy)
    why = f"{name or 'it'} is {shown(value)}, but it {_expectation(what, hint)}"
    return ConfigError(why, where=where, remedy="Write a valid value.")


def _hint_of(hint: Any, name: str) -> Any:
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            names = dict(zip(one.__struct_encode_fields__, one.__struct_fields__, strict=True))
            return get_type_hints(one).get(names.get(name, name))
    return None


def _expectation(what: str, hint: Any) -> str:
    words = [word for one in (hint, *get_args(hint)) if get_origin(one) is Literal for word in get_args(one)]
    lists = ["a list"] * any(get_origin(one) is list for one in get_args(hint))
    if words:
        *others, last = [*map(repr, words), *lists]
        return f"should be {', '.join(others)} or {last}"
    expected = re.fullmatch("Expected `(.*?)`(?: (>=?|<=?) (.*?))?(?:, got .*)?", what)
    if expected is None:  # a number that no float can hold
        return "is out of range"
    kinds = expected[1].replace("int | float", "float").removesuffix(" | null").split(" | ")
    limit = f" {_LIMITS[expected[2]]} {float(expected[3]):g}" if expected[2] else ""
    return f"should be {' or '.join(_KINDS.get(kind, 'a mapping') for kind in kinds)}{limit}"
