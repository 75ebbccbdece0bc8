"""Composed Hydra config, read like one document: each value with the file that it comes from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import CannotEditYaml, ConfigError
from autotune.records import Scalar
from autotune.settings.hydra.compose import DEFAULTS, Composition, Part, compose_again, users_of
from autotune.settings.hydra.overrides import hydra_value
from autotune.settings.schema import SECTION
from autotune.settings.text.document import Document, Leaf
from autotune.settings.text.joined import JoinedDocument
from autotune.settings.text.keys import KeyPath, did_you_mean, dotted, shown
from autotune.settings.text.parsers import same_value
from autotune.settings.text.splice import plan_splices, splice

_IN_A_LIST = "it stands in a list, which an override replaces whole"


@dataclass(frozen=True, kw_only=True)
class _Value:
    """Value of the composed config: its leaf, and the part that it comes from; None for one of the command line."""

    leaf: Leaf
    part: Part | None


class ComposedDocument(JoinedDocument):
    """Composed config: the primary one's text, and the values of all.

    Args:
        first: The primary config.
        composition: What it is made of.
    """

    def __init__(self, first: Document, composition: Composition) -> None:
        super().__init__(first, {})
        self.composition = composition

    @cached_property
    def data(self) -> dict[str, Any]:
        """See `Document.data`; without the defaults lists, and what is for Hydra itself."""
        data: dict[str, Any] = {}
        for part in self.composition.parts:
            below = {key: value for key, value in part.document.data.items() if key not in (DEFAULTS, SECTION)}
            for key in reversed(part.package):
                below = {key: below}
            _merge(data, below)
        data.pop("hydra", None)
        return data

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """See `Document.leaves`; a value has the line and the text of the file that it comes from."""
        return tuple(value.leaf for value in self._values.values())

    def leaf(self, path: KeyPath) -> Leaf:
        """See `Document.leaf`."""
        name = dotted(path)
        if name not in self._values:
            remedy = did_you_mean(name, self._values)
            raise CannotEditYaml(name, "there is no such value in the composed config", line=None, remedy=remedy)
        return self._values[name].leaf

    def line(self, path: KeyPath) -> int | None:
        """See `Document.line`."""
        return self._values[dotted(path)].leaf.line if dotted(path) in self._values else None

    def __contains__(self, path: KeyPath) -> bool:
        return dotted(path) in self._values or any(name.startswith(f"{dotted(path)}.") for name in self._values)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that the config is made of."""
        return tuple(dict.fromkeys(part.path for part in self.composition.parts))

    def check_by_second_parser(self) -> None:
        """See `Document.check_by_second_parser`."""
        for part in self.composition.parts:
            part.document.check_by_second_parser()

    def edits(self, values: Mapping[str, Scalar], config: Path) -> dict[Path, dict[KeyPath, Scalar]]:
        """Return the values that each file has to get, so that these and no others change in the composed config.

        Args:
            values: New values by key.
            config: The primary config.

        Raises:
            ConfigError: A value is not a file's alone: other configs use the file too, or another value would change.
        """
        found: dict[Path, dict[KeyPath, Scalar]] = {}
        for name, value in values.items():
            part = self._values[name].part
            assert part is not None, "a value of the command line is no knob"
            if part.path != config and (others := users_of(self.composition, part.path)):
                raise _not_alone(f"{part.path}, which {others[0]} uses too", values)
            found.setdefault(part.path, {})[self._values[name].leaf.path[len(part.package) :]] = value
        documents = {part.path: part.document for part in self.composition.parts}
        new = {
            path: Document.parse(splice(documents[path], plan_splices(documents[path], inside)), str(path))
            for path, inside in found.items()
        }
        after = ComposedDocument(self.first, compose_again(self.composition, config, new))
        wanted = {**self.scalars, **values}
        changed = [name for name in {**wanted, **after.scalars} if not _same_in(name, wanted, after.scalars)]
        if changed:
            raise _not_alone(f"a file whose change would change {changed[0]} too", values)
        return found

    @cached_property
    def _values(self) -> dict[str, _Value]:
        values: dict[str, _Value] = {}
        for part in self.composition.parts:
            for leaf in part.document.leaves:
                path = (*part.package, *leaf.path)
                if leaf.path[0] in (DEFAULTS, SECTION) or path[0] == "hydra":
                    continue
                why = _IN_A_LIST if any(isinstance(key, int) for key in path) else leaf.why_fixed
                _drop_hidden(values, path, part)
                name = dotted(path)
                values.pop(name, None)
                values[name] = _Value(leaf=replace(leaf, path=path, why_fixed=why), part=part)
        # A mapping or list in the place of a value, and the other way round, hides what it replaces.
        present = {name: value for name, value in values.items() if _is_at(self.data, value.leaf.path)}
        for key, text in self.composition.typed.items():
            present |= self._typed(present, key, text)
        return present

    def _typed(self, values: Mapping[str, _Value], key: str, text: str) -> dict[str, _Value]:
        """Return the values that a word of the command sets, as they are fixed by that."""
        why = f"{key} is set on the command line"
        return {
            name: _Value(
                leaf=replace(value.leaf, text=text if name == key else value.leaf.text, why_fixed=why, computed=True),
                part=None,
            )
            for name, value in values.items()
            if name == key or name.startswith(f"{key}.")
        }


def overrides(changed: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the words that set these values on a Hydra trainer's command line."""
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
    """Drop the items of a list that another file's list takes the place of."""
    lists = [path[:i] for i, key in enumerate(path) if isinstance(key, int)]
    if not lists:
        return
    prefix = f"{dotted(lists[0])}."
    for name in [name for name, value in values.items() if name.startswith(prefix) and value.part is not part]:
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


def _not_alone(why: str, values: Mapping[str, Scalar]) -> ConfigError:
    words = " ".join(overrides(values))
    return ConfigError(
        f"the values would go into {why}; nothing was written",
        where=shown(next(iter(values))).strip("'"),
        remedy=f"Type them where you start the training: {words}",
    )
