"""Observer of Keras 3: ``fit`` and ``train_on_batch``, on any backend.

It wraps ``CallbackList.on_train_batch_end``, which ends a step of ``fit``. A callback that isn't ``async_safe`` would
make Keras wait for all others after each step.
"""

from __future__ import annotations

import functools
import threading
import time
from importlib import import_module
from typing import Any, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.observe import Observer


class KerasObserver(Observer):
    """Observer of Keras's ``fit`` and ``train_on_batch``."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._sizes, self._losses = BatchSizes(), RunningMean()

    def install(self) -> None:
        if int(import_module("keras").__version__.partition(".")[0]) < 3:
            return  # its ``fit`` is a compiled function, whose steps TensorFlow's observer sees
        model, callbacks = "keras:Model", "keras.src.callbacks.callback_list:CallbackList"
        self.around(f"{model}.fit", self._fit_begins, self._fit_ends)
        self.around(f"{model}.train_on_batch", self._single_begins, self._single_ends)
        self.around(f"{callbacks}.on_train_begin", self._in_fit, lambda *_: self.loop.aggregated.skip(time.monotonic()))
        self.attempt(f"{callbacks}.on_train_batch_end", self._around_step_end)
        self.around(f"{callbacks}.on_epoch_end", self._in_fit, self._epoch_reported)
        self.around(f"{callbacks}._on_train_batch_end", self._logs_are_read, self._logs_were_read)
        batches = "keras.src.trainers.epoch_iterator:EpochIterator.__next__"
        self.around(batches, self._batch_begins, self._batch_fetched)
        self.around(f"{model}.evaluate", lambda args, kwargs: self.loop.pause_begins(), self._evaluated)
        self.pause(f"{model}.predict", "eval")
        for name in ("save", "save_weights"):
            self.pause(f"{model}.{name}", "checkpoint")

    def _fit_begins(self, args: Any, kwargs: Any) -> Any:
        if self.loop.is_suspended:
            return None
        self.loop.digest()
        self.loop.aggregated.skip(time.monotonic())
        self.loop.is_suspended = True
        return True

    def _fit_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self.loop.is_suspended = False
        self.loop.flush()

    def _in_fit(self, args: Any, kwargs: Any) -> Any:
        return time.monotonic() if self.loop.is_suspended else None

    def _epoch_reported(self, t_s: float, result: Any, error: Optional[BaseException]) -> None:
        """Record an epoch's end; its callbacks are part of the next epoch's first step."""
        self.loop.flush()
        self.loop.report.mark("epoch_end", t_s)

    def _around_step_end(self, owner: Any, name: str) -> None:
        """Record the step ends of ``fit``; the trainer's callbacks may report steps themselves."""
        original, loop, instrumentation = getattr(owner, name), self.loop, self.instrumentation
        monotonic = time.monotonic

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            end_s = None
            try:
                if loop.is_suspended and instrumentation.on:
                    end_s = monotonic()
                    loop.aggregated.ending(end_s)
            except Exception as error:
                instrumentation.failed(error)
            try:
                return original(*args, **kwargs)
            finally:
                if end_s is not None:
                    try:
                        loop.aggregated.ended(end_s)
                    except Exception as error:
                        instrumentation.failed(error)

        self.instrumentation.put(owner, name, observed)

    def _logs_are_read(self, args: Any, kwargs: Any) -> Any:
        """Return a step's logs and callbacks; Keras waits for the accelerator to read them, maybe in another thread."""
        if time.monotonic() < self.loop.report.loss_due_s:
            return None
        return args[0], args[1], args[2] if len(args) > 2 else kwargs.get("logs")

    def _logs_were_read(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        callbacks, batch, logs = token
        self.loop.report.loss(time.monotonic(), self._losses.since_last(callbacks, batch, loss_in(logs)))

    def _evaluated(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self.loop.pause_ends("eval", begin_s, loss_in(result) if error is None else None)

    def _batch_begins(self, args: Any, kwargs: Any) -> Any:
        """Record that ``fit`` requests a batch; on TensorFlow, the compiled step does."""
        if not self.loop.is_suspended:
            return None
        self.loop.is_counted_whole = True  # a nested loader of PyTorch or tf.data is observed, too
        return time.monotonic()

    def _batch_fetched(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self.loop.is_counted_whole = False
        if error is None:
            for batch in result[2]:
                self.loop.aggregated.add((time.monotonic() - begin_s) / len(result[2]), self._sizes.of(batch))

    def _single_begins(self, args: Any, kwargs: Any) -> Any:
        if self.loop.is_suspended:
            return None
        self.loop.is_suspended = True
        return time.monotonic(), args, kwargs

    def _single_ends(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self.loop.is_suspended = False
        begin_s, args, kwargs = token
        if error is None:
            now_s = time.monotonic()
            if now_s >= self.loop.report.loss_due_s:
                self.loop.report.loss(now_s, loss_in(result))
            samples = self._sizes.of((args[1:], kwargs)) if self.loop.wants_samples else None
            self.loop.worked(("train_on_batch", id(args[0])), begin_s, samples, True, threading.get_ident())


class RunningMean:
    """Keras's logged losses, converted from means over the epoch to means since the last call."""

    def __init__(self) -> None:
        self._batches = 0
        self._mean = 0.0
        self._is_running: Optional[bool] = None

    def since_last(self, callbacks: Any, batch: Any, logged: Any) -> Any:
        """Return the mean loss of the batches since the last call in this epoch.

        Args:
            callbacks: Keras's callback list, which knows the model.
            batch: Index of the latest batch in its epoch.
            logged: Loss in the logs; returned unchanged if it isn't a running mean.
        """
        try:
            batches, mean = int(batch) + 1, float(logged)
        except Exception:
            return logged
        if batches <= self._batches:  # another epoch
            self._batches, self._mean = 0, 0.0
        if self._is_running is None and batches > 1:  # the first batch's mean is its loss
            self._is_running = _is_running_mean(callbacks, mean)
        latest = (batches * mean - self._batches * self._mean) / (batches - self._batches)
        self._batches, self._mean = batches, mean
        return latest if self._is_running else logged


def _is_running_mean(callbacks: Any, logged: float) -> bool:
    """Return whether a loss is a metric of the model; a user's train_step may return a batch's loss."""
    model: Any = getattr(callbacks, "_model", None)
    step = getattr(type(model), "train_step", None)
    if (getattr(step, "__module__", None) or "").partition(".")[0] == "keras":
        return True
    try:
        results = [float(metric.result()) for metric in model.metrics]
    except Exception:
        return False
    return any(abs(result - logged) <= 1e-5 * max(1e-12, abs(logged)) for result in results)
