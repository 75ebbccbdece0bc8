"""Feed of batches from a pipeline, with the wait for each and the work in it."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import tensorflow as tf

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """One batch with its wait and its work.

    Attributes:
        wait_s: Time that the training loop was blocked on it.
        work: The sum of the feature that counts valid work, e.g. the lengths without padding.
    """

    batch: dict[str, tf.Tensor]
    wait_s: float
    work: int


class BatchFeed(Iterator[Fetched]):
    """Iterator over the batches of a training; a context manager that ends what it started.

    Attributes:
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


# Prefetch in stages: batches wait in host memory, then in the device's, then at the training loop's hand.


def staged_prefetch(
    batches: tf.data.Dataset, device: str, *, host_batches: int = 0, device_batches: int = 1, ready_batches: int = 0
) -> tf.data.Dataset:
    """Return the same batches on a device, with a buffer at each stage, each filled by a thread of its own.

    The options of ``batches`` do not reach behind the copy. So give each buffer a number, as here, and not AUTOTUNE.

    Args:
        host_batches: Finished batches in host memory ahead of the copy, besides those that ``batches`` keeps itself.
        device_batches: Batches copied ahead; each takes its size in device memory.
        ready_batches: Batches on the device that a host thread has fetched ahead of the training loop, which then does
            not wait for the device's iterator; each takes its size in device memory too.

    Raises:
        ValueError: A buffer of less than none, or no batch copied ahead.
    """
    if min(host_batches, ready_batches) < 0 or device_batches < 1:
        raise ValueError(
            "host_batches and ready_batches must be at least 0, device_batches at least 1; got "
            f"{host_batches}, {ready_batches}, {device_batches}"
        )
    if host_batches:
        batches = batches.prefetch(host_batches)
    staged = batches.apply(tf.data.experimental.prefetch_to_device(device, device_batches))
    return staged.prefetch(ready_batches) if ready_batches else staged
