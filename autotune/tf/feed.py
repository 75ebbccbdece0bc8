"""Feed of batches from a pipeline, with the wait for each and the work in it."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import tensorflow as tf

from autotune.tf.options import require_at_least
from autotune.tf.pipeline import as_written, for_throughput

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


def optimize(
    batches: tf.data.Dataset,
    *,
    shapes: Any = None,
    throughput: bool = False,
    parallel_calls: int = 1,
    prefetch_batches: int = 2,
    device: str | None = None,
) -> tf.data.Dataset:
    """Return a dataset of batches that is there already with everything around it that makes it fast.

    Its elements may be tensors, tuples as ``(x, y)``, dicts, or these in each other; ragged ones become dense where
    they have a shape. What is batched stays so: settings that act on single examples (the cache, parallel loads) are
    `autotune.tf.pipeline.build`'s.

    Args:
        shapes: Shape without the batch's own dimension that each batch is padded to, zeros behind, in the structure of
            an element, e.g. ``([160, 80], None)``; None leaves a part, or all, as it is. What has one shape is compiled
            once; for that, the last batch of a pass has to be full, too (``drop_remainder``).
        throughput: Let tf.data reorder examples and tune itself, see `autotune.tf.pipeline.for_throughput`; else it
            leaves the pipeline as it is written.
        parallel_calls: Threads of the pipeline, at least as many as its maps have parallel calls.
        prefetch_batches: Batches that are ready ahead of the loop.
        device: The accelerator that they are copied to ahead, e.g. ``"/GPU:0"``; None copies none ahead.

    Raises:
        ValueError: ``shapes`` has another structure than an element; a number is too small.
    """
    require_at_least(1, parallel_calls=parallel_calls)
    require_at_least(0, prefetch_batches=prefetch_batches)
    if shapes is not None:
        wanted = _flat_shapes(batches.element_spec, shapes)
        batches = batches.map(partial(_padded, shapes=wanted), num_parallel_calls=parallel_calls, deterministic=True)
    options = for_throughput(parallel_calls) if throughput else as_written(parallel_calls)
    if device is None:
        ahead = batches.prefetch(prefetch_batches) if prefetch_batches else batches
        return ahead.with_options(options)
    return staged_prefetch(batches.with_options(options), device, host_batches=prefetch_batches)


def _flat_shapes(spec: Any, shapes: Any) -> list[Sequence[int] | None]:
    """Return the shape of each part of an element, in the order in which TensorFlow flattens it."""
    if shapes is None:
        return [None] * len(tf.nest.flatten(spec))
    if isinstance(spec, Mapping) and isinstance(shapes, Mapping) and spec.keys() == shapes.keys():
        return [shape for name in sorted(spec) for shape in _flat_shapes(spec[name], shapes[name])]
    if isinstance(spec, tuple) and isinstance(shapes, tuple) and len(spec) == len(shapes):
        return [shape for one, other in zip(spec, shapes, strict=True) for shape in _flat_shapes(one, other)]
    if isinstance(spec, tf.TypeSpec) and isinstance(shapes, list) and len(shapes) == spec.shape.rank - 1:
        return [shapes]
    raise ValueError(f"shapes are given as an element is built, {spec}; got {shapes!r}")


def _padded(*element: Any, shapes: Sequence[Sequence[int] | None]) -> Any:
    whole = element if len(element) > 1 else element[0]
    parts = [
        part if shape is None else _to(part, shape) for part, shape in zip(tf.nest.flatten(whole), shapes, strict=True)
    ]
    return tf.nest.pack_sequence_as(whole, parts)


def _to(part: Any, shape: Sequence[int]) -> tf.Tensor:
    part = part.to_tensor() if isinstance(part, tf.RaggedTensor) else part
    # what is larger is an error, and not cut
    missing = tf.concat([[0], tf.constant(shape, tf.int32) - tf.shape(part)[1:]], axis=0)
    padded = tf.pad(part, tf.stack([tf.zeros_like(missing), missing], axis=1))
    return tf.ensure_shape(padded, [part.shape[0], *shape])
