"""Key paths of a config: their types and spelling, the closest one to a user's typo, and checks of what they hold."""

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
"""A dotted path (``data.batch_size``, ``callbacks.0.every``), or its parts, for keys that contain dots."""

NewValues = Mapping[str, Scalar] | Mapping[tuple[str | int, ...], Scalar] | Mapping[KeyPath, Scalar]
"""Values to be written, by key path; spelled out because a Mapping's key type allows no other."""


def shown(value: object, longest: int = 60) -> str:
    """Return a value as messages show it: of a long one the beginning and its length."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest - 20]}... ({len(text):,} characters)"


def scalar_text(value: Scalar) -> str:
    """Return a config value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def listed(words: Sequence[str], last: str = "and") -> str:
    """List words, with another one than a comma before the last."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first of some names, and how many more there are: ``a, b, c and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


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
    PYTHON = "Python"

    @property
    def suffix(self) -> str:
        """Suffix of the names of a trial's own copies."""
        return ".py" if self is Syntax.PYTHON else f".{self.value.lower()}"


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
    return {".json": Syntax.JSON, ".toml": Syntax.TOML, ".py": Syntax.PYTHON}.get(suffix, Syntax.YAML)


_Model = TypeVar("_Model", bound=msgspec.Struct)
_KINDS = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false", "array": "a list"}
_LIMITS = {">": "greater than", ">=": "of at least", "<": "less than", "<=": "of at most"}


def converted(value: Any, model: type[_Model], place: Callable[..., str], *around: str, strict: bool = True) -> _Model:
    """Return what a file holds as a model of its keys.

    Args:
        value: Plain data.
        model: The known keys, with their types and limits.
        place: Returns file, line and name of a path of keys.
        around: The keys around the value.
        strict: Whether a text is no number.

    Raises:
        ConfigError: Something is unknown, missing, of the wrong type, or out of range; the place is named.
    """
    try:
        return msgspec.convert(value, model, strict=strict)
    except msgspec.ValidationError as error:
        raise _translated(str(error), value, model, place, around) from error


def _translated(
    complaint: str, value: Any, model: type[msgspec.Struct], place: Callable[..., str], around: tuple[str, ...]
) -> ConfigError:
    """Translate a complaint, e.g. ``Expected `float`, got `str` - at `$.trial.max_s` ``, into the user's terms."""
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
        return ConfigError(f"{name} is missing", where=where, remedy=f"Add {missing[2]}: ... there.")
    if missing:
        known = next(one for one in (hint, *get_args(hint)) if hasattr(one, "__struct_encode_fields__"))
        remedy = did_you_mean(missing[2], known.__struct_encode_fields__)
        return ConfigError(f"unknown key {name}", where=where, remedy=remedy)
    why = f"{name or 'it'} is {shown(value)}, but it {_expectation(what, hint)}"
    return ConfigError(why, where=where, remedy="Write a value that fits.")


def _hint_of(hint: Any, name: str) -> Any:
    """Return the type of a field of a struct, which may be one of several types."""
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
