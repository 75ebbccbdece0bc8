"""Times of a training step's parts, from functions that each do one part more than the one before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable


def time_in_turn(
    functions: Mapping[str, Callable[[Any], object]],
    batches: Sequence[Any],
    *,
    rounds: int,
    fewest: int,
    limit_s: float,
    draw: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Time functions in turn, so that what disturbs the machine for a while disturbs all of them.

    Args:
        functions: The functions of a batch, which have been called before; each returns once its work is done, also
            that on an accelerator.
        batches: The batches; all functions of a round get the same one, the next round the next.
        rounds: Calls of each.
        fewest: The least of them.
        limit_s: Time after which there are no more rounds than these.
        draw: Draws a batch from the trainer's loader, before each call and outside its time: so the loader is at work
            as it is in training. It is left out once it has taken up the time limit, or has failed.

    Returns:
        Milliseconds of each function, in the order of the rounds.
    """
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    began_s, drawn_s = time.perf_counter(), 0.0
    for number in range(rounds if names else 0):
        if number >= fewest and time.perf_counter() - began_s > limit_s:
            break
        batch = batches[number % len(batches)]
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin_s = time.perf_counter()
            if draw is not None and drawn_s < limit_s:
                try:
                    draw()
                except Exception:
                    draw = None
            called_s = time.perf_counter()
            functions[name](batch)
            times_ms[name].append(1000 * (time.perf_counter() - called_s))
            drawn_s += called_s - begin_s
    return times_ms


def warmed_up(
    functions: Mapping[str, Callable[[Any], object]], batches: Sequence[Any], *, calls: int
) -> tuple[dict[str, Callable[[Any], object]], dict[str, str]]:
    """Call functions until they are traced and compiled.

    Args:
        functions: The functions of a batch.
        batches: Batches of all shapes that they will be called with.
        calls: Calls of each with each batch.

    Returns:
        The functions that can be called, and the errors of the others.
    """
    usable: dict[str, Callable[[Any], object]] = {}
    errors: dict[str, str] = {}
    for name, function in functions.items():
        try:
            for batch in batches:
                for _ in range(calls):
                    function(batch)
            usable[name] = function
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return usable, errors
