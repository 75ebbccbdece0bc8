"""Feed of batches from a pipeline, with the wait for each and the work in it."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import tensorflow as tf

from autotune.tf.staged_prefetch import staged_prefetch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """One batch with its wait and its work.

    Attributes:
        batch: The features.
        wait_s: Time that the training loop was blocked on it.
        work: The sum of the feature that counts valid work, e.g. the lengths without padding.
    """

    batch: dict[str, tf.Tensor]
    wait_s: float
    work: int


class BatchFeed(Iterator[Fetched]):
    """Iterator over the batches of a training; a context manager that ends what it started.

    Attributes:
        element_spec: Shapes and dtypes of a batch.
        device: Device on which the batches are ready; None means the host's memory.
    """

    element_spec: dict[str, tf.TensorSpec]
    device: str | None

    def close(self) -> None:
        """End the iterator; may be called by anybody, and again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Feed(BatchFeed):
    """Iterator over a pipeline on the host.

    The work is counted on the host, before the batch goes to an accelerator: reading a number back from
    there would wait for every step that is on its way.

    Args:
        batches: Dataset made by `autotune.tf.pipeline.build`.
        work: The feature whose sum is the valid work in a batch.
        device: Device to copy the batches to, one ahead, e.g. that of `accelerator`; None leaves them on the host.

    Raises:
        ValueError: ``work`` names no whole numbers of a batch.
    """

    def __init__(self, batches: tf.data.Dataset, *, work: str, device: str | None = None) -> None:
        if not isinstance(batches.element_spec, dict):
            raise ValueError(f"batches are dicts of tensors by name, these are {batches.element_spec!r:.80}")
        if work not in batches.element_spec or not batches.element_spec[work].dtype.is_integer:
            counted_in = ", ".join(name for name, spec in batches.element_spec.items() if spec.dtype.is_integer)
            raise ValueError(
                f"work names whole numbers in the batches, got {work!r}; there are: {counted_in or 'none'}"
            )
        counts: deque[int] = deque()

        def count(values: np.ndarray) -> None:
            counts.append(int(values.sum()))

        def count_and_pass(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            tf.numpy_function(count, [batch[work]], [])
            return batch

        counted = batches.map(count_and_pass)
        self.element_spec = batches.element_spec
        self.device = device
        if device is not None:
            counted = staged_prefetch(counted, device)
        self._counts = counts
        self._iterator = iter(counted)

    def __next__(self) -> Fetched:
        asked_s = time.monotonic()
        batch = next(self._iterator)
        return Fetched(batch=batch, wait_s=time.monotonic() - asked_s, work=self._counts.popleft())


def accelerator() -> str | None:
    """Return the device that `Feed` can copy batches to; None, which is logged, where there is only a CPU."""
    accelerators = tf.config.list_logical_devices("GPU") + tf.config.list_logical_devices("TPU")
    if accelerators:
        return str(accelerators[0].name)
    _log.warning("no accelerator here: batches are not prefetched to one")
    return None
