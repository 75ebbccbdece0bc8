"""Step of a trainer in parts, as `step_phases_profile.py` times it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

# No dataclass: those with keywords only need Python 3.10.


class StepParts:
    """Functions that do more and more of a training step, and the batches to time them with.

    Args:
        of: Whose step, for people.
        compiled: Way in which it is executed: eager, traced into a graph, compiled by XLA.
        device: Device that it runs on.
        batch_size: Samples in a batch; None if that is not known.
        functions: Functions of a batch on that device, in the order in which each does one part more: ``forward``,
            ``loss``, ``gradients``, ``update``, ``metrics``; those that there are, or ``whole`` where none can be told
            apart. They may return at once, and `wait` returns when their work is done.
        batches: Batches on that device.
        warm_up_on: Those of them on which the functions are traced and compiled for all.
        why_not: Function that there is not → the reason.
        wait: Waits for the accelerator.
        copy: Copies a batch from the host to the device; None where none is copied in the step.
        on_host: The batches to copy.
        draw: Draws a batch from the trainer's loader, which then loads the next one; None where it is not known.
        restore: Puts back what the functions have changed.
        places: Returns what is on which device, where there is a GPU, with a step of its own.
    """

    def __init__(
        self,
        *,
        of: str,
        compiled: str,
        device: str,
        batch_size: int | None,
        functions: Mapping[str, Callable[[Any], object]],
        batches: Sequence[Any],
        warm_up_on: Sequence[Any],
        why_not: Mapping[str, str],
        wait: Callable[[], object],
        copy: Callable[[Any], object] | None = None,
        on_host: Sequence[Any] = (),
        draw: Callable[[], object] | None = None,
        restore: Callable[[], object] = lambda: None,
        places: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self.of = of
        self.compiled = compiled
        self.device = device
        self.batch_size = batch_size
        self.functions = functions
        self.batches = batches
        self.warm_up_on = warm_up_on
        self.why_not = why_not
        self.wait = wait
        self.copy = copy
        self.on_host = on_host
        self.draw = draw
        self.restore = restore
        self.places = places
