"""Contract of the observers of frameworks: what each has to show of a training loop, and the wrappers for it."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Optional

from autotune.trainee.batch import sizer
from autotune.trainee.instrumentation import Begin, End, Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.steps import Source, StepMaker

if TYPE_CHECKING:
    from autotune.trainee.phases import PhasedLoop


class Observer:
    """Observer of one framework.

    To add a framework: write a subclass with `install`, and give it a row in `observe.OBSERVERS`. `install` is called
    once, when the trainer has just imported the framework, and has to show, as far as the framework has it:

    | a function of the framework | by |
    |---|---|
    | returns the next batch | `fetch` |
    | is called by training alone: takes a gradient, or is a compiled step with one | `around`; `Loop.worked` after it |
    | is an optimizer's step | `Loop.recorded`, with `StepMaker.updated` |
    | is a compiled step whose calls no Python sees | `Loop.always_trains`, when it is traced |
    | evaluates, or writes a checkpoint | `pause` |
    | is compiled and takes no gradient | `Loop.called` after it |
    | waits for the accelerator | `Loop.sync`, once it is known that there is one |
    | holds the loss where that need not be waited for | `Loop.saw_loss`, when `Report.loss_due_s` has come |
    | is raised where memory runs out | `around`; `Loop.ran_out_of_memory` |

    A place is named like ``torch.utils.data.dataloader:_BaseDataLoaderIter.__next__``. One that this version of the
    framework does not have is noted, and the others are observed. No error of an observer reaches the trainer. The
    tests of this contract are in tests/trainee/test_observers.py.

    Args:
        phased: Takes the loop through phases; None where there are none.
    """

    def __init__(self, loop: Loop, instrumentation: Instrumentation, phased: Optional[PhasedLoop] = None) -> None:
        self.loop = loop
        self.instrumentation = instrumentation
        self.phased = phased

    def install(self) -> None:
        """Put functions of ours around the framework's."""
        raise NotImplementedError

    def attempt(self, place: str, action: Callable[[Any, str], object]) -> None:
        """Call a function with a place's owner and name, unless this version of the framework has no such place."""
        self.instrumentation.attempt(place, _call_with, place, action)

    def around(self, place: str, begin: Begin, end: Optional[End] = None) -> None:
        """Call `begin` before the function there and, unless it is None, `end` after it."""
        self.attempt(place, lambda owner, name: self.instrumentation.around(owner, name, begin, end))

    def pause(self, place: str, kind: str) -> None:
        """Take the time of the function there for a pause: ``eval`` or ``checkpoint``."""
        self.around(place, *self.loop.around_pause(kind))

    def fetch(
        self, place: str, source_of: Callable[[Any], Source], data_of: Callable[[Any], Any], **options: Any
    ) -> None:
        """Record each batch that the method of an iterator there returns, see `around_fetch`.

        Args:
            data_of: Returns what an iterator goes over, as phases tell it apart: validation has its own.
        """

        def wrap(owner: Any, name: str) -> None:
            original = getattr(owner, name)
            if self.phased is not None:
                plain = {name: value for name, value in options.items() if name in ("ends", "is_plain")}
                original = self.phased.around_fetch(original, data_of, **plain)
            ours = around_fetch(self.loop, self.instrumentation, original, source_of, **options)
            self.instrumentation.put(owner, name, ours)

        self.attempt(place, wrap)


def _call_with(place: str, action: Callable[[Any, str], object]) -> None:
    action(*owner_of(place))


def owner_of(place: str) -> tuple[Any, str]:
    """Return the owner and the name of what is at a place of a framework."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, import_module(module)), name


_always = functools.partial(bool, True)


def around_fetch(
    loop: Loop,
    instrumentation: Instrumentation,
    original: Callable[..., Any],
    source_of: Callable[[Any], Source],
    *,
    ends: tuple[type[BaseException], ...] = (StopIteration,),
    is_plain: Callable[[], object] = _always,
    in_graph: Optional[Callable[[Callable[..., Any]], Callable[..., Any]]] = None,
    within: Optional[set[int]] = None,
    is_outer: bool = False,
) -> Callable[..., Any]:
    """Return the method of an iterator that returns a batch, which is recorded.

    It is one Python function that keeps its state in closure cells: with the processor's caches full of the framework's
    data, each further call or object costs up to a microsecond.

    Args:
        source_of: Returns what an iterator goes over.
        ends: Exceptions that mean the end of the data.
        is_plain: True if batches are fetched now, not by a graph under construction; preferably a C function.
        in_graph: Wraps the method for where they are not.
        within: Threads inside a fetch that is recorded already, which may fetch from another iterator within.
        is_outer: True if this method fetches from such iterators.
    """
    otherwise = original if in_graph is None else in_graph(original)
    if within is not None and is_outer:
        original = _marking(original, within)
    monotonic, get_thread, recorded, fetched = time.monotonic, threading.get_ident, loop.recorded, StepMaker.fetched
    latest: tuple[Callable[[], Any], Source] = nothing, Source()  # the iterator that was used last, and its source

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        call, begin_s = original, None
        try:
            if not is_plain():
                call = otherwise
            elif instrumentation.on and not (within and get_thread() in within):
                known = latest  # another thread may use another one meanwhile
                if known[0]() is not args[0]:
                    known = latest = weakref.ref(args[0]), source_of(args[0])
                source = known[1]
                begin_s = monotonic()
                if begin_s >= loop.digest_due_s:
                    begin_s = loop.fetch_begins()
        except Exception as error:
            instrumentation.failed(error)
            begin_s = None
        if begin_s is None:
            return call(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            try:
                if isinstance(error, ends):
                    loop.exhausted(source, begin_s)
            except Exception as own_error:
                instrumentation.failed(own_error)
            raise
        try:
            if source.size is None:
                source.size = source.dataset.size = sizer(result, source.expected)
            if not loop.is_suspended:
                recorded.append((fetched, source, begin_s, monotonic(), source.size(result), get_thread()))
            elif not source.is_fed:
                loop.fetched(source, begin_s, source.size(result))
        except Exception as error:
            instrumentation.failed(error)
        return result

    return observed


def _marking(original: Callable[..., Any], within: set[int]) -> Callable[..., Any]:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        within.add(thread)
        try:
            return original(*args, **kwargs)
        finally:
            within.discard(thread)

    return marked


def nothing() -> None:
    """Stand-in for a weak reference whose object is gone."""
