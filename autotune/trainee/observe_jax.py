"""Observer of JAX: detects the dataset that is trained on, or else the compiled step's calls.

A gradient in a trace means that the last batch's dataset is trained on: each further batch from ``tf.data`` or a
``DataLoader`` is a step. Without such batches, each call of the `jax.jit` function is a step. A gradient of arrays, not
of tracers, is an uncompiled step's work.
"""

from __future__ import annotations

import functools
import threading
import time
from importlib import import_module
from types import MethodType
from typing import Any, Optional

from autotune.trainee.costs import Costs, place_of
from autotune.trainee.observe import Begin, End, Observer


class JaxObserver(Observer):
    """Observer of JAX."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.running: dict[int, _Jitted] = {}  # thread → outermost compiled function that is running
        self._latest: Any = None  # array of a step's result, maybe not computed yet
        self._arrays = 0  # number in a step's result
        self._rows: dict[Any, int] = {}  # (sharding, shape) of an array → its rows in this process
        self._place: Optional[int] = None  # index of the smallest array

    def install(self) -> None:
        self.around("jax:vjp", self._traced)  # takes the gradient itself
        around_gradients(self, self._gradient_begins, self._gradient_ends)
        self.attempt("jax:jit", self._around_jit)

    def _traced(self, args: Any, kwargs: Any) -> None:
        running = self.running.get(threading.get_ident())
        if running is not None:
            running.trains = True
        self.loop.always_trains(calls_are_seen=running is not None)

    def _gradient_begins(self, args: Any, kwargs: Any) -> Any:
        """Return place, time and arguments of a gradient of arrays; None for a traced one."""
        given = import_module("jax").tree_util.tree_leaves((args, kwargs))
        if threading.get_ident() in self.running or is_traced(given):
            return self._traced(args, kwargs)
        return place_of(None), time.monotonic(), given

    def _gradient_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        if error is None:
            place, begin_s, given = token
            self._watch_completion(result)
            self.loop.worked(place, begin_s, self._samples_in(given), False, threading.get_ident())

    def _around_jit(self, jax: Any, name: str) -> None:
        original = getattr(jax, name)

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            # Without a function, as in `@jax.jit(static_argnums=0)`, it returns a decorator.
            return _Jitted(made, self) if hasattr(made, "lower") else lambda function: _Jitted(made(function), self)

        self.instrumentation.put(jax, name, observed)

    def stepped(self, jitted: _Jitted, begin_s: float, result: Any, given: Any) -> None:
        """Record a call of a compiled function that trains, as work unless its batches are seen."""
        self._watch_completion(result)
        if not self.loop.steps.is_fetching:
            leaves = import_module("jax").tree_util.tree_leaves(given)
            samples = self._samples_in(leaves)
            # Not a whole step: the device works between two calls, so that time isn't a wait for data.
            self.loop.worked(jitted.key, begin_s, samples, False, threading.get_ident())
            if batch := _in_host_memory(leaves):
                self.loop.take_own_fingerprint(jitted.key, batch, samples)

    def _watch_completion(self, result: Any) -> None:
        now_s = time.monotonic()
        if self.loop.is_marker_due(now_s) and (array := self._smallest(result)) is not None:
            self.loop.completions.add(now_s, lambda: None if array.is_deleted() else array.is_ready())
            self._latest = array
            self.loop.sync = self._wait

    def _samples_in(self, leaves: list[Any]) -> Optional[int]:
        """Return the samples in a step's arguments, if visible.

        Batches are in host memory or sharded; parameters are replicated.
        """
        rows = [len(leaf) for leaf in _in_host_memory(leaves)]
        return max(rows, key=rows.count) if rows else self._rows_of_shards(leaves)

    def _rows_of_shards(self, leaves: list[Any]) -> Optional[int]:
        """Return this process's rows of the last sharded array: batches come last."""
        for leaf in reversed(leaves):
            sharding, shape = getattr(leaf, "sharding", None), getattr(leaf, "shape", ())
            if sharding is None or not shape or sharding.is_fully_replicated:
                continue
            if (sharding, shape) not in self._rows:
                shards = {str(one.index): one.data.shape[0] for one in leaf.addressable_shards}
                self._rows[sharding, shape] = sum(shards.values())
            return self._rows[sharding, shape]
        return None

    def _smallest(self, result: Any) -> Any:
        """Return the smallest array of a step's result: most likely the loss, which isn't donated to the next step."""
        arrays = import_module("jax").tree_util.tree_leaves(result)
        if len(arrays) != self._arrays:
            sizes = {place: one.size for place, one in enumerate(arrays) if hasattr(one, "is_ready")}
            # a counter of updates is as small, but donated to the next step
            counts = {place: arrays[place].dtype.kind in "iu" for place in sizes}
            self._place = min(sizes, key=lambda place: (sizes[place], counts[place], -place), default=None)
            self._arrays = len(arrays)
        array = None if self._place is None else arrays[self._place]
        return array if hasattr(array, "is_ready") else None

    def _wait(self) -> None:
        latest, self._latest = self._latest, None
        try:
            import_module("jax").block_until_ready(latest)
        except Exception:  # already donated to the next step, which then waits for it
            return


