"""Remembers something about objects that come and go, without keeping them alive."""

from __future__ import annotations

import weakref
from typing import Callable, Generic, TypeVar

_MOST = 1000  # remembered; a trainer that makes a new dataset for each pass makes many

Record = TypeVar("Record")


class Memory(Generic[Record]):
    """What is known of each object; its id may be that of another object later.

    Args:
        make: Makes the record of an object that is seen for the first time.
    """

    def __init__(self, make: Callable[[], Record]) -> None:
        self._make = make
        self._known: dict[int, tuple[Callable[[], object], Record]] = {}

    def of(self, thing: object) -> Record:
        """The record of this object.

        Raises:
            TypeError: It cannot be referred to weakly.
        """
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        if len(self._known) >= _MOST:
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        record = self._make()
        self._known[id(thing)] = (weakref.ref(thing), record)
        return record
