"""Static composition of a Hydra config, as hydra.cc, "The Defaults List" and "Packages", version 1.2 and later.

Supports configs in one folder: groups, ``_self_``, ``optional``, ``override``, ``group@package``, lists of options,
nested defaults, ``# @package``, and choices on the command line. All else is an error, because an unknown file could
set any key. Nothing is executed.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.config.document import Document, JoinedDocument, Leaf, read_bytes
from autotune.config.keys import KeyPath, did_you_mean, dotted, scalar_text, shown
from autotune.config.outputs import is_same_file, real_path
from autotune.config.parsers import same_value
from autotune.config.schema import SECTION
from autotune.config.sources import Script, find_script, full_name, own_words
from autotune.config.splice import plan_splices, splice
from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar

DEFAULTS = "defaults"
"""Key of a config's defaults list."""

_REMEDY = "Set the values to tune on the command line instead: autotune init --from-flags"
_GROUP = re.compile(r"(?:(?P<word>optional|override)\s+)?(?P<group>/?[\w-]+(?:/[\w-]+)*)(?:@(?P<package>[\w.]*))?")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_MOST_FILES = 200


@dataclass(frozen=True, kw_only=True)
class Part:
    """Config in a composition, placed below the keys of its package."""

    path: Path
    document: Document
    package: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Composed config: parts in merge order, and values `typed` on the command line by key."""

    folder: Path
    parts: tuple[Part, ...]
    typed: Mapping[str, str]
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Default:
    """Entry of a defaults list; the group is None for a config named by its path."""

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
        folder: Folder of the configs; None for the primary config's.

    Returns:
        None if the script does not use Hydra or this config, or the command contains ``{config}`` or ``{key}``.

    Raises:
        ConfigError: The composition is not supported.
    """
    if any(re.search(r"(?<!\{)\{(?!\{|python\})", word) for word in words):
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
            f"the script composes {main.config_name}, not this config",
            where=str(config),
            remedy=f"Pass that config, or add --config-name={config.stem} to the command.",
        )
    return _Composer(folder, {config: primary}, words).compose(config)


def compose_again(composition: Composition, config: Path, new: Mapping[Path, Document]) -> Composition:
    """Compose again with new contents of some files."""
    known = {part.path: part.document for part in composition.parts}
    return _Composer(composition.folder, {**known, **new}, composition.words).compose(config)


def users_of(composition: Composition, path: Path) -> list[Path]:
    """Return other configs in the folder whose defaults list may name a file."""
    own = {part.path.resolve() for part in composition.parts}
    name = path.relative_to(composition.folder).with_suffix("").as_posix()
    others = [other for other in sorted(composition.folder.rglob("*.yaml")) if other.resolve() not in own]
    return [other for other in others if _may_name(other, composition.folder, name)]


