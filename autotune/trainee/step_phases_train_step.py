"""Parts of a step of `autotune.tf.step.TrainStep`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Callable

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.operation_places import placed_operations
from autotune.trainee.step_phases_profile import StepParts, StepProfiler
from autotune.trainee.step_phases_tensors import (
    KeptBatches,
    accelerator,
    batch_size,
    copied,
    is_on_host,
    one_of_each_shape,
    same_shapes,
    wait,
)

_NO_GPU = "there is no GPU"
_COPIED_AHEAD = "the batches are on the device before the step begins"


def observe(profiler: StepProfiler, instrumentation: Instrumentation) -> None:
    """Profile a step of the class, whose module has been imported."""
    kept = KeptBatches()
    feeds: list[Any] = []  # the one that was asked last

    def fetching(args: Any, kwargs: Any) -> None:
        feeds[:] = args

    def begin(args: Any, kwargs: Any) -> None:
        if profiler.is_over or kwargs or len(args) != 2:
            return
        step, batch = args
        kept.add(batch)

        def parts() -> StepParts:
            made = parts_of(step, kept.batches)
            made.draw = feeds[0].__next__ if feeds else None
            return made

        if profiler.is_due():
            profiler.make(parts)

    instrumentation.around(import_module("autotune.tf.feed").Feed, "__next__", fetching, None)
    instrumentation.around(sys.modules["autotune.tf.step"].TrainStep, "__call__", begin, None)


def parts_of(step: Any, batches: Sequence[Any], of: str = "autotune.tf.TrainStep") -> StepParts:
    """Return the parts of a step."""
    if step.options.graph and step.options.xla:
        batches = same_shapes(batches)
    device = accelerator()
    on_device = [copied(batch, device) for batch in batches]
    functions: dict[str, Callable[[Any], object]] = {}
    why_not = {}
    if step.forward is None:
        why_not["forward"] = "TrainStep was given no function for it (forward=…), only one that makes the loss"
    else:
        functions["forward"] = step.compiled(step.forward)
    functions["loss"] = step.compiled(step.loss)
    functions["gradients"] = step.compiled(step.gradients)
    # Traced anew, so that the trained step is not the only one that has been traced for few shapes.
    functions["update"] = step.compiled(step.update)
    must_copy = device is not None and is_on_host(batches[0])
    if not must_copy:
        why_not["copy"] = _NO_GPU if device is None else _COPIED_AHEAD
    variables = list(step.state)
    values = [variable.numpy() for variable in variables]

    def restore() -> None:
        for variable, value in zip(variables, values):  # noqa: B905 -- Python 3.9 has no strict
            variable.assign(value)

    return StepParts(
        of=of,
        compiled=_compiled(step.options),
        device=device or "CPU",
        batch_size=batch_size(batches[0]),
        functions=functions,
        batches=on_device,
        warm_up_on=one_of_each_shape(on_device),
        why_not=why_not,
        wait=wait,
        copy=(lambda batch: copied(batch, device)) if must_copy else None,
        on_host=batches,
        restore=restore,
        places=lambda: placed_operations(step.compiled(step.update), on_device[0]) if device else [],
    )


def _compiled(options: Any) -> str:
    way = ("graph, compiled by XLA" if options.xla else "graph") if options.graph else "eager"
    return f"{way}, {options.precision.value}"