class JaxCosts(Costs):
    """Functions that ``jax.jit`` compiles, and gradients taken outside of them."""

    def install(self) -> None:
        around_gradients(self, self._gradient_begins, self._gradient_ends)
        self.attempt("jax.monitoring:register_event_duration_secs_listener", self._listen)

    def _listen(self, monitoring: Any, name: str) -> None:
        took = self.instrumentation.guarded(self._took)
        getattr(monitoring, name)(lambda event, duration_s, **about: took(event, duration_s, about))

    def _took(self, event: str, duration_s: float, about: dict[str, Any]) -> None:
        if event.endswith("backend_compile_duration"):
            name = str(about.get("fun_name", "")).removeprefix("jit(").rstrip(")")
            self.add("compile", place_of(None, name), duration_s)

    def _gradient_begins(self, args: Any, kwargs: Any) -> Any:
        given = import_module("jax").tree_util.tree_leaves((args, kwargs))
        return None if is_traced(given) else (place_of(None), time.monotonic())

    def _gradient_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        place, begin_s = token
        self.add("gradient", place, time.monotonic() - begin_s)


def around_gradients(observer: Observer, begin: Begin, end: Optional[End] = None) -> None:
    """Call `begin` before and `end` after each gradient, traced or of arrays."""

    def wrap(jax: Any, name: str) -> None:
        original, instrumentation = getattr(jax, name), observer.instrumentation

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            return instrumentation.observing(original(*args, **kwargs), begin, end)

        instrumentation.put(jax, name, observed)

    for place in ("jax:grad", "jax:value_and_grad"):
        observer.attempt(place, wrap)


def is_traced(leaves: list[Any]) -> bool:
    """Return whether some leaves are JAX tracers."""
    tracer = import_module("jax").core.Tracer
    return any(isinstance(leaf, tracer) for leaf in leaves)


def _in_host_memory(leaves: list[Any]) -> list[Any]:
    return [leaf for leaf in leaves if type(leaf).__module__ == "numpy" and leaf.ndim]


class _Jitted:
    """Compiled JAX function whose calls are observed; otherwise like the original.

    Attributes:
        key: Code of the trainer's function, even if recompiled for each step.
        trains: Whether a gradient was taken in it.
    """

    def __init__(self, original: Any, observer: JaxObserver) -> None:
        functools.update_wrapper(self, original)
        self._original, self._observer = original, observer
        inner = original
        while (wrapped := getattr(inner, "__wrapped__", None)) is not None:
            inner = wrapped
        self.key: Any = getattr(inner, "__code__", self)
        self.trains = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        observer = self._observer
        running, thread = observer.running, threading.get_ident()
        outer = running.get(thread)
        if outer is not None or not observer.instrumentation.on:
            result = self._original(*args, **kwargs)
            if outer is not None and self.trains:  # its gradient may have been traced before
                outer.trains = True
            return result
        running[thread] = self
        begin_s = time.monotonic()
        try:
            result = self._original(*args, **kwargs)
        finally:
            del running[thread]
        if self.trains:
            observer.instrumentation.guarded(observer.stepped)(self, begin_s, result, (args, kwargs))
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()
