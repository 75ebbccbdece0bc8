"""Static composition of a Hydra config: which files it is made of, in which order, and below which keys.

Follows hydra.cc, "The Defaults List" and "Packages" (version 1.2 and later), for configs in one folder: groups and
configs, ``_self_``, ``optional``, ``override``, ``group@package``, lists of options, nested defaults, the header
``# @package``, and choices on the command line. Nothing is executed. What it does not follow (names that are worked
out, several choices at once, files elsewhere) is an error, since a file that is not known could set any key.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import ConfigError
from autotune.settings.hydra.overrides import hydra_main
from autotune.settings.paths import is_same_file, real_path
from autotune.settings.script import find_script, own_words
from autotune.settings.text.document import Document, read_bytes
from autotune.settings.text.keys import shown

DEFAULTS = "defaults"
"""Key of a config's defaults list."""

_REMEDY = "Type the values that are to be tuned on the command line instead: autotune init --from-flags"
_HEADER = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)
_NAME = re.compile(r"/?\w[\w.+-]*(?:/\w[\w.+-]*)*")
_GROUP = re.compile(r"(?:(?P<word>optional|override)\s+)?(?P<group>/?[\w-]+(?:/[\w-]+)*)(?:@(?P<package>[\w.]*))?")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_PLACEHOLDER = re.compile(r"(?<!\{)\{(?!\{|python\})")
_MOST_FILES = 200


