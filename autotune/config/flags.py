"""Flags of a command turned into a config, for trainers that read no config file.

Supported: ``--key=value``, ``--key value``, switches, ``-b 8`` and ``-b8`` if the trainer's source declares the long
name, and overrides ``section.key=value``, also with ``+`` or ``++``. A switch turned off is omitted, or replaced by the
trainer's negation (``--nokey`` of absl and fire, ``--no-key`` of click). A declared flag that is not typed, but names a
known knob or an output, is added once its value changes.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from autotune.config.command import literal
from autotune.config.hydra import OWN_FLAGS, hydra_main
from autotune.config.outputs import is_output_flag
from autotune.config.schema import SECTION
from autotune.config.sources import Script, own_words
from autotune.config.splice import new_scalar

_FLAG = re.compile(r"--(?P<name>[A-Za-z][\w.-]*)(?P<equals>=(?P<value>.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2})(?P<name>[A-Za-z_][\w-]*(?:\.[\w-]+)*)=(?P<value>.*)", re.DOTALL)
_GROUP = re.compile(r"\+{0,2}[A-Za-z_][\w.-]*[/@][\w./@-]*=.*", re.DOTALL)
_NO_SCALAR = re.compile(r"[\[\]{}(),'\"$\\]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|-?\.[0-9]+(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_PLAIN_PATH = re.compile(r"[\w./~-]+")
_PLAIN_WORDS = ("true", "false", "True", "False")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of a command line.

    Attributes:
        values: YAML text of each value by key.
        command: The command with placeholders for the values.
        left: Words that look like flags and stay unchanged, with the reason.
        declared: Keys of flags that were not typed; the values are the trainer's defaults.
    """

    values: Mapping[str, str]
    command: tuple[str, ...]
    left: Mapping[str, str]
    declared: frozenset[str] = frozenset()


def read_flags(words: Sequence[str], is_known: Callable[[str], bool], script: Script | None = None) -> Flags:
    """Extract the values of a typed command's flags and overrides; `is_known` recognizes names of knobs."""
    start = own_words(words)
    own = list(words[start:])
    end = own.index("--") if "--" in own else len(own)
    reader = _Reader(own[:end], is_known, script or Script())
    reader.read()
    declared = reader.add_declared()
    left = {word: "it belongs to the launcher" for word in words[:start] if word.startswith("-")}
    return Flags(
        values=reader.values,
        command=(*map(literal, words[:start]), *reader.command, *map(literal, own[end:])),
        left=left | reader.left,
        declared=declared,
    )


def flags_config(flags: Flags) -> str:
    """Return the text of a config with the values of flags."""
    notes = {key: f"  # {flags.values[key]} is the trainer's default" for key in flags.declared}
    keys = "".join(f"{new_scalar(key)}: {text}{notes.get(key, '')}\n" for key, text in flags.values.items())
    return f"# Flags of a training command: `autotune run` trains with these values.\n\n{keys}"


