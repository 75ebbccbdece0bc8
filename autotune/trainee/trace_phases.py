"""Phases of TensorFlow's steps, from the scopes of profiled operations.

Backward operations are named ``gradient_tape/…`` after those that they differentiate. Assignments to variables in a
scope that isn't differentiated are the optimizer's. Differentiated operations are the forward pass, or the loss: by
name, or if outside of all layers, as are others after the layers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from typing import NamedTuple, Optional

FORWARD, LOSS, BACKWARD, OPTIMIZER = PHASES = "forward", "loss", "backward", "optimizer"
"""In order; of simultaneous ones, the last counts."""

STEP = "step"

_MOST_STEPS = 500

_TAPE = "gradient_tape"
_CALLS = re.compile(r"(?:.*/)?StatefulPartitionedCall(?:_\d+)?/")  # the call of the step, in front of its names
_ASSIGNS = re.compile(r"Assign(?:Add|Sub)?VariableOp|Resource(?:Sparse)?Apply\w+")
_LOSSES = re.compile(r"loss|crossentropy|cross_entropy|_error|hinge|divergence|poisson|xent", re.IGNORECASE)


class Executed(NamedTuple):
    """Executed operation: name in the graph, kind, start and end in ms."""

    name: str
    kind: str
    begin_ms: float
    end_ms: float


def phases_of(executed: list[Executed], steps: int) -> dict[str, list[float]]:
    """Return each step's time per phase and in total, in ms; empty if scopes don't show phases.

    Args:
        executed: Operations of one device, or of the host.
        steps: Approximate number of their steps.
    """
    named = [one._replace(name=_CALLS.sub("", one.name)) for one in executed]
    phase_of = _phases_by_name(named)
    borders_ms = _borders_ms([one for one in named if phase_of.get(one.name) == OPTIMIZER], steps)
    if len(borders_ms) < 4 or BACKWARD not in phase_of.values():
        return {}
    phase_of.update(_outside_of_layers(named, phase_of, borders_ms[0], borders_ms[1]))
    found: dict[str, list[float]] = {phase: [] for phase in (*PHASES, STEP)}
    known = sorted((one for one in named if one.name in phase_of), key=lambda one: one.end_ms)
    ends_ms = [one.end_ms for one in known]
    for begin_ms, end_ms in zip(borders_ms, borders_ms[1:]):  # noqa: B905, RUF007 -- Python 3.9 has neither
        # an operation belongs to the step in which it ends
        first, stop = bisect_right(ends_ms, begin_ms), bisect_right(ends_ms, end_ms)
        within = [one for one in known[first:stop] if one.begin_ms < end_ms]
        for phase, ms in _busy_ms(within, phase_of, begin_ms, end_ms).items():
            found[phase].append(ms)
        found[STEP].append(end_ms - begin_ms)
    return found


def _phases_by_name(executed: list[Executed]) -> dict[str, str]:
    kinds = {one.name: one.kind for one in executed}
    differentiated = {name.partition(f"{_TAPE}/")[2].partition("/")[0] for name in kinds if f"{_TAPE}/" in name}
    scopes = {name.partition("/")[0] for name in kinds if "/" in name}
    updated = {name.partition("/")[0] for name, kind in kinds.items() if "/" in name and _ASSIGNS.fullmatch(kind)}
    has_layers = any(scope in scopes and not _LOSSES.search(scope) for scope in differentiated)
    found = {}
    for name in kinds:
        first, _, rest = name.partition("/")
        phase: Optional[str] = None
        if f"{_TAPE}/" in name:
            phase = BACKWARD
        elif _LOSSES.search(first) or (not rest and first in differentiated and has_layers):
            phase = LOSS
        elif first in differentiated:
            phase = FORWARD
        elif first in updated:
            phase = OPTIMIZER
        if phase is not None:
            found[name] = phase
    return found


def _outside_of_layers(
    executed: list[Executed], phase_of: dict[str, str], begin_ms: float, end_ms: float
) -> dict[str, str]:
    """Return the loss's operations: without a scope, between a step's last layer and last backward operation."""
    within = [one for one in executed if begin_ms <= one.begin_ms < end_ms]
    layers_ms, back_ms = (
        max((one.begin_ms for one in within if phase_of.get(one.name) == phase), default=end_ms)
        for phase in (FORWARD, BACKWARD)
    )
    names = {
        one.name
        for one in within
        if layers_ms < one.begin_ms < back_ms and "/" not in one.name and not _ASSIGNS.fullmatch(one.kind)
    }
    return dict.fromkeys(names - phase_of.keys(), LOSS)


def _borders_ms(updates: list[Executed], steps: int) -> list[float]:
    """Return the ends of an optimizer's operation that each step executes once."""
    counts = Counter(one.name for one in updates)
    name = min(counts, key=lambda name: (abs(counts[name] - steps), name), default=None)
    return sorted(one.end_ms for one in updates if one.name == name)[:_MOST_STEPS]


def _busy_ms(within: list[Executed], phase_of: dict[str, str], begin_ms: float, end_ms: float) -> dict[str, float]:
    changes = []
    for one in within:
        place = PHASES.index(phase_of[one.name])
        changes += [(max(one.begin_ms, begin_ms), place, 1), (min(one.end_ms, end_ms), place, -1)]
    found, active, since_ms = dict.fromkeys(PHASES, 0.0), [0] * len(PHASES), begin_ms
    for at_ms, place, change in sorted(changes):
        latest = max((n for n, count in enumerate(active) if count), default=None)
        if latest is not None:
            found[PHASES[latest]] += at_ms - since_ms
        active[place] += change
        since_ms = at_ms
    return found
