"""Observer of Keras: ``fit`` and ``train_on_batch``, of Keras 3 on any backend and of Keras 2 (``tf_keras``).

``fit`` marks the end of a step by calling ``CallbackList.on_train_batch_end``. That method is wrapped and no callback
added, because one that is not declared ``async_safe`` would make Keras wait for all others after each step.
"""

from __future__ import annotations

import functools
import threading
import time
from importlib import import_module
from typing import Any, Optional

from autotune.trainee.batch import BatchSizes, loss_in
from autotune.trainee.fast_path import around_step_end
from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.loop import Loop


def observe(package: str, loop: Loop, instrumentation: Instrumentation) -> None:
    """Instrument Keras.

    Args:
        package: ``keras`` or ``tf_keras``; it has been imported.
    """
    keras = import_module(package)
    is_keras_3 = int(keras.__version__.partition(".")[0]) >= 3
    fit = _Fit(loop)
    callbacks = import_module(f"{package}.src.callbacks" + (".callback_list" if is_keras_3 else ""))

    def around(owner: Any, name: str, begin: Any, end: Any) -> None:
        instrumentation.attempt(f"{package}: {name}", lambda: instrumentation.around(owner, name, begin, end))

    around(keras.Model, "fit", fit.begin, fit.end)
    around(keras.Model, "train_on_batch", fit.begin_on_batch, fit.end_on_batch)
    around(callbacks.CallbackList, "on_train_begin", fit.training_begins, fit.training_has_begun)
    see_loss = None if is_keras_3 else fit.see_loss
    instrumentation.attempt(
        f"{package}: on_train_batch_end",
        lambda: around_step_end(loop, instrumentation, callbacks.CallbackList, "on_train_batch_end", see_loss),
    )
    around(callbacks.CallbackList, "on_epoch_end", fit.epoch_ends, fit.epoch_reported)
    if is_keras_3:
        around(callbacks.CallbackList, "_on_train_batch_end", fit.logs_are_read, fit.logs_were_read)
        iterator = import_module("keras.src.trainers.epoch_iterator").EpochIterator
        around(iterator, "__next__", fit.batch_begins, fit.batch_fetched)
    around(keras.Model, "evaluate", fit.evaluation_begins, fit.evaluation_ends)
    around(keras.Model, "predict", *loop.around_pause("eval"))
    for name in ("save", "save_weights"):
        around(keras.Model, name, *loop.around_pause("checkpoint"))