class _Reader:
    """Parser of the trainer's own words."""

    def __init__(self, words: Sequence[str], is_known: Callable[[str], bool], script: Script) -> None:
        self.values: dict[str, str] = {}
        self.command: list[str] = []
        self.left: dict[str, str] = {}
        self._words = words
        self._is_known = is_known
        self._script = script
        self._hydra = hydra_main(script)
        self._counts = Counter(key for word in words if (key := _key_of(word, self._script)) is not None)

    def read(self) -> None:
        position = 0
        while position < len(self._words):
            word = self._words[position]
            position += 1
            if match := _OVERRIDE.fullmatch(word):
                self._read_override(word, match)
            elif match := _FLAG.fullmatch(word):
                position += self._read_flag(word, match, _values_after(self._words[position:]))
            elif parts := _short_flag(word, self._script):
                position += self._read_short_flag(word, *parts, next(iter(self._words[position:]), None))
            elif _is_flag(word):
                self._leave(
                    word,
                    "the trainer's source does not declare its long name; type that one to vary it",
                )
            else:
                self._leave(word, "it selects a config of a group" if _GROUP.fullmatch(word) else None)

    def add_declared(self) -> frozenset[str]:
        """Add declared flags that name a known knob or an output; return their keys."""
        added = set()
        short = [one for one in self._script.long_options if any(word.startswith(one) for word in self._words)]
        typed = {_key(self._script.long_options[one].removeprefix("--")) for one in short}
        for flag, default in self._script.defaults.items():
            key = _key(flag.removeprefix("--"))
            is_path = isinstance(default, str) and _PLAIN_PATH.fullmatch(default) and is_output_flag(flag, default)
            is_wanted = is_path if isinstance(default, str) else self._is_known(key)
            if key in typed.union(self.values, self._counts) or not is_wanted or self._why_not_a_key(key):
                continue
            self.values[key] = new_scalar(default)
            field = f"{key}?{flag}" if isinstance(default, bool) else f"{key}!={default}?{flag}="
            self.command.append(f"{{{field}}}")
            added.add(key)
        return frozenset(added)

    def _leave(self, word: str, why: str | None) -> None:
        if why is not None:
            self.left[word] = why
        self.command.append(literal(word))

    def _why_not_a_key(self, key: str) -> str | None:
        if key in ("config", "python") or key.partition(".")[0] == SECTION:
            return "its name is reserved"
        return "it is given more than once" if self._counts[key] > 1 else None

    def _read_override(self, word: str, match: re.Match[str]) -> None:
        name = match["name"]
        if why := self._why_not_a_value(name, match["value"]):
            self._leave(word, why)
            return
        self.values[name] = _written(match["value"])
        self.command.append(f"{match['sign']}{name}={{{name}}}")

    def _why_not_a_value(self, name: str, value: str) -> str | None:
        top = name.partition(".")[0]
        if top == "hydra":
            return "it belongs to Hydra"
        if why := self._why_not_a_key(name):
            return why
        if _NO_SCALAR.search(value):
            return "it is a list, or built from other values"
        groups = self._hydra.groups if self._hydra is not None else frozenset()
        if name in groups:
            return "it selects a config of a group"
        is_text = not _NUMBER.fullmatch(value) and value not in _PLAIN_WORDS
        may_be_group = name == top and is_text and not groups and not self._is_known(name)
        return "it may select a config of a group" if may_be_group else None

    def _read_flag(self, word: str, match: re.Match[str], following: Sequence[str]) -> int:
        """Read a flag; return how many of the following words are its value."""
        name, key = match["name"], _key(match["name"])
        why = self._why_not_a_key(key)
        if self._hydra is not None and name in OWN_FLAGS:
            why = "it belongs to Hydra"
        elif not match["equals"] and _is_list(following):
            why = why or "it takes several values"
        if why:
            self._leave(word, why)
        elif match["equals"]:
            self.values[key] = _written(match["value"])
            self.command.append(f"--{name}={{{key}}}")
        elif following:
            self.values[key] = _written(following[0])
            self.command += [word, f"{{{key}}}"]
            return 1
        else:
            self._read_switch(word, name)
        return 0

    def _read_short_flag(self, word: str, flag: str, attached: str, following: str | None) -> int:
        key = _key(self._script.long_options[flag].removeprefix("--"))
        value = attached or following
        why = self._why_not_a_key(key)
        if why or value is None or _is_flag(value):
            self._leave(word, why or "it has no value")
            return 0
        self.values[key] = _written(value)
        self.command += [f"{flag}{{{key}}}"] if attached else [word, f"{{{key}}}"]
        return 0 if attached else 1

    def _read_switch(self, word: str, name: str) -> None:
        positive = re.sub(r"^no[-_]?(?=[A-Za-z])", "", name, count=1)
        key, off = _key(positive), _word_for_off(positive, self._script)
        is_free = positive != name and key not in self._counts and key not in self.values
        if is_free and (self._is_known(key) or (off == word and f"--{positive}/" in self._script.text)):
            self.values[key] = "false"
            self.command.append(f"{{!{key}?{word}}}")
            if word in (f"--no{positive}", off):  # absl accepts both words of each switch
                self.command.append(f"{{{key}?--{positive}}}")
            return
        key, off = _key(name), _word_for_off(name, self._script)
        self.values[key] = "true"
        self.command.append(f"{{{key}?{word}}}")
        if off is not None and _key_of(off, self._script) not in self._counts:
            self.command.append(f"{{!{key}?{off}}}")


def _key(name: str) -> str:
    return name.replace("-", "_")


def _key_of(word: str, script: Script) -> str | None:
    if match := _FLAG.fullmatch(word):
        return _key(match["name"])
    if parts := _short_flag(word, script):
        return _key(script.long_options[parts[0]].removeprefix("--"))
    return match["name"] if (match := _OVERRIDE.fullmatch(word)) else None


def _short_flag(word: str, script: Script) -> tuple[str, str] | None:
    if word in script.long_options:
        return word, ""
    flag, value = word[:2], word[2:]
    return (flag, value) if flag in script.long_options and _NUMBER.fullmatch(value) else None


def _values_after(words: Sequence[str]) -> list[str]:
    return list(takewhile(lambda word: not _is_flag(word) and not _OVERRIDE.fullmatch(word), words))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _word_for_off(name: str, script: Script) -> str | None:
    if script.imports("absl") or script.imports("fire"):
        return f"--no{name}"
    written = re.escape(name)
    pair = rf"--{written}/--no-{written}\b|[\"']--{written}[\"'][^()]*\bBooleanOptionalAction\b"
    return f"--no-{name}" if script.imports("typer") or re.search(pair, script.text) else None


def _is_list(values: Sequence[str]) -> bool:
    # `--size 16 data/train` is a value and a separate word; `--sizes 3 4 5` is a list.
    return len(values) > 1 and bool(_NUMBER.fullmatch(values[1])) == bool(_NUMBER.fullmatch(values[0]))


def _written(text: str) -> str:
    """Return a flag's text as YAML: numbers and switches plain, all else as text."""
    if _NUMBER.fullmatch(text) or text in _PLAIN_WORDS:
        return text
    return new_scalar(text)
