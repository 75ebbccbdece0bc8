"""Storage in memory that simulated machines share, each use of it in its turn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from optuna.storages import InMemoryStorage

from autotune.clock import Clock
from autotune.study.storage.storage import Connection


class SharedMemory:
    """Studies in the memory of this process, as one machine uses them; see `autotune.study.storage.storage.Storage`.

    Args:
        take_turn: Called before each use; see `SharedTime.turn`.
        shared: What another machine uses, to share it; None for a new one.
    """

    def __init__(self, take_turn: Callable[[], None], shared: "SharedMemory | None" = None) -> None:
        self._take_turn = take_turn
        self._optuna: InMemoryStorage = shared._optuna if shared else InMemoryStorage()
        self._uses = 0

    def where(self, study: str) -> str:
        """Return the place in words."""
        return "memory"

    def latest(self, pattern: str) -> str | None:
        """Return None: it is not searched."""
        return None

    def attributes(self, name: str) -> list[object]:
        """Return nothing: no other study is there."""
        return []

    def names(self) -> list[str]:
        """Return no names: it is not searched."""
        return []

    def discard(self, study: str, trash: Path) -> None:
        """Do nothing: it ends with its process."""

    def connect(self, study: str, *, reads_only: bool = False) -> Connection:
        """Return a connection."""
        return Connection(storage=self._optuna, expected=self._in_turn)

    def set_aside(self, study: str, clock: Clock) -> None:
        """Do nothing: each simulation begins with a new one."""

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Take a turn, unless this is part of a use that has one."""
        if self._uses == 0:
            self._take_turn()
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
