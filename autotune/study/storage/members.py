"""Group of Optuna studies that make up one study: ``<name>``, and for what did not fit into it ``<name>~2``, ``~3``."""

import re
from collections.abc import Collection, Sequence

SET_ASIDE = "set_aside"
"""Attribute of a member before which all others were set aside."""

_FURTHER = re.compile(r"(.*)~([2-9]\d{0,5}|1\d{1,5})", re.DOTALL)


def member_names(study: str, names: Collection[str]) -> list[str]:
    """Return the names of the members among all names of a storage, oldest first; some may have been deleted."""
    matches = (_FURTHER.fullmatch(name) for name in set(names))
    further = sorted(int(match[2]) for match in matches if match and match[1] == study)
    return [*([study] if study in names else []), *(f"{study}~{number}" for number in further)]


def next_member(study: str, members: Sequence[str]) -> str:
    """Return the name of the member that comes behind these."""
    if not members:
        return study
    last = _FURTHER.fullmatch(members[-1])
    return f"{study}~{int(last[2]) + 1 if last else 2}"


def is_member(name: str) -> bool:
    """Return whether a name is that of a further member."""
    return _FURTHER.fullmatch(name) is not None
