"""Group of Optuna studies that make up one study: ``<name>``, and for what did not fit into it ``<name>~2``, ``~3``."""

import re
from collections.abc import Collection, Sequence

SET_ASIDE = "set_aside"
"""Attribute of a member before which all others were set aside."""

_MEMBER = re.compile(r".*~[2-9]\d{0,5}|.*~1\d{1,5}", re.DOTALL)


def member_names(study: str, names: Collection[str]) -> list[str]:
    """Return the names of the members among all names of a storage, oldest first."""
    there = set(names)
    further = (f"{study}~{number}" for number in range(2, len(there) + 2))
    return [name for name in (study, *further) if name in there]


def next_member(study: str, members: Sequence[str]) -> str:
    """Return the name of the member that comes behind these."""
    return f"{study}~{len(members) + 1}" if members else study


def is_member(name: str) -> bool:
    """Return whether a name is that of a further member."""
    return _MEMBER.fullmatch(name) is not None
