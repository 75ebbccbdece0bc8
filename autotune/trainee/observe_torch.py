"""Observer of PyTorch: ``DataLoader`` batches, backward passes, optimizer steps, ``torch.save``."""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from typing import Any, Callable, Optional

from autotune.trainee.observe import Observer
from autotune.trainee.steps import BatchSource, StepMaker
from autotune.trainee.stream import WeakRecords, process_stream


class TorchObserver(Observer):
    """Observer of PyTorch."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._datasets = WeakRecords(BatchSource)
        # Validation has its own iterator, even over the same dataset.
        self._iterators: WeakRecords[list[BatchSource]] = WeakRecords(list)
        # Time outside of backward passes, in which DistributedDataParallel exchanges gradients.
        self._own_s, self._passes, self._left_s, self._own_due_s = 0.0, 0, 0.0, 0.0

    def install(self) -> None:
        loader = "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__"
        self.fetch(loader, self._source_of, _loader_of)
        self.around("torch:autograd.backward", self._backward_begins, self._backward_ends)
        self.after_updates(self._updates())
        self.pause("torch:save", "checkpoint")
        self.around("torch:cuda.OutOfMemoryError.__init__", lambda args, _kwargs: args, self._ran_out_of_memory)

    def _source_of(self, iterator: Any) -> BatchSource:
        known = self._iterators.of(iterator)
        if not known:
            try:
                dataset = self._datasets.of(getattr(iterator, "_dataset", iterator))
            except TypeError:
                # A list, which has no weak references: then iterators of one loader belong together.
                dataset = self._datasets.of(_loader_of(iterator))
            known.append(BatchSource(of=dataset))
            known[0].is_fed = True
            workers, each = (getattr(iterator, name, None) for name in ("_num_workers", "_prefetch_factor"))
            known[0].dataset.ready = workers * each if workers and each else None
            known[0].expected = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        return known[0]

    def _backward_begins(self, args: Any, kwargs: Any) -> Any:
        caller = sys._getframe(2)
        if caller.f_code.co_name == "backward" and caller.f_back is not None:  # Tensor.backward's own
            caller = caller.f_back
        return (caller.f_code, caller.f_lineno), time.monotonic(), args[0] if args else kwargs.get("tensors")

    def _backward_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        if error is not None:
            return
        key, begin_s, loss = token
        if isinstance(loss, (tuple, list)):
            loss = loss[0] if loss else None
        if getattr(loss, "is_cuda", False):
            self._mark(loss)
        if process_stream.is_ranked:
            self._add_own(begin_s)
        self.loop.worked(key, begin_s, thread=threading.get_ident())
        now_s = time.monotonic()
        if now_s >= self.loop.report.loss_due_s and getattr(loss, "ndim", None) == 0:
            self.loop.saw_loss(now_s, loss.detach(), loss.device.type == "cpu")

    def _add_own(self, begin_s: float) -> None:
        """Add up time between backward passes; report it twice a second."""
        self._own_s += begin_s - self._left_s if self._left_s else 0.0
        self._passes += 1
        self._left_s = now_s = time.monotonic()
        if now_s >= self._own_due_s:
            self._own_due_s = now_s + 0.5
            self.loop.report.line("own", now_s, duration_s=self._own_s, times=self._passes)

    def _mark(self, loss: Any) -> None:
        """Add an event to the GPU's stream as a marker; the loss is read once it has passed."""
        torch, now_s = import_module("torch"), time.monotonic()
        stream, report = torch.cuda.current_stream(loss.device), self.loop.report
        self.loop.sync = torch.cuda.synchronize
        if torch.cuda.is_current_stream_capturing() or not self.loop.is_marker_due(now_s):
            return
        copied = None
        if now_s >= report.loss_due_s and loss.ndim == 0:
            report.loss_due_s = now_s + 0.5
            copied = torch.empty((), dtype=loss.dtype, pin_memory=True).copy_(loss.detach(), non_blocking=True)
        passed = stream.record_event().query

        def has_passed() -> bool:
            is_past = bool(passed())
            if is_past and copied is not None:
                report.loss(time.monotonic(), copied)
            return is_past

        self.loop.completions.add(now_s, has_passed)

    def _updates(self) -> Callable[..., None]:
        event, loop, instrumentation = (StepMaker.updated,), self.loop, self.instrumentation

        def updated(*_args: Any) -> None:
            if instrumentation.on and not loop.is_suspended:
                loop.recorded.append(event)

        return updated

    def _ran_out_of_memory(self, args: Any, result: Any, error: Optional[BaseException]) -> None:
        self.loop.ran_out_of_memory(f"OutOfMemoryError: {args[0]}")


def _loader_of(iterator: Any) -> Any:
    return getattr(iterator, "_index_sampler", iterator)