@dataclass(frozen=True, kw_only=True)
class Part:
    """Config that a composition is made of.

    Attributes:
        path: Its file.
        document: Its content.
        package: The keys that it is put below.
    """

    path: Path
    document: Document
    package: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Composed config.

    Attributes:
        folder: The folder of the configs.
        parts: Its parts; of two that set a key the later one counts.
        typed: Values set on the command line, by key.
        words: The command.
    """

    folder: Path
    parts: tuple[Part, ...]
    typed: Mapping[str, str]
    words: tuple[str, ...]


@dataclass
class _Choices:
    """Choices of groups: those of the command line beat those of the files."""

    typed: dict[str, str | None] = field(default_factory=dict)
    added: list[tuple[str, str]] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    matched: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _Default:
    """Entry of a defaults list; a group is None for a config that is named by its path."""

    group: str | None
    name: Any
    package: str | None
    optional: bool
    override: bool


def compose(
    config: Path, primary: Document, words: Sequence[str], cwd: Path, *, folder: Path | None = None
) -> Composition | None:
    """Compose a config as Hydra does for a command.

    Args:
        config: The primary config.
        primary: Its content.
        words: The command, split.
        cwd: The directory that it is started in.
        folder: The folder of the configs; None for the one that the primary config is in.

    Returns:
        The composition; None if the command's script is no Hydra one, the config neither has a defaults list nor is
        the script's, or the command takes the config's path or values (``{config}``, ``{key}``).

    Raises:
        ConfigError: The composition cannot be followed; the message names the file.
    """
    if any(_PLACEHOLDER.search(word) for word in words):
        return None
    main = hydra_main(find_script(words, cwd))
    if main is None:
        return None
    folder = folder or config.parent
    own = main.config_folder / f"{main.config_name}.yaml" if main.config_folder and main.config_name else None
    if DEFAULTS not in primary.data and not (own and is_same_file(own, folder / config.name)):
        return None
    is_named = any(word.startswith(("--config-name", "-cn")) for word in words)
    if main.config_name not in (None, config.stem) and not is_named:
        raise ConfigError(
            f"the script composes {main.config_name}, and this config is another one",
            where=str(config),
            remedy=f"Give the path of that one, or type --config-name={config.stem} in the command.",
        )
    return _Composer(folder, {config: primary}, words).compose(config)


def compose_again(composition: Composition, config: Path, new: Mapping[Path, Document]) -> Composition:
    """Compose again with other contents in place of some files."""
    known = {part.path: part.document for part in composition.parts}
    return _Composer(composition.folder, {**known, **new}, composition.words).compose(config)


def users_of(composition: Composition, path: Path) -> list[Path]:
    """Return the configs outside of the composition, in the same folder, whose defaults list may name a file."""
    own = {part.path.resolve() for part in composition.parts}
    name = path.relative_to(composition.folder).with_suffix("").as_posix()
    others = [other for other in sorted(composition.folder.rglob("*.yaml")) if other.resolve() not in own]
    return [other for other in others if _may_name(other, composition.folder, name)]


def _may_name(other: Path, folder: Path, name: str) -> bool:
    try:
        text = read_bytes(other).decode("utf-8", "replace")
        if DEFAULTS not in text:
            return False
        entries = list(_entries(Document.parse(text, str(other)).data.get(DEFAULTS)))
    except ConfigError:
        return True
    here = other.relative_to(folder).parent.as_posix().removeprefix(".")
    named = [
        _joined(here, f"{entry.group}/{one}" if entry.group else one) for entry in entries for one in _names(entry.name)
    ]
    return any("${" in one or one.removesuffix(".yaml") == name for one in named)


class _Composer:
    def __init__(self, folder: Path, documents: Mapping[Path, Document], words: Sequence[str]) -> None:
        self._folder = folder
        self._documents = dict(documents)
        self._words = tuple(words)
        self._choices = _Choices()
        self._typed: dict[str, str] = {}
        self._count = 0
        for word in words[own_words(words) :]:
            if (match := _OVERRIDE.fullmatch(word)) and (match["value"] is not None or match["sign"] == "~"):
                self._read_word(word, match)

    def compose(self, config: Path) -> Composition:
        """Return the composition of the primary config."""
        parts = self._parts(config, "", (), primary=True)
        asked = {key for key in (*self._choices.typed, *self._choices.overrides) if not key.startswith("hydra/")}
        if missing := asked - self._choices.matched:
            raise self._error(config, f"no defaults list has the group {min(missing)}, for which a config is chosen")
        return Composition(folder=self._folder, parts=tuple(parts), typed=self._typed, words=self._words)

    def _read_word(self, word: str, match: re.Match[str]) -> None:
        key, value = match["key"], match["value"]
        if key.partition(".")[0].partition("/")[0] == "hydra":
            return
        group = key.partition("@")[0]
        if "." in group or not (self._folder / group).is_dir():
            self._typed[key] = value or ""
            return
        if value is not None and not re.fullmatch(r"null|[\w./+-]*", value):
            raise ConfigError(
                f"{word} chooses several configs, or one that is worked out", where="command", remedy=_REMEDY
            )
        chosen = None if value in (None, "null") else value
        if match["sign"] == "+" and chosen is not None:
            self._choices.added.append((key, chosen))
        else:
            self._choices.typed[key] = chosen

    def _parts(self, path: Path, group: str, package: tuple[str, ...], *, primary: bool = False) -> list[Part]:
        """Return a config's parts, itself among them, in the order in which they are merged."""
        self._count += 1
        if self._count > _MOST_FILES:
            raise self._error(path, f"it is made of more than {_MOST_FILES} files, or of itself")
        document = self._read(path)
        own = Part(path=path, document=document, package=package) if document else None
        entries = list(_entries((document.data if document else {}).get(DEFAULTS), str(path)))
        if primary:
            added = self._choices.added
            entries += [next(_entries([{group: name}])) for group, name in added]
        if not any(entry.name == "_self_" for entry in entries):
            entries.append(_Default(group=None, name="_self_", package=None, optional=False, override=False))
        for entry in entries:
            if entry.override and entry.group is not None:
                key = self._key(entry, group, package)
                self._choices.overrides.setdefault(key, entry.name)
        found: list[list[Part]] = []
        # From the last to the first, as Hydra does: what overrides a group stands behind it.
        for entry in reversed(entries):
            if entry.name == "_self_":
                found.append([own] if own else [])
            elif not entry.override:
                found.append(self._chosen(path, entry, group, package))
        return [part for parts in reversed(found) for part in parts]

    def _key(self, entry: _Default, group: str, package: tuple[str, ...]) -> str:
        """Return the name that a group is overridden by: its path, with the package if that is not the usual one."""
        whole = _joined(group, entry.group or "")
        below = (entry.group or "").lstrip("/").replace("/", ".")
        final = ".".join(_final(package, below if entry.package is None else entry.package))
        return whole if final == whole.replace("/", ".") else f"{whole}@{final or '_global_'}"

    def _chosen(self, path: Path, entry: _Default, group: str, package: tuple[str, ...]) -> list[Part]:
        """Return the parts of an entry of a defaults list."""
        name: Any = entry.name
        if entry.group is not None:
            key = self._key(entry, group, package)
            self._choices.matched.add(key)
            if key in self._choices.typed:
                name = self._choices.typed[key]  # None takes the group out
            elif key in self._choices.overrides:
                name = self._choices.overrides[key]
        if name is None or _joined(group, entry.group or "").partition("/")[0] == "hydra":
            return []
        parts: list[Part] = []
        for one in _names(name):
            if not _NAME.fullmatch(one):
                raise self._error(path, f"its defaults list holds {shown(one)}, which is not followed")
            whole = _joined(group, f"{entry.group}/{one}" if entry.group else one)
            below = entry.group if entry.group is not None else one.rpartition("/")[0]
            parts += self._file(path, entry, whole, below.lstrip("/"), package)
        return parts

    def _file(self, path: Path, entry: _Default, whole: str, below: str, package: tuple[str, ...]) -> list[Part]:
        file = self._folder / f"{whole.removesuffix('.yaml')}.yaml"
        real = real_path(file)
        if real is None or not real.is_relative_to(os.path.realpath(self._folder)) or not os.path.isfile(real):
            if entry.optional:
                return []
            raise self._error(path, f"its defaults list names {whole}, and there is no such config in {self._folder}")
        document = self._read(file)
        header = _HEADER.search(document.text) if document else None
        own = entry.package if entry.package is not None else f"_global_.{header[1]}" if header else None
        if own is not None and ("_group_" in own or "_name_" in own):
            raise self._error(file, f"the package {own.removeprefix('_global_.')} depends on the version of Hydra")
        group = whole.rpartition("/")[0]
        return self._parts(file, group, _final(package, below.replace("/", ".") if own is None else own))

    def _read(self, path: Path) -> Document | None:
        if path not in self._documents:
            content = read_bytes(path).decode("utf-8", "replace")
            if not re.sub(r"(?m)^\s*(#.*)?$", "", content).strip():
                return None  # a config without a key
            self._documents[path] = Document.parse(content, str(path))
        return self._documents[path]

    def _error(self, path: Path, why: str) -> ConfigError:
        return ConfigError(f"{why}; so this Hydra config cannot be composed", where=str(path), remedy=_REMEDY)


