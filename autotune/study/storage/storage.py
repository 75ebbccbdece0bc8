"""Interface of a storage of studies: a folder of journal files, or a database."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.clock import Clock
from autotune.study.storage.lock import LockProbe

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

DAMAGE = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""Errors of Optuna for foreign or damaged contents."""

REPEAT = "Free some space or fix the permissions, then run the same command again to resume."
"""Remedy for a file that can't be written."""


class StoredTrial(Protocol):
    """Trial of Optuna or of a journal."""

    user_attrs: dict[str, Any]
    datetime_start: datetime | None


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Connection to the storage of one study.

    Attributes:
        expected: Returns the context of each read or write, which holds the necessary lock and raises errors of disks,
            servers and other writers as `StudyError`, or as `StorageAway` if temporary.
        names: Returns the names of its Optuna studies, possibly with others.
        pull: Reads other processes' changes.
        is_remote: Whether it may be temporarily unreachable.
        lock_probe: Returns a member's probe if the storage needs file locks.
    """

    storage: BaseStorage
    expected: Callable[[], AbstractContextManager[None]]
    names: Callable[[], list[str]]
    pull: Callable[[], None] = lambda: None
    is_remote: bool = False
    torn_bytes: int = 0
    close: Callable[[], None] = lambda: None
    lock_probe: Callable[[str], LockProbe] | None = None


class Storage(Protocol):
    """Place for studies. All methods raise `StudyError` if it is unusable."""

    def where(self, study: str) -> str:
        """Return the location of a study, without secrets."""
        ...

    def latest(self, pattern: str) -> str | None:
        """Return the most recently written study whose name matches a shell pattern."""
        ...

    def names(self) -> list[str]:
        """Return the names of all studies, sorted."""
        ...

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Connect to a study, which need not exist, and repair it; `reads_only` creates no files."""
        ...

    def attributes(self, name: str) -> list[object]:
        """Return this attribute of all studies, if one query suffices."""
        ...

    def archive(self, study: str, clock: Clock) -> None:
        """Archive a study, so that a new one can have its name."""
        ...

    def discard(self, study: str, trash: Path) -> None:
        """Move a study's own files into an existing folder, and delete the rest."""
        ...


# Group of Optuna studies that form a study: ``<name>``, then ``<name>~2``, ``~3`` for trials that don't fit


ARCHIVED_BEFORE = "set_aside"
"""Attribute of a member before which all others are archived."""

MEMBER_NUMBERS = 1_000_000
"""Range of trial numbers of each member."""

_FURTHER_MEMBER = re.compile(r"(.*)~([2-9]\d{0,5}|1\d{1,5})", re.DOTALL)


def member_names(study: str, names: Collection[str]) -> list[str]:
    """Return the members among a storage's names, oldest first."""
    matches = (_FURTHER_MEMBER.fullmatch(name) for name in set(names))
    further = sorted(int(match[2]) for match in matches if match and match[1] == study)
    return [*([study] if study in names else []), *(f"{study}~{number}" for number in further)]


def first_kept(attributes: Sequence[Mapping[str, Any]]) -> int:
    """Return the place of the first member that isn't archived, by the attributes of each."""
    return max((place for place, some in enumerate(attributes) if ARCHIVED_BEFORE in some), default=0)


def next_member(study: str, members: Sequence[str]) -> str:
    """Return the name of the next member."""
    if not members:
        return study
    last = _FURTHER_MEMBER.fullmatch(members[-1])
    return f"{study}~{int(last[2]) + 1 if last else 2}"


def is_member(name: str) -> bool:
    """Return whether a name is that of a second or later member."""
    return _FURTHER_MEMBER.fullmatch(name) is not None
