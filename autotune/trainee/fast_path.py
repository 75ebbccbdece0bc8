"""Fast path of the instrumentation: wrappers of the functions that a training loop calls in every step.

Each wrapper is one Python function that keeps its state in closure cells: with the processor's caches full of the
framework's data, each further call or object costs up to a microsecond. Unusual cases take the general wrapper,
`Instrumentation.observing`.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any, Callable, Optional

from autotune.trainee.batch import Source
from autotune.trainee.instrumentation import Begin, End, Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.tensorflow_functions import Functions

_always = functools.partial(bool, True)


def around_fetch(
    loop: Loop,
    instrumentation: Instrumentation,
    place: tuple[Any, str],
    careful: tuple[Begin, End],
    source_of: Callable[[Any], Source],
    *,
    is_plain: Callable[[], object] = _always,
    elsewhere: Collection[int] = (),
) -> None:
    """Record each batch that an iterator's method returns.

    Args:
        instrumentation: Replaces the method, and catches our errors.
        careful: Calls around the method in unusual cases; the `End` is given ``(iterator, time)`` where it failed.
        source_of: Returns the dataset that an iterator goes over.
        is_plain: True if batches are fetched now, not by a graph under construction; preferably a C function.
        elsewhere: Threads whose fetches through this method are reported by another wrapper.
    """
    owner, name = place
    original = getattr(owner, name)
    otherwise = instrumentation.observing(original, *careful)
    end = careful[1]
    monotonic, thread, recorded, fetched = time.monotonic, threading.get_ident, loop.recorded, loop.steps.fetched
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
            if size is None or loop.is_suspended or elsewhere or not instrumentation.on or not is_plain():
                size = None
            else:
                begin_s = monotonic()
                if begin_s >= loop.digest_due_s:
                    begin_s = loop.fetch_begins()
        except Exception as error:
            instrumentation.failed(error)
            size = None
        if size is None:
            return otherwise(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            instrumentation.end(end, (args[0], begin_s), None, error)
            raise
        try:
            recorded.append((fetched, source, begin_s, monotonic(), size(result), thread()))
        except Exception as error:
            instrumentation.failed(error)
        return result

    instrumentation.put(owner, name, observed)


def around_call(loop: Loop, instrumentation: Instrumentation, owner: Any, functions: Functions) -> None:
    """Record calls of TensorFlow's compiled functions.

    Args:
        instrumentation: Replaces the method, and catches our errors.
        owner: Class of the compiled functions.
    """
    original = owner.__call__
    otherwise = instrumentation.observing(original, functions.begin, functions.end)
    monotonic, get_thread, recorded, worked = time.monotonic, threading.get_ident, loop.recorded, loop.steps.worked
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
                if is_step and instrumentation.on and thread not in current and not loop.wants_samples:
                    begin_s = monotonic()
                    current[thread] = known
                    is_plain = True
        except Exception as error:
            instrumentation.failed(error)
        if not is_plain:
            return call(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        finally:
            del current[thread]
        try:
            end_s = monotonic()
            recorded.append((worked, known, begin_s, end_s, None, True, thread))
            if end_s >= report.loss_due_s:
                functions.see_loss(end_s, result)
        except Exception as error:
            instrumentation.failed(error)
        return result

    instrumentation.put(owner, "__call__", observed)


def around_step_end(
    loop: Loop,
    instrumentation: Instrumentation,
    owner: Any,
    name: str,
    see_loss: Optional[Callable[[float, Any], None]],
) -> None:
    """Record the step ends of a loop that calls a method at each, such as ``fit``.

    Args:
        instrumentation: Replaces the method, and catches our errors.
        owner: Class of the method that is called at the end of a step.
        name: The method; the trainer's own callbacks are called within it, and may report the step themselves.
        see_loss: Takes the loss from its arguments when one is due; None if another wrapper does.
    """
    original = getattr(owner, name)
    monotonic, ending, ended = time.monotonic, loop.aggregated.ending, loop.aggregated.ended

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        end_s = None
        try:
            if loop.is_suspended and instrumentation.on:
                end_s = monotonic()
                ending(end_s)
        except Exception as error:
            instrumentation.failed(error)
        try:
            return original(*args, **kwargs)
        finally:
            if end_s is not None:
                try:
                    if see_loss is not None:
                        see_loss(end_s, args)
                    ended(end_s)
                except Exception as error:
                    instrumentation.failed(error)

    instrumentation.put(owner, name, observed)


def around_in_graphs(
    instrumentation: Instrumentation, owner: Any, name: str, careful: tuple[Begin, End], is_eager: Callable[[], object]
) -> None:
    """Observe a method during graph construction; in eager mode the only cost is the check for it.

    Args:
        instrumentation: Replaces the method, and catches our errors.
        is_eager: True if no graph is under construction; preferably a C function.
    """
    original = getattr(owner, name)
    in_graph = instrumentation.observing(original, *careful)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            call = original if is_eager() else in_graph
        except Exception as error:
            instrumentation.failed(error)
            call = original
        return call(*args, **kwargs)

    instrumentation.put(owner, name, observed)


def _nothing() -> None:
    """Stand-in for a weak reference whose object is gone."""
