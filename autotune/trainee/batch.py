"""Nested batches of arrays: their number of samples, copies of their containers, and the loss in a step's result."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any, Callable, Optional

Path = tuple[Any, ...]
"""Position in a nested batch: the keys and indices that lead to it."""

Sizer = Callable[[Any], Optional[int]]
"""Function that returns the number of samples in a batch."""

_DEPTH = 4
_WIDTH = 64


def sizer(batch: Any, expected: Optional[int] = None) -> Sizer:
    """Return a function that counts the samples in batches like this one.

    The number is the leading dimension of the first array that has the expected one, or else of the first with the most
    common one; summed over the replicas of a distributed batch.

    Args:
        batch: Arrays in tuples, lists and mappings.
        expected: The number of samples in a full batch, where the loader says it.
    """
    found: list[tuple[Path, int]] = list(_leading(batch, ()))
    if not found:
        return lambda _batch: None
    sizes = Counter(size for _, size in found)
    wanted = expected if expected in sizes else max(sizes, key=sizes.__getitem__)  # of equals, the first
    path = next(path for path, size in found if size == wanted)
    array = reduce(getitem, path, batch)
    if _is_replicated(array):
        return lambda batch: _size(reduce(getitem, path, batch))
    # Nearly always; these two are fast.
    if hasattr(array, "_shape_tuple"):  # TensorFlow's, without making an object of the shape
        return lambda batch: reduce(getitem, path, batch)._shape_tuple()[0]
    return lambda batch: reduce(getitem, path, batch).shape[0]


class BatchSizes:
    """Counter of the samples in successive batches; its method is found from the first, and again for an unlike one.

    To find the method takes thirty times as long as to use it.
    """

    __slots__ = ("_size",)

    def __init__(self) -> None:
        self._size: Sizer = lambda _batch: None

    def of(self, batch: Any) -> Optional[int]:
        """Return the samples in this batch; None if it holds no arrays."""
        try:
            size = self._size(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            size = None
        if size is None:
            self._size = sizer(batch)
            size = self._size(batch)
        return size


def _leading(batch: Any, path: Path) -> Any:
    if len(path) > _DEPTH:
        return
    size = _size(batch)
    if size is not None:
        yield path, size
    elif isinstance(batch, Mapping):
        for key in list(batch)[:_WIDTH]:
            yield from _leading(batch[key], (*path, key))
    elif isinstance(batch, (tuple, list)):
        for index, part in enumerate(batch[:_WIDTH]):
            yield from _leading(part, (*path, index))


def _is_replicated(leaf: Any) -> bool:
    return type(leaf).__name__ == "PerReplica"  # TensorFlow's: one value for each device


def _size(leaf: Any) -> Optional[int]:
    if _is_replicated(leaf):
        sizes = [_size(value) for value in leaf.values]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]
    shape = getattr(leaf, "shape", None)
    if shape is None or callable(shape):
        return None
    size = shape[0] if len(shape) else None
    return None if size is None else int(size)


def loss_in(result: Any) -> Any:
    """Return the scalar in a step's result that is most probably its loss; None if there is none."""
    if isinstance(result, Mapping):
        for key in sorted(result, key=lambda key: (str(key) != "loss", "loss" not in str(key))):
            return _scalar(result[key])
        return None
    if isinstance(result, (tuple, list)):
        return next((scalar for scalar in map(_scalar, result[:_WIDTH]) if scalar is not None), None)
    return _scalar(result)


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return value
    shape = getattr(value, "shape", None)
    is_float = "float" in str(getattr(value, "dtype", ""))
    return value if is_float and shape is not None and not callable(shape) and len(shape) == 0 else None


def in_new_containers(batch: Any) -> Any:
    """Return the same arrays in copies of the tuples, lists and mappings around them."""
    if type(batch) is dict:
        return {key: in_new_containers(part) for key, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(in_new_containers(part) for part in batch)
    return copy.copy(batch) if isinstance(batch, Mapping) else batch