def _may_name(other: Path, folder: Path, name: str) -> bool:
    try:
        text = read_bytes(other).decode("utf-8", "replace")
        if DEFAULTS not in text:
            return False
        entries = list(_entries(Document(text, str(other)).data.get(DEFAULTS)))
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
        self._typed: dict[str, str] = {}
        self._typed_choices: dict[str, str | None] = {}  # they override those of the files
        self._added: list[tuple[str, str]] = []
        self._overrides: dict[str, Any] = {}
        self._matched: set[str] = set()
        self._count = 0
        for word in words[own_words(words) :]:
            if (match := _OVERRIDE.fullmatch(word)) and (match["value"] is not None or match["sign"] == "~"):
                self._read_word(word, match)

    def compose(self, config: Path) -> Composition:
        parts = self._parts(config, "", (), primary=True)
        chosen = {key for key in (*self._typed_choices, *self._overrides) if not key.startswith("hydra/")}
        if missing := chosen - self._matched:
            raise self._error(config, f"no defaults list has the group {min(missing)}, for which a config is selected")
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
                f"{word} selects several configs, or an interpolated one", where="command", remedy=_REMEDY
            )
        chosen = None if value in (None, "null") else value
        if match["sign"] == "+" and chosen is not None:
            self._added.append((key, chosen))
        else:
            self._typed_choices[key] = chosen

    def _parts(self, path: Path, group: str, package: tuple[str, ...], *, primary: bool = False) -> list[Part]:
        self._count += 1
        if self._count > _MOST_FILES:
            raise self._error(path, f"it consists of more than {_MOST_FILES} files, or includes itself")
        document = self._read(path)
        own = Part(path=path, document=document, package=package) if document else None
        entries = list(_entries((document.data if document else {}).get(DEFAULTS), str(path)))
        if primary:
            entries += [next(_entries([{group: name}])) for group, name in self._added]
        if not any(entry.name == "_self_" for entry in entries):
            entries.append(_Default(group=None, name="_self_", package=None, optional=False, override=False))
        for entry in entries:
            if entry.override and entry.group is not None:
                self._overrides.setdefault(self._key(entry, group, package), entry.name)
        found: list[list[Part]] = []
        # From last to first, as in Hydra: an override follows its group.
        for entry in reversed(entries):
            if entry.name == "_self_":
                found.append([own] if own else [])
            elif not entry.override:
                found.append(self._chosen(path, entry, group, package))
        return [part for parts in reversed(found) for part in parts]

    def _key(self, entry: _Default, group: str, package: tuple[str, ...]) -> str:
        """Return the name to override a group by."""
        whole = _joined(group, entry.group or "")
        below = (entry.group or "").lstrip("/").replace("/", ".")
        final = ".".join(_final(package, below if entry.package is None else entry.package))
        return whole if final == whole.replace("/", ".") else f"{whole}@{final or '_global_'}"

    def _chosen(self, path: Path, entry: _Default, group: str, package: tuple[str, ...]) -> list[Part]:
        name: Any = entry.name
        if entry.group is not None:
            key = self._key(entry, group, package)
            self._matched.add(key)
            name = self._typed_choices.get(key, self._overrides.get(key, name))  # a typed None removes the group
        if name is None or _joined(group, entry.group or "").partition("/")[0] == "hydra":
            return []
        parts: list[Part] = []
        for one in _names(name):
            if not re.fullmatch(r"/?\w[\w.+-]*(?:/\w[\w.+-]*)*", one):
                raise self._error(path, f"its defaults list contains {shown(one)}, which is not supported")
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
            raise self._error(path, f"its defaults list names {whole}, which does not exist in {self._folder}")
        document = self._read(file)
        header = re.search(r"^\s*#\s*@package\s+(\S+)\s*$", document.text, re.MULTILINE) if document else None
        own = entry.package if entry.package is not None else f"_global_.{header[1]}" if header else None
        if own is not None and ("_group_" in own or "_name_" in own):
            raise self._error(file, f"the package {own.removeprefix('_global_.')} depends on the version of Hydra")
        group = whole.rpartition("/")[0]
        return self._parts(file, group, _final(package, below.replace("/", ".") if own is None else own))

    def _read(self, path: Path) -> Document | None:
        if path not in self._documents:
            content = read_bytes(path).decode("utf-8", "replace")
            if not re.sub(r"(?m)^\s*(#.*)?$", "", content).strip():
                return None  # no keys
            self._documents[path] = Document(content, str(path))
        return self._documents[path]

    def _error(self, path: Path, why: str) -> ConfigError:
        return ConfigError(f"this Hydra config cannot be composed: {why}", where=str(path), remedy=_REMEDY)


