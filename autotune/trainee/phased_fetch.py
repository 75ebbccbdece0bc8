"""Fetches of a loop that is taken through phases: wrappers below those that record the fetches and the work."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

from autotune.trainee.batch import KeptBatches, in_new_containers
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.phased_loop import Data, PhasedLoop
from autotune.trainee.phases import LOAD, REPLAY, Schedule, phase_length_s


def _same(batch: Any) -> Any:
    return batch


_always = functools.partial(bool, True)


class _Recorded(list):  # type: ignore[type-arg]
    """Recorded calls of a loop, which also tell the phased loop of work.

    Args:
        loop: The loop, before any framework is observed.
        phased: Gets to know the work.
    """

    def __init__(self, loop: Loop, phased: PhasedLoop) -> None:
        super().__init__()
        self._phased = phased
        steps = loop.steps
        self._worked, self._always_trains = steps.worked, steps.always_trains
        self._fetches = steps.fetched, steps.exhausted

    def append(self, event: tuple[Any, ...]) -> None:
        """Append a call: a method of the step maker with its arguments."""
        super().append(event)
        phased = self._phased
        try:
            if event[0] == self._worked:
                phased.worked(event[6])
            elif event[0] == self._always_trains:
                phased.always_trains()
            elif phased.has_unwritten and event[0] in self._fetches:
                super().append((phased.write,))
        except Exception as error:
            phased.failed(error)


def phase(loop: Loop, instrumentation: Instrumentation, step: type) -> Optional[PhasedLoop]:
    """Have a loop taken through phases, if the environment asks for it.

    Args:
        loop: The loop, before any framework is observed.
        step: Class of the steps that a trainer reports itself.

    Returns:
        The phased loop; None if there are no phases.
    """
    length_s = phase_length_s()
    if length_s is None:
        return None
    phased = PhasedLoop(loop, functools.partial(Schedule, length_s))
    loop.recorded = _Recorded(loop, phased)
    ended = loop.aggregated.ended

    def also_worked(t_s: float) -> None:
        ended(t_s)
        phased.worked(threading.get_ident())

    loop.aggregated.ended = also_worked  # type: ignore[method-assign]  # without phases, nothing asks for them

    def reported(token: Any, result: Any, error: Optional[BaseException]) -> None:
        phased.worked(threading.get_ident())

    instrumentation.around(step, "_report", lambda args, kwargs: True, reported)
    return phased


def around_phased_fetch(
    phased: PhasedLoop,
    instrumentation: Instrumentation,
    place: tuple[Any, str],
    data_of: Callable[[Any], Any],
    *,
    is_plain: Callable[[], object] = _always,
    ends: tuple[type[BaseException], ...] = (StopIteration,),
    renewed: Callable[[Any], Any] = in_new_containers,
    arrays_of: Callable[[Any], Any] = _same,
) -> None:
    """Have the batches that an iterator's method returns follow the phases.

    Args:
        data_of: Returns what an iterator goes over, of which other iterators may follow.
        is_plain: True if batches are fetched now, not by a graph under construction.
        renewed: Returns a batch as it is handed out again.
    """
    owner, name = place
    original = getattr(owner, name)

    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        turn = None
        try:
            is_ours = phased.is_on and is_plain() and threading.get_ident() not in phased.inside
            if is_ours:
                turn = phased.asks(args[0], data_of(args[0]), _has_kept, is_recorded=True)
                if turn is not None and turn.phase == REPLAY and turn.data.kept:
                    return turn.data.kept.next()
        except Exception as error:
            phased.failed(error)
            is_ours = False
        if not is_ours:
            return original(*args, **kwargs)
        with marked(phased):
            if turn is not None and turn.phase == LOAD:
                return draw(phased, turn.data, functools.partial(original, *args, **kwargs), ends, arrays_of)
            batch = original(*args, **kwargs)
        try:
            if turn is not None:
                keep(turn.data, batch, renewed)
        except Exception as error:
            phased.failed(error)
        return batch

    instrumentation.put(owner, name, fetch)


def _has_kept(data: Data) -> bool:
    return bool(data.kept)


def keep(data: Data, batch: Any, renewed: Callable[[Any], Any]) -> None:
    """Add a batch to those of which some are handed out again."""
    if data.kept is None:
        data.kept = KeptBatches(renewed)
    data.kept.add(batch)


@contextmanager
def marked(phased: PhasedLoop) -> Iterator[None]:
    """Mark this thread as inside a fetch, so that fetches within it are left alone."""
    thread = threading.get_ident()
    phased.inside.add(thread)
    try:
        yield
    finally:
        phased.inside.discard(thread)


def draw(
    phased: PhasedLoop,
    data: Data,
    fetch: Callable[[], Any],
    ends: tuple[type[BaseException], ...],
    arrays_of: Callable[[Any], Any] = _same,
) -> Any:
    """Draw batches until there are enough, or the data ends: the trainer then meets the end at its next fetch.

    Returns:
        The last batch.

    Raises:
        Exception: The fetch raised it; the end of the data only at the first.
    """
    drawn: list[Any] = []
    wants_more = True
    try:
        while wants_more:
            begin_s = time.monotonic()
            batch = fetch()
            drawn = [batch]
            wants_more = False
            try:
                wants_more = phased.drew(data, begin_s, time.monotonic(), arrays_of(batch))
            except Exception as error:
                phased.failed(error)
    except ends:
        if not drawn:
            raise
    finally:
        try:
            phased.stops_drawing()
        except Exception as error:
            phased.failed(error)
    return drawn[0]


# Phases of the feeds of `autotune.tf`, which count the work in a batch beside the fetch, so that both go together.


_FEEDS = ("feed", "Feed"), ("two_stage", "TwoStageFeed")


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Have those feeds follow the phases that have been imported; without phases there is nothing to do."""
    if loop.phased is None:
        return
    for module, name in _FEEDS:
        feed = getattr(sys.modules.get(f"autotune.tf.{module}"), name, None)
        if feed is not None and not any(one.owner is feed for one in instrumentation.replaced):
            around_phased_fetch(
                loop.phased,
                instrumentation,
                (feed, "__next__"),
                lambda feed: feed,
                renewed=_renewed,
                arrays_of=lambda fetched: fetched.batch,
            )


def _renewed(fetched: Any) -> Any:
    return dataclasses.replace(fetched, batch=in_new_containers(fetched.batch), wait_s=0.0)
