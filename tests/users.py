"""Two users on one machine, as whom root may act."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALICE, MALLORY = 4242, 4343

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """This process is that user for a while: what it makes is theirs, and what they may not do fails."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def made(path: Path, *, owner: int, mode: int) -> Path:
    """A folder of somebody."""
    path.mkdir()
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path
