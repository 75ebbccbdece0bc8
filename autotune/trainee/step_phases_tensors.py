"""Batches of TensorFlow for the profile of a step: their shapes, their device, copies of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

MOST_BATCHES = 24
"""Batches that are kept for the profile: they differ in length with many trainers."""

_MOST_BYTES = 256 << 20  # of these


class KeptBatches:
    """Latest batches of a training, as many as fit."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def add(self, batch: Any) -> None:
        """Keep a batch, and as many of those before it as fit."""
        self.batches.append(batch)
        fit = _MOST_BYTES // max(1, _bytes(batch))
        del self.batches[: -max(1, min(MOST_BATCHES, fit))]


def same_shapes(batches: Sequence[Any]) -> list[Any]:
    """Return the batches of the shapes that most of them have."""
    shapes = [_shapes(batch) for batch in batches]
    most = max(set(shapes), key=shapes.count)
    return [batch for batch in batches if _shapes(batch) == most]


def one_of_each_shape(batches: Sequence[Any]) -> list[Any]:
    """Return a batch of each shape, for the first few shapes."""
    found = {_shapes(batch): batch for batch in reversed(batches)}
    return list(found.values())[-3:]  # to trace for: from the second shape on TensorFlow leaves open what differs


def accelerator() -> str | None:
    """Return the device that the step runs on; None for the CPU."""
    devices = sys.modules["tensorflow"].config.list_logical_devices("GPU")
    return str(devices[0].name) if devices else None


def wait() -> None:
    """Wait for all devices."""
    sys.modules["tensorflow"].test.experimental.sync_devices()


def is_on_host(batch: Any) -> bool:
    """Return whether a tensor of the batch is in the host's memory."""
    return any("CPU" in str(getattr(leaf, "device", "CPU")) for leaf in _leaves(batch))


def copied(batch: Any, device: str | None) -> Any:
    """Return a copy of a batch on a device, tensors of texts aside; the batch itself for None."""
    tf: Any = sys.modules["tensorflow"]
    if device is None:
        return tf.nest.map_structure(tf.convert_to_tensor, batch)

    def copy(leaf: Any) -> Any:
        leaf = tf.convert_to_tensor(leaf)
        return leaf if leaf.dtype == tf.string else tf.identity(leaf)

    with tf.device(device):
        return tf.nest.map_structure(copy, batch)


def batch_size(batch: Any) -> int | None:
    """Return the samples in a batch: the first dimension of most of its tensors; None if there is none."""
    sizes = [int(leaf.shape[0]) for leaf in _leaves(batch) if len(getattr(leaf, "shape", ()))]
    return max(set(sizes), key=sizes.count) if sizes else None


def _leaves(batch: Any) -> list[Any]:
    return [leaf for leaf in sys.modules["tensorflow"].nest.flatten(batch) if leaf is not None]


def _shapes(batch: Any) -> str:
    return str([(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in _leaves(batch)])


def _bytes(batch: Any) -> int:
    total = 0
    for leaf in _leaves(batch):
        count = 1
        for size in getattr(leaf, "shape", ()):
            count *= int(size)
        total += count * int(getattr(getattr(leaf, "dtype", None), "size", 0) or getattr(leaf, "itemsize", 8) or 8)
    return total
