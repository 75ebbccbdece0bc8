"""Repair of a study: its torn end is cut, abandoned trials are closed, and what cannot be read is counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.clock import Clock
from autotune.study.claims import LEASE_S, IsGone, Owner
from autotune.study.record import Study
from autotune.study.storage.storage import Storage
from autotune.study.travel.transfer import contents_of

_LOOK_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """Outcome of a repair.

    Attributes:
        trials: Number of trials that can be read.
        torn_bytes: Bytes of a torn last entry that were cut off.
        closed: Number of abandoned trials that were closed.
        going_on: Number of trials that others make.
        interrupted: Number of trials without a record, those that go on included.
        unread: Reason for each trial that cannot be read, by its number.
        doubles: Number of further writings of trials that are there already; readers take one of each.
    """

    trials: int
    torn_bytes: int
    closed: int
    going_on: int
    interrupted: int
    unread: Mapping[int, str]
    doubles: int


def repair_study(
    name: str, storage: Storage, *, clock: Clock, is_gone: IsGone, watching: Callable[[int], None] = lambda _n: None
) -> Repaired:
    """Mend what can be mended in a study.

    A trial whose owner is known to be gone is closed at once. Others are watched for as long as a claim lasts: those
    without a sign of life are closed then.

    Args:
        name: The study.
        storage: Where it is kept.
        clock: Source of time.
        is_gone: Returns whether the owner of a claim is known to have ended.
        watching: Told the number of trials that are watched, before that begins.

    Raises:
        StudyError: It cannot be read or written.
    """
    study = Study(name, storage, owner=Owner(about={}, is_gone=is_gone, clock=clock))
    try:
        closed = study.close_abandoned()
        study.refresh()
        if going_on := len(study.pending_elsewhere()):
            watching(going_on)
            until_s = clock.now_s() + LEASE_S + _LOOK_S
            while going_on and clock.now_s() < until_s:
                clock.wait(_LOOK_S)
                closed += study.close_abandoned()
                study.refresh()
                going_on = len(study.pending_elsewhere())
        torn_bytes = study.torn_bytes
    finally:
        study.close()
    contents = contents_of(name, storage)
    return Repaired(
        trials=len(contents.trials),
        torn_bytes=torn_bytes,
        closed=closed,
        going_on=going_on,
        interrupted=contents.interrupted,
        unread=contents.unread,
        doubles=contents.doubles,
    )