def _entries(found: Any, where: str = "") -> Iterator[_Default]:
    for entry in found if isinstance(found, list) else []:
        if isinstance(entry, str):
            name, _, package = entry.partition("@")
            yield _Default(group=None, name=name, package=package or None, optional=False, override=False)
            continue
        key, value = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else ("", None)
        match = _GROUP.fullmatch(str(key))
        if match is None:
            raise ConfigError(
                f"the defaults list contains {shown(entry)}, which is not supported", where=where, remedy=_REMEDY
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
    return [str(one) for one in (name if isinstance(name, list) else [name]) if one is not None]


def _joined(group: str, below: str) -> str:
    if below.startswith("/"):
        return below[1:]
    return f"{group}/{below}" if group and below else group or below


def _final(parent: tuple[str, ...], package: str) -> tuple[str, ...]:
    words = (*parent, *(word for word in package.split(".") if word and word != "_here_"))
    if "_global_" in words:
        words = words[len(words) - words[::-1].index("_global_") :]
    return words


_Value = tuple[Leaf, Part | None]
"""Value, and the part it comes from; None for the command line."""


class ComposedDocument(JoinedDocument):
    """Composed config: text of the primary one, values of all."""

    def __init__(self, first: Document, composition: Composition) -> None:
        super().__init__(first, {})
        self.composition = composition

    @cached_property
    def data(self) -> dict[str, Any]:
        """Values without the defaults lists and the `hydra` keys."""
        data: dict[str, Any] = {}
        for part in self.composition.parts:
            below = {key: value for key, value in part.document.data.items() if key not in (DEFAULTS, SECTION)}
            for key in reversed(part.package):
                below = {key: below}
            _merge(data, below)
        return {key: value for key, value in data.items() if key != "hydra"}

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Scalars, each with line and text of the file it comes from."""
        return tuple(leaf for leaf, _ in self._values.values())

    def leaf(self, path: KeyPath) -> Leaf:
        name = dotted(path)
        if name not in self._values:
            remedy = did_you_mean(name, self._values)
            raise CannotEditYaml(name, "the composed config has no such value", line=None, remedy=remedy)
        return self._values[name][0]

    def line(self, path: KeyPath) -> int | None:
        return self._values[dotted(path)][0].line if dotted(path) in self._values else None

    def __contains__(self, path: KeyPath) -> bool:
        return dotted(path) in self._values or any(name.startswith(f"{dotted(path)}.") for name in self._values)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path for part in self.composition.parts)

    def check_by_second_parser(self) -> None:
        for part in self.composition.parts:
            part.document.check_by_second_parser()

    def edits(self, values: Mapping[str, Scalar], config: Path) -> dict[Path, dict[KeyPath, Scalar]]:
        """Return the values to write into each file.

        Raises:
            ConfigError: Another config uses the file, or another value would change.
        """
        found: dict[Path, dict[KeyPath, Scalar]] = {}
        for name, value in values.items():
            leaf, part = self._values[name]
            assert part is not None, "a value of the command line is not a knob"
            if part.path != config and (others := users_of(self.composition, part.path)):
                raise _not_separate(f"{part.path}, which {others[0]} also uses", values)
            found.setdefault(part.path, {})[leaf.path[len(part.package) :]] = value
        documents = {part.path: part.document for part in self.composition.parts}
        new = {
            path: Document(splice(documents[path], plan_splices(documents[path], inside)), str(path))
            for path, inside in found.items()
        }
        after = ComposedDocument(self.first, compose_again(self.composition, config, new))
        wanted = {**self.scalars, **values}
        changed = [name for name in {**wanted, **after.scalars} if not _same_in(name, wanted, after.scalars)]
        if changed:
            raise _not_separate(f"a file where this would also change {changed[0]}", values)
        return found

    @cached_property
    def _values(self) -> dict[str, _Value]:
        values: dict[str, _Value] = {}
        for part in self.composition.parts:
            for leaf in part.document.leaves:
                path = (*part.package, *leaf.path)
                if leaf.path[0] in (DEFAULTS, SECTION) or path[0] == "hydra":
                    continue
                is_in_a_list = any(isinstance(key, int) for key in path)
                why = "it is in a list, which an override replaces as a whole" if is_in_a_list else leaf.why_fixed
                _drop_hidden(values, path, part)
                name = dotted(path)
                values.pop(name, None)
                values[name] = replace(leaf, path=path, why_fixed=why), part
        # A mapping or list that replaces a value hides it, and vice versa.
        present = {name: value for name, value in values.items() if _is_at(self.data, value[0].path)}
        for key, text in self.composition.typed.items():
            present |= self._typed(present, key, text)
        return present

    def _typed(self, values: Mapping[str, _Value], key: str, text: str) -> dict[str, _Value]:
        why = f"{key} is set on the command line"
        return {
            name: (replace(leaf, text=text if name == key else leaf.text, why_fixed=why, computed=True), None)
            for name, (leaf, _) in values.items()
            if name == key or name.startswith(f"{key}.")
        }


def overrides(changed: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the override words that set these values for a Hydra trainer."""
    return tuple(f"{name}={hydra_value(value)}" for name, value in changed.items())


def _merge(data: dict[str, Any], below: Mapping[str, Any]) -> None:
    for key, value in below.items():
        if isinstance(value, dict):
            if not isinstance(data.get(key), dict):
                data[key] = {}
            _merge(data[key], value)
        else:
            data[key] = value


def _drop_hidden(values: dict[str, _Value], path: tuple[str | int, ...], part: Part) -> None:
    lists = [path[:i] for i, key in enumerate(path) if isinstance(key, int)]
    if not lists:
        return
    prefix = f"{dotted(lists[0])}."
    for name in [name for name, (_, other) in values.items() if name.startswith(prefix) and other is not part]:
        del values[name]


def _is_at(data: Any, path: Iterable[str | int]) -> bool:
    for key in path:
        try:
            data = data[key]
        except (LookupError, TypeError):
            return False
    return not isinstance(data, dict | list)


def _same_in(name: str, one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> bool:
    return name in one and name in other and same_value(one[name], other[name])


def _not_separate(why: str, values: Mapping[str, Scalar]) -> ConfigError:
    words = " ".join(overrides(values))
    return ConfigError(
        f"the values would go into {why}; nothing was written",
        where=shown(next(iter(values))).strip("'"),
        remedy=f"Add them to the training command: {words}",
    )


RUN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
"""Keys of the output folder of a run, or of a multirun."""

OWN_FLAGS = frozenset(
    (
        *("cfg", "config-dir", "config-name", "config-path", "experimental-rerun", "help", "hydra-help", "info"),
        *("multirun", "package", "resolve", "run", "shell-completion", "version"),
    )
)
"""Names of Hydra's own flags."""

_WORD = re.compile(r"(?!(?:true|false|null|inf|nan)$)[A-Za-z_./][\w/.:@%+-]*", re.ASCII | re.IGNORECASE)
_TYPED_OVERRIDE = re.compile(r"(?:\+{0,2}|~)[A-Za-z_$][^=\s]*=.*|~[A-Za-z_].*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class HydraMain:
    """Decorator ``hydra.main`` of a script: folder and name (without suffix) of the primary config."""

    config_folder: Path | None
    config_name: str | None

    @property
    def groups(self) -> frozenset[str]:
        try:
            with os.scandir(self.config_folder or "") as entries:
                return frozenset(entry.name for entry in entries if entry.is_dir())
        except OSError:
            return frozenset()


def hydra_main(script: Script) -> HydraMain | None:
    """Return the ``hydra.main`` of a script, if any."""
    names = ("hydra.main", "nemo.core.config.hydra_runner")  # NeMo's is a `hydra.main` with a schema
    for node in ast.walk(script.tree):
        called = node.func if isinstance(node, ast.Call) else node
        if full_name(called, script.imported) in names:
            given = {word.arg: word.value for word in node.keywords} if isinstance(node, ast.Call) else {}
            folder, name = _text(given.get("config_path")), _text(given.get("config_name"))
            return HydraMain(
                config_folder=script.path.parent / folder if script.path and folder is not None else None,
                config_name=None if name is None else re.sub(r"\.ya?ml$", "", name),
            )
    return None


def uses_hydra(words: Sequence[str], cwd: Path) -> bool:
    """Return whether a command starts a script with a ``hydra.main``."""
    return hydra_main(find_script(words, cwd)) is not None


def with_run_folder(argv: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the command of a Hydra trainer with this output folder for runs and multiruns."""
    start = own_words(argv)
    without = (
        *argv[:start],
        *(word for word in argv[start:] if not re.fullmatch(r"\+{0,2}hydra\.(?:run|sweep)\.dir=.*", word, re.DOTALL)),
    )
    return with_overrides(without, [f"{key}={hydra_text(os.fspath(folder))}" for key in RUN_FOLDERS])


def with_overrides(argv: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a Hydra trainer with overrides that win over the same keys."""
    start = own_words(argv)
    own = argv[start:]
    # Overrides must be adjacent: after a flag, argparse accepts no more of them.
    end = max((i + 1 for i, word in enumerate(own) if _TYPED_OVERRIDE.fullmatch(word)), default=len(own))
    return (*argv[:start], *own[:end], *added, *own[end:])


def hydra_text(text: str) -> str:
    """Return a text as the value of an override, quoted if needed."""
    if re.fullmatch(r"[\w/.:@%+-]*", text, re.ASCII):
        return text
    quoted = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + quoted.replace("${", "\\${") + "'"


def hydra_value(value: Scalar) -> str:
    """Return a value as in an override."""
    if value is None or isinstance(value, bool):
        return scalar_text(value)
    if not isinstance(value, str):
        return repr(value)
    text = hydra_text(value)
    return f"'{text}'" if text == value and not _WORD.fullmatch(text) else text


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
