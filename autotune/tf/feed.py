"""Feed of batches from a pipeline, with the wait for each and its work."""

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
    """Batch, the time that the training loop waited for it, and its valid work, e.g. the sum of lengths."""

    batch: dict[str, tf.Tensor]
    wait_s: float
    work: int


class BatchFeed(Iterator[Fetched]):
    """Iterator over batches on a device, None for host memory; a context manager that stops its threads."""

    element_spec: dict[str, tf.TensorSpec]
    device: str | None

    def close(self) -> None:
        """End the iterator; idempotent, callable from any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Feed(BatchFeed):
    """Iterator over a pipeline on the host.

    Work is counted before the copy: reading it from an accelerator would wait for all pending steps.

    Args:
        work: Integer feature whose sum is the valid work in a batch.
        device: Device to copy batches to, one ahead.
    """

    def __init__(self, batches: tf.data.Dataset, *, work: str, device: str | None = None) -> None:
        specs = batches.element_spec
        if not isinstance(specs, dict) or work not in specs or not specs[work].dtype.is_integer:
            raise ValueError(f"batches must be dicts with an integer tensor {work!r}, got {specs}")
        counts: deque[int] = deque()

        def count(values: np.ndarray) -> None:
            counts.append(int(values.sum()))

        def count_and_pass(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            tf.numpy_function(count, [batch[work]], [])
            return batch

        counted = batches.map(count_and_pass)
        self.element_spec = specs
        self.device = device
        if device is not None:
            counted = staged_prefetch(counted, device)
        self._counts = counts
        self._iterator = iter(counted)

    def __next__(self) -> Fetched:
        started_s = time.monotonic()
        batch = next(self._iterator)
        return Fetched(batch=batch, wait_s=time.monotonic() - started_s, work=self._counts.popleft())


def accelerator() -> str | None:
    """Return the device to copy batches to; log and return None if there is only a CPU."""
    accelerators = tf.config.list_logical_devices("GPU") + tf.config.list_logical_devices("TPU")
    if accelerators:
        return str(accelerators[0].name)
    _log.warning("no accelerator found: batches stay in host memory")
    return None


# Staged prefetch: batches in host memory, in device memory, and fetched for the training loop.


def staged_prefetch(
    batches: tf.data.Dataset, device: str, *, host_batches: int = 0, device_batches: int = 1, ready_batches: int = 0
) -> tf.data.Dataset:
    """Return the same batches on a device, with a buffer per stage, each filled by its own thread.

    The options of ``batches`` do not apply after the copy, so buffers have fixed sizes instead of AUTOTUNE.

    Args:
        host_batches: Batches in host memory, in addition to those that ``batches`` buffers.
        device_batches: Batches copied ahead, in device memory.
        ready_batches: Batches in device memory that a host thread fetches ahead.
    """
    require_at_least(0, host_batches=host_batches, ready_batches=ready_batches)
    require_at_least(1, device_batches=device_batches)
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
    """Return a dataset of batches with padding, buffers and options for speed.

    Elements are tensors, tuples, dicts, or nested ones; ragged tensors become dense if they have a shape.

    Args:
        shapes: Shape without the batch dimension to zero-pad each batch to, in the structure of an element, e.g.
            ``([160, 80], None)``; None keeps a part, or all.
        throughput: Apply `autotune.tf.pipeline.for_throughput` instead of keeping the pipeline as written.
        parallel_calls: Threads of the pipeline, at least the parallel calls of its maps.
        device: Accelerator to copy batches to ahead, e.g. ``"/GPU:0"``.

    Raises:
        ValueError: ``shapes`` does not match an element, or a number is too small.
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
    """Return the shape of each part of an element, in TensorFlow's flattening order."""
    if shapes is None:
        return [None] * len(tf.nest.flatten(spec))
    if isinstance(spec, Mapping) and isinstance(shapes, Mapping) and spec.keys() == shapes.keys():
        return [shape for name in sorted(spec) for shape in _flat_shapes(spec[name], shapes[name])]
    if isinstance(spec, tuple) and isinstance(shapes, tuple) and len(spec) == len(shapes):
        return [shape for one, other in zip(spec, shapes, strict=True) for shape in _flat_shapes(one, other)]
    if isinstance(spec, tf.TypeSpec) and isinstance(shapes, list) and len(shapes) == spec.shape.rank - 1:
        return [shapes]
    raise ValueError(f"shapes must have the structure of an element, {spec}; got {shapes!r}")


def _padded(*element: Any, shapes: Sequence[Sequence[int] | None]) -> Any:
    whole = element if len(element) > 1 else element[0]
    parts = [
        part if shape is None else _pad(part, shape) for part, shape in zip(tf.nest.flatten(whole), shapes, strict=True)
    ]
    return tf.nest.pack_sequence_as(whole, parts)


def _pad(part: Any, shape: Sequence[int]) -> tf.Tensor:
    part = part.to_tensor() if isinstance(part, tf.RaggedTensor) else part
    # raises if the part is larger than the shape
    missing = tf.concat([[0], tf.constant(shape, tf.int32) - tf.shape(part)[1:]], axis=0)
    padded = tf.pad(part, tf.stack([tf.zeros_like(missing), missing], axis=1))
    return tf.ensure_shape(padded, [part.shape[0], *shape])
