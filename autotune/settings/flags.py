"""Flags of a command made into a config, for trainers that read no YAML.

``--key=value``, ``--key value`` and switches (``--key`` alone, turned off by leaving it out; absl's ``--nokey`` turns
``--key`` off) are understood, as absl, argparse and nanoGPT-like scripts take them. The flags of the launcher
(``python``, ``torchrun``, ``accelerate launch``) are left alone.
"""

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from autotune.settings.schema import SECTION
from autotune.settings.text.splice import new_scalar
from autotune.settings.typed import literal

_FLAG = re.compile(r"--(?P<name>[A-Za-z][\w.-]*)(?P<equals>=(?P<value>.*))?", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|-?\.[0-9]+(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_RESERVED = ("config", "python", SECTION)
_PLAIN_WORDS = ("true", "false", "True", "False")
_NEGATION = re.compile(r"^no_?(?=[A-Za-z])")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of a command line.

    Attributes:
        values: Key → its value as YAML text; in the order of the command.
        command: The command with placeholders in the place of the values.
        left: Words that look like flags and stay as they are, with the reason.
    """

    values: Mapping[str, str]
    command: tuple[str, ...]
    left: Mapping[str, str]


def read_flags(words: Sequence[str], is_known: Callable[[str], bool]) -> Flags:
    """Extract the values of a command's flags.

    Args:
        words: The command as it was typed, without placeholders.
        is_known: Returns whether a key has the name of a known knob.
    """
    start = _own_words(words)
    own = list(words[start:])
    end = own.index("--") if "--" in own else len(own)
    counts = Counter(_key(match["name"]) for word in own[:end] if (match := _FLAG.fullmatch(word)))
    values: dict[str, str] = {}
    left = {word: "it is for what starts the trainer" for word in words[:start] if word.startswith("-")}
    command = [literal(word) for word in words[:start]]
    position = 0
    while position < end:
        word, match = own[position], _FLAG.fullmatch(own[position])
        following = [] if match and match["equals"] else _values_after(own[position + 1 : end])
        position += 1
        why = _why_left(word, match, following, counts)
        if why:
            left[word] = why
        if match is None or why:
            command.append(literal(word))
        elif match["equals"]:
            values[_key(match["name"])] = _written(match["value"])
            command.append(f"--{match['name']}={{{_key(match['name'])}}}")
        elif following:
            values[_key(match["name"])] = _written(following[0])
            command += [word, f"{{{_key(match['name'])}}}"]
            position += 1
        else:
            key, is_on = _switch(match["name"], is_known, {*counts, *values})
            values[key] = "true" if is_on else "false"
            command.append(f"{{{'' if is_on else '!'}{key}?{word}}}")
            if word == f"--no{key}" and not is_on:  # absl's, which knows the other word of each switch
                command.append(f"{{{key}?--{key}}}")
    return Flags(values=values, command=(*command, *map(literal, own[end:])), left=left)


def flags_config(values: Mapping[str, str]) -> str:
    """Return the text of a config that holds the values of flags; see `Flags`."""
    keys = "".join(f"{new_scalar(key)}: {text}\n" for key, text in values.items())
    return (
        f"# The flags of a training command: the values that stand here are what `autotune run` trains with.\n\n{keys}"
    )


def _own_words(words: Sequence[str]) -> int:
    """Return the index of the trainer's own words: after the script, or the module's name, or else the program."""
    for position, word in enumerate(words):
        if word.endswith(".py"):
            return position + 1
        if position and words[position - 1] == "-m":
            return position + 1
    return 1


def _key(name: str) -> str:
    return name.replace("-", "_")


def _values_after(words: Sequence[str]) -> list[str]:
    return list(takewhile(lambda word: not _is_flag(word), words))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _why_left(
    word: str, match: re.Match[str] | None, following: Sequence[str], counts: Mapping[str, int]
) -> str | None:
    if match is None:
        return "short flags are left alone" if _is_flag(word) else None
    if _key(match["name"]) in _RESERVED:
        return "its name means something else in a command, or in the config"
    if counts[_key(match["name"])] > 1:
        return "it is given more than once"
    return "it takes several values" if _is_list(following) else None


def _is_list(values: Sequence[str]) -> bool:
    # `--size 16 data/train` is one value and a word for itself; `--sizes 3 4 5` is a list.
    return len(values) > 1 and bool(_NUMBER.fullmatch(values[1])) == bool(_NUMBER.fullmatch(values[0]))


def _switch(name: str, is_known: Callable[[str], bool], taken: Container[str]) -> tuple[str, bool]:
    """Return the key of a switch, and whether it is on: ``--nouse_xla`` says that ``use_xla`` is off."""
    key = _key(name)
    positive = _NEGATION.sub("", key, count=1)
    if positive != key and is_known(positive) and positive not in taken:
        return positive, False
    return key, True


def _written(text: str) -> str:
    """Return a flag's text as YAML of the same meaning: numbers and switches plain, all else as text."""
    if _NUMBER.fullmatch(text) or text in _PLAIN_WORDS:
        return text
    return new_scalar(text)