def _entries(found: Any, where: str = "") -> Iterator[_Default]:
    """Yield the entries of a defaults list."""
    for entry in found if isinstance(found, list) else []:
        if isinstance(entry, str):
            name, _, package = entry.partition("@")
            yield _Default(group=None, name=name, package=package or None, optional=False, override=False)
            continue
        pair: tuple[Any, Any] = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else ("", None)
        key, value = pair
        match = _GROUP.fullmatch(str(key))
        if match is None:
            raise ConfigError(
                f"the defaults list holds {shown(entry)}, which is not followed", where=where, remedy=_REMEDY
            )
        is_path = match["word"] == "optional" and match["group"] == "optional"
        yield _Default(
            group=None if is_path else match["group"],
            name=value,
            package=match["package"],
            optional=match["word"] == "optional",
            override=match["word"] == "override",
        )


def _names(name: Any) -> list[str]:
    return (
        [str(one) for one in name if one is not None] if isinstance(name, list) else [] if name is None else [str(name)]
    )


def _joined(group: str, below: str) -> str:
    if below.startswith("/"):
        return below[1:]
    return f"{group}/{below}" if group and below else group or below


def _final(parent: tuple[str, ...], package: str) -> tuple[str, ...]:
    words = (*parent, *(word for word in package.split(".") if word and word != "_here_"))
    if "_global_" in words:
        words = words[len(words) - words[::-1].index("_global_") :]
    return words
