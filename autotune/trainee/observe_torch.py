"""Observer of PyTorch: batches of a ``DataLoader``, backward passes, optimizers' steps, ``torch.save``."""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional

from autotune.trainee.batch import Source, sizer
from autotune.trainee.fast_path import around_fetch
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop
from autotune.trainee.report import Memory

if TYPE_CHECKING:
    from autotune.trainee.phased_loop import PhasedLoop


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Instrument PyTorch, which has been imported."""
    batches, backward = _Batches(loop), _Backward(loop)
    torch = import_module("torch")
    loader = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter

    def around(owner: Any, name: str, begin: Any, end: Any) -> None:
        instrumentation.attempt(f"torch: {name}", lambda: instrumentation.around(owner, name, begin, end))

    place = loader, "__next__"
    if loop.phased is not None:
        _phase(loop.phased, instrumentation, place)
    careful = batches.begin, batches.end
    instrumentation.attempt(
        "torch: next", lambda: around_fetch(loop, instrumentation, place, careful, batches.source_of)
    )
    around(torch.autograd, "backward", backward.begin, backward.end)
    instrumentation.attempt("torch: optimizers", lambda: _see_updates(loop, instrumentation))
    around(torch, "save", *loop.around_pause("checkpoint"))
    around(torch.cuda.OutOfMemoryError, "__init__", lambda args, _kwargs: args, backward.ran_out_of_memory)


def _phase(phased: PhasedLoop, instrumentation: Instrumentation, place: tuple[Any, str]) -> None:
    from autotune.trainee.phased_fetch import around_phased_fetch

    def wrap() -> None:
        around_phased_fetch(phased, instrumentation, place, _loader_of)

    instrumentation.attempt("torch: phases", wrap)


def _loader_of(iterator: Any) -> Any:
    return getattr(iterator, "_index_sampler", iterator)


def _see_updates(loop: Loop, instrumentation: Instrumentation) -> None:
    # Of all optimizers, also those of libraries: torch calls it at the end of each `step`.
    optimizer = import_module("torch.optim.optimizer")
    event, seen = (loop.steps.updated,), loop.recorded

    def updated(*_args: Any) -> None:
        if instrumentation.on and not loop.is_suspended:
            seen.append(event)

    optimizer.register_optimizer_step_post_hook(updated)


class _Batches:
    """Callbacks around the fetches of loaders."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._datasets = Memory(Source)
        # Validation has an iterator of its own, even where it goes over the same dataset.
        self._iterators: Memory[list[Source]] = Memory(list)

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a fetch."""
        return args[0], self._loop.fetch_begins()

    def end(self, token: Any, batch: Any, error: Optional[BaseException]) -> None:
        """Record the end of the fetch, unless Keras feeds on the loader: it counts its batches itself."""
        if self._loop.is_suspended:
            return
        iterator, begin_s = token
        source = self.source_of(iterator)
        if error is None:
            if source.size is None:
                sampler = getattr(iterator, "_index_sampler", None)
                source.size = source.dataset.size = sizer(batch, expected=getattr(sampler, "batch_size", None))
            self._loop.fetched(source, begin_s, source.size(batch))
        elif isinstance(error, StopIteration):
            self._loop.exhausted(source, begin_s)

    def source_of(self, iterator: Any) -> Source:
        known = self._iterators.of(iterator)
        if not known:
            known.append(Source(of=self._dataset_of(iterator)))
        return known[0]

    def _dataset_of(self, iterator: Any) -> Source:
        try:
            return self._datasets.of(getattr(iterator, "_dataset", iterator))
        except (
            TypeError
        ):  # a list, to which there are no weak references: then those over it by one loader belong together
            return self._datasets.of(_loader_of(iterator))


class _Backward:
    """Callbacks around backward passes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def begin(self, args: Any, kwargs: Any) -> Any:
        """Record the start of a backward pass."""
        caller = sys._getframe(2)
        if caller.f_code.co_name == "backward" and caller.f_back is not None:  # Tensor.backward's own
            caller = caller.f_back
        return (caller.f_code, caller.f_lineno), time.monotonic(), args[0] if args else kwargs.get("tensors")

    def ran_out_of_memory(self, args: Any, result: Any, error: Optional[BaseException]) -> None:
        self._loop.ran_out_of_memory(f"OutOfMemoryError: {args[0]}")

    def end(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        if error is not None:
            return
        key, begin_s, loss = token
        self._loop.worked(key, begin_s, thread=threading.get_ident())
        now_s = time.monotonic()
        if now_s < self._loop.report.loss_due_s:
            return
        if isinstance(loss, (tuple, list)):
            loss = loss[0] if loss else None
        if getattr(loss, "ndim", None) != 0:
            return
        if loss.device.type == "cpu":
            self._loop.report.loss(now_s, loss.detach())
        else:
            self._loop.unread_loss = loss.detach()
            if loss.device.type == "cuda":
                self._loop.sync = import_module("torch").cuda.synchronize
