"""Memory of facts about objects, without keeping the objects alive."""

from __future__ import annotations

import weakref
from typing import Callable, Generic, TypeVar

_MOST = 1000  # remembered; a trainer that makes a new dataset for each pass makes many

Record = TypeVar("Record")


class Memory(Generic[Record]):
    """Record of each object, by weak reference; an id may be reused by another object later.

    Args:
        make: Makes the record of a new object.
    """

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._known: dict[int, tuple[Callable[[], object], Record]] = {}

    def of(self, thing: object) -> Record:
        """Return the record of this object.

        Raises:
            TypeError: The object does not support weak references.
        """
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        if len(self._known) >= _MOST:
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        record = self._make()
        self._known[id(thing)] = (weakref.ref(thing), record)
        return record