class _Fit:
    """Callbacks around Keras's own training loop, and around its single step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sizes = BatchSizes()
        self._losses = RunningMean()

    @functools.cached_property
    def _is_on_cpu(self) -> bool:
        # Keras 2 does not read its logs after each step; on an accelerator that would wait for it.
        return bool(import_module("tensorflow.python.eager.context").context().num_gpus() == 0)

    def begin(self, args: Any, kwargs: Any) -> Any:
        if self._loop.is_suspended:
            return None
        self._loop.digest()
        self._loop.aggregated.skip(time.monotonic())
        self._loop.is_suspended = True
        return True

    def end(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self._loop.is_suspended = False
        self._loop.flush()

    def training_begins(self, args: Any, kwargs: Any) -> Any:
        return True if self._loop.is_suspended else None

    def training_has_begun(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self._loop.aggregated.skip(time.monotonic())

    def see_loss(self, now_s: float, args: Any) -> None:
        if now_s >= self._loop.report.loss_due_s and self._is_on_cpu:
            shown = loss_in(args[2]) if len(args) > 2 else None
            self._loop.report.loss(now_s, self._losses.since_last(args[0], args[1], shown))

    def logs_are_read(self, args: Any, kwargs: Any) -> Any:
        """Note that Keras is about to read a step's logs, which waits for the accelerator, maybe in another thread."""
        if time.monotonic() < self._loop.report.loss_due_s:
            return None
        return args[0], args[1], args[2] if len(args) > 2 else kwargs.get("logs")

    def logs_were_read(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        callbacks, batch, logs = token
        self._loop.report.loss(time.monotonic(), self._losses.since_last(callbacks, batch, loss_in(logs)))

    def epoch_ends(self, args: Any, kwargs: Any) -> Any:
        return time.monotonic() if self._loop.is_suspended else None

    def epoch_reported(self, t_s: float, result: Any, error: Optional[BaseException]) -> None:
        """Record the end of these callbacks, whose time is part of the next epoch's first step."""
        self._loop.flush()
        self._loop.report.mark("epoch_end", t_s)

    def evaluation_begins(self, args: Any, kwargs: Any) -> float:
        return self._loop.pause_begins()

    def evaluation_ends(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self._loop.pause_ends("eval", begin_s, loss_in(result) if error is None else None)

    def batch_begins(self, args: Any, kwargs: Any) -> Any:
        """Record that ``fit`` asks for a batch; on TensorFlow, the compiled step does that instead."""
        if not self._loop.is_suspended:
            return None
        self._loop.is_counted_whole = True  # a loader of PyTorch or tf.data within is observed, too
        return time.monotonic()

    def batch_fetched(self, begin_s: float, result: Any, error: Optional[BaseException]) -> None:
        self._loop.is_counted_whole = False
        if error is None:
            for batch in result[2]:
                self._loop.aggregated.add((time.monotonic() - begin_s) / len(result[2]), self._sizes.of(batch))

    def begin_on_batch(self, args: Any, kwargs: Any) -> Any:
        if self._loop.is_suspended:
            return None
        self._loop.is_suspended = True
        return time.monotonic(), (args, kwargs)

    def end_on_batch(self, token: Any, result: Any, error: Optional[BaseException]) -> None:
        self._loop.is_suspended = False
        begin_s, args = token
        if error is None:
            now_s = time.monotonic()
            if now_s >= self._loop.report.loss_due_s:
                self._loop.report.loss(now_s, loss_in(result))
            key = ("train_on_batch", id(args[0][0]))
            samples = self._sizes.of((args[0][1:], args[1])) if self._loop.wants_samples else None
            self._loop.worked(key, begin_s, samples=samples, is_whole=True, thread=threading.get_ident())


_SAME = 1e-5


class RunningMean:
    """Losses of Keras's logs, made those of the batches since the last look.

    The mean over an epoch falls more slowly than the loss itself, and the more slowly the longer the epoch; trainings
    with another number of batches in an epoch could not be compared by it.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._mean = 0.0
        self._is_running: Optional[bool] = None

    def since_last(self, callbacks: Any, batch: Any, shown: Any) -> Any:
        """Return the mean loss of the batches since the last call in this epoch.

        Args:
            callbacks: Keras's list of callbacks, which knows the model.
            batch: Number of the latest batch in its epoch, from 0.
            shown: The loss in the logs; returned as it is where that is no running mean.
        """
        try:
            batches, mean = int(batch) + 1, float(shown)
        except Exception:
            return shown
        if batches <= self._batches:  # another epoch
            self._batches, self._mean = 0, 0.0
        if self._is_running is None and batches > 1:  # the first batch's mean is its loss
            self._is_running = _is_running_mean(callbacks, mean)
        latest = (batches * mean - self._batches * self._mean) / (batches - self._batches)
        self._batches, self._mean = batches, mean
        return latest if self._is_running else shown


def _is_running_mean(callbacks: Any, shown: float) -> bool:
    """Return whether a loss comes from a metric of the model: a train_step of the user's may return that of a batch."""
    model: Any = getattr(callbacks, "_model", None) or getattr(callbacks, "model", None)
    step = getattr(type(model), "train_step", None)
    if (getattr(step, "__module__", None) or "").partition(".")[0] in ("keras", "tf_keras"):
        return True
    try:
        results = [float(metric.result()) for metric in model.metrics]
    except Exception:
        return False
    return any(abs(result - shown) <= _SAME * max(1e-12, abs(shown)) for result in results)
