"""Times of a training step's parts, from functions that each do one part more than the one before."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Callable


def time_in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 3
) -> dict[str, list[float]]:
    """Time functions in turn, so that what disturbs the machine for a while disturbs all of them.

    Args:
        functions: The functions; each returns once its work is done, also that on an accelerator.
        rounds: Calls of each that are timed.
        warmups: Calls of each before these, which trace and compile.

    Returns:
        Milliseconds of each function, in the order of the rounds.
    """
    for _ in range(warmups):
        for function in functions.values():
            function()
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin_s = time.perf_counter()
            functions[name]()
            times_ms[name].append(1000 * (time.perf_counter() - begin_s))
    return times_ms
