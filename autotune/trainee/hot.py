"""The same as the wrappers of shield.py, for the functions that are called in every step of the shortest loops.

All that such a wrapper does is in one Python function, with what it needs in the function's own cells: after a
framework has had the processor's caches to itself, each further call and each further object costs as much as a
microsecond. What is not as usual goes the careful way, through `Shield.observing`.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any, Callable, Optional

from autotune.trainee.batch import Source
from autotune.trainee.loop import Loop
from autotune.trainee.shield import Begin, End, Shield
from autotune.trainee.tensorflow_functions import Functions

_always = functools.partial(bool, True)


def around_fetch(
    loop: Loop,
    shield: Shield,
    place: tuple[Any, str],
    careful: tuple[Begin, End],
    source_of: Callable[[Any], Source],
    *,
    is_plain: Callable[[], object] = _always,
    elsewhere: Collection[int] = (),
) -> None:
    """Notes what an iterator's method gives.

    Args:
        loop: Where.
        shield: Catches errors.
        place: The class and its method.
        careful: What to do around it where it is not plain; the `End` is given ``(iterator, time)`` where it failed.
        source_of: The dataset that an iterator goes over.
        is_plain: Whether batches are fetched now, and no graph is made that will do so; best a function written in C.
        elsewhere: Threads in which somebody else fetches through this method, and tells it himself.
    """
    owner, name = place
    original = getattr(owner, name)
    otherwise = shield.observing(original, *careful)
    end = careful[1]
    monotonic, thread, seen, fetched = time.monotonic, threading.get_ident, loop.seen, loop.steps.fetched
    latest: tuple[Callable[[], Any], Source] = _nothing, Source()  # the iterator that was used last, and its source

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        try:
            known = latest  # another thread may use another one meanwhile
            if known[0]() is not args[0]:
                known = latest = weakref.ref(args[0]), source_of(args[0])
            source = known[1]
            size = source.size
            if size is None or loop.is_suspended or elsewhere or not shield.on or not is_plain():
                size = None
            else:
                begin_s = monotonic()
                if begin_s >= loop.digest_due_s:
                    begin_s = loop.fetch_begins()
        except Exception as error:
            shield.failed(error)
            size = None
        if size is None:
            return otherwise(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            shield.end(end, (args[0], begin_s), None, error)
            raise
        try:
            seen.append((fetched, source, begin_s, monotonic(), size(result), thread()))
        except Exception as error:
            shield.failed(error)
        return result

    shield.put(owner, name, observed)


def around_call(loop: Loop, shield: Shield, owner: Any, functions: Functions) -> None:
    """Notes calls of TensorFlow's compiled functions.

    Args:
        loop: Where.
        shield: Catches errors.
        owner: Their class.
        functions: What is known of them.
    """
    original = owner.__call__
    otherwise = shield.observing(original, functions.begin, functions.end)
    monotonic, get_thread, seen, worked = time.monotonic, threading.get_ident, loop.seen, loop.steps.worked
    known_of, current, report = functions.known.of, functions.current, loop.report
    latest: tuple[Callable[[], Any], Any] = _nothing, None  # the function that was called last, and what is known of it

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        call, is_plain = otherwise, False
        try:
            if loop.is_suspended:
                call = original
            else:
                one = latest  # another thread may call another one meanwhile
                if one[0]() is not args[0]:
                    one = latest = weakref.ref(args[0]), known_of(args[0])
                known = one[1]
                thread = get_thread()
                is_step = known.trains and not known.fetches and not known.hides_steps
                if is_step and shield.on and thread not in current and not loop.wants_samples:
                    begin_s = monotonic()
                    current[thread] = known
                    is_plain = True
        except Exception as error:
            shield.failed(error)
        if not is_plain:
            return call(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        finally:
            del current[thread]
        try:
            end_s = monotonic()
            seen.append((worked, known, begin_s, end_s, None, True, thread))
            if end_s >= report.loss_due_s:
                functions.see_loss(end_s, result)
        except Exception as error:
            shield.failed(error)
        return result

    shield.put(owner, "__call__", observed)


def around_step_end(
    loop: Loop, shield: Shield, owner: Any, name: str, see_loss: Optional[Callable[[float, Any], None]]
) -> None:
    """Notes where a step of a loop ends that says so itself, such as that of ``fit``.

    Args:
        loop: Where.
        shield: Catches errors.
        owner: The class whose method is called then.
        name: The method; the trainer's own callbacks are called within it, and may report the step themselves.
        see_loss: Takes the loss out of its arguments, if it is time to; None if that is done elsewhere.
    """
    original = getattr(owner, name)
    monotonic, ended = time.monotonic, loop.counted.ended

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        end_s = None
        try:
            if loop.is_suspended and shield.on:
                end_s = monotonic()
        except Exception as error:
            shield.failed(error)
        try:
            return original(*args, **kwargs)
        finally:
            if end_s is not None:
                try:
                    if see_loss is not None:
                        see_loss(end_s, args)
                    ended(end_s)
                except Exception as error:
                    shield.failed(error)

    shield.put(owner, name, observed)


def around_in_graphs(
    shield: Shield, owner: Any, name: str, careful: tuple[Begin, End], is_eager: Callable[[], object]
) -> None:
    """Observes a method while a graph is made, and else only asks whether one is.

    Args:
        shield: Catches errors.
        owner: The class.
        name: Its method.
        careful: What to do around it in a graph.
        is_eager: Whether none is made; best a function written in C.
    """
    original = getattr(owner, name)
    in_graph = shield.observing(original, *careful)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            call = original if is_eager() else in_graph
        except Exception as error:
            shield.failed(error)
            call = original
        return call(*args, **kwargs)

    shield.put(owner, name, observed)


def _nothing() -> None:
    """A weak reference to what is gone."""
