"""Running mean: the loss that Keras shows is that of all batches of the epoch so far, not of the latest."""

from __future__ import annotations

from typing import Any, Optional

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
