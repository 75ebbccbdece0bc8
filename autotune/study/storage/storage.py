"""Storage of studies: a seam. One is a folder of journal files, the other a database."""

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
"""Errors that Optuna raises where a storage holds what it did not write, or no longer what it did."""


class StoredTrial(Protocol):
    """Trial as a reader of records needs it: one of Optuna, or of a journal."""

    user_attrs: dict[str, Any]
    datetime_start: datetime | None


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Connection to the storage of one study.

    Attributes:
        expected: Returns the context in which each read or write is done. It holds whatever lock that needs, and turns
            what disks, servers and other writers can do into `StudyError`; where the storage cannot be reached for the
            moment, into `StorageAway`.
        names: Returns the names of its Optuna studies, perhaps with others.
        pull: Reads what others have written, where that is kept in memory otherwise.
        is_remote: Whether it may be away for a while, so that what it does not answer is written later.
        lock_probe: Returns the probe of a member, where everything hangs on the locks of a disk; None elsewhere.
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
    """Place that keeps studies. All methods raise `StudyError` where it cannot be used."""

    def where(self, study: str) -> str:
        """Return the place of a study in words, without secrets."""
        ...

    def latest(self, pattern: str) -> str | None:
        """Return the name, of those that match a shell pattern, of the study that was written last; None for none."""
        ...

    def names(self) -> list[str]:
        """Return the names of all studies, sorted; others may have given some of them any name."""
        ...

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Connect to a study, which need not exist yet; what can be mended is mended.

        Args:
            reads_only: Whether nothing will be written: then no file is made, nor a lock beside it.
        """
        ...

    def attributes(self, name: str) -> list[object]:
        """Return this attribute of all studies that have it, where one look tells; none of a folder of journals."""
        ...

    def set_aside(self, study: str, clock: Clock) -> None:
        """Make room for a new study of this name; the old one, if there is one, is kept."""
        ...

    def discard(self, study: str, trash: Path) -> None:
        """Take a study out; what is a file of its own is moved into a folder, which exists, the rest is deleted."""
        ...


# Group of Optuna studies that make up one study: ``<name>``, and for what did not fit into it ``<name>~2``, ``~3``.


SET_ASIDE = "set_aside"
"""Attribute of a member before which all others were set aside."""

MEMBER_NUMBERS = 1_000_000
"""Distance between the first trial numbers of the members of one study."""

_FURTHER_MEMBER = re.compile(r"(.*)~([2-9]\d{0,5}|1\d{1,5})", re.DOTALL)


def member_names(study: str, names: Collection[str]) -> list[str]:
    """Return the names of the members among all names of a storage, oldest first; some may have been deleted."""
    matches = (_FURTHER_MEMBER.fullmatch(name) for name in set(names))
    further = sorted(int(match[2]) for match in matches if match and match[1] == study)
    return [*([study] if study in names else []), *(f"{study}~{number}" for number in further)]


def first_kept(attributes: Sequence[Mapping[str, Any]]) -> int:
    """Return the place of the first member that was not set aside, by the attributes of each."""
    return max((place for place, some in enumerate(attributes) if SET_ASIDE in some), default=0)


def next_member(study: str, members: Sequence[str]) -> str:
    """Return the name of the member that comes behind these."""
    if not members:
        return study
    last = _FURTHER_MEMBER.fullmatch(members[-1])
    return f"{study}~{int(last[2]) + 1 if last else 2}"


def is_member(name: str) -> bool:
    """Return whether a name is that of a further member."""
    return _FURTHER_MEMBER.fullmatch(name) is not None
