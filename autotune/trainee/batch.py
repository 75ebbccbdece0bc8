"""Nested batches of arrays: sample counts, copies of containers, the loss in a step's result."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, Callable, Optional

Path = tuple[Any, ...]
"""Keys and indices that lead to a position in a nested batch."""

Sizer = Callable[[Any], Optional[int]]
"""Function that returns the number of samples in a batch."""

_DEPTH = 4
_WIDTH = 64


def sizer(batch: Any, expected: Optional[int] = None) -> Sizer:
    """Return a function that counts the samples in similar batches: the leading dimension of one of their arrays.

    That is the first array with the expected leading dimension, or else with the most common one. Replicas are summed.
    """
    found = [(path, size) for path, leaf in leaves(batch) if (size := leading_size(leaf)) is not None]
    if not found:
        return lambda _batch: None
    sizes = Counter(size for _, size in found)
    wanted = expected if expected in sizes else max(sizes, key=sizes.__getitem__)  # the first of equals
    path = next(path for path, size in found if size == wanted)
    array = reduce(getitem, path, batch)
    if _is_replicated(array):
        return lambda batch: leading_size(reduce(getitem, path, batch))
    # The two usual cases, without the checks of `leading_size`.
    if hasattr(array, "_shape_tuple"):  # TensorFlow: creates no shape object
        return lambda batch: reduce(getitem, path, batch)._shape_tuple()[0]
    return lambda batch: reduce(getitem, path, batch).shape[0]


class BatchSizes:
    """Counter of samples in batches; caches the sizer, which takes 30 times as long to find as to use."""

    __slots__ = ("_size",)

    def __init__(self) -> None:
        self._size: Sizer = lambda _batch: None

    def of(self, batch: Any) -> Optional[int]:
        try:
            size = self._size(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            size = None
        if size is None:
            self._size = sizer(batch)
            size = self._size(batch)
        return size


def leaves(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the parts of a batch that aren't containers, with their paths; a list of texts is one part."""
    if len(path) > _DEPTH:
        return
    if isinstance(batch, Mapping):
        for key in list(batch)[:_WIDTH]:
            yield from leaves(batch[key], (*path, key))
    elif isinstance(batch, (tuple, list)) and not _is_texts(batch):
        for index, part in enumerate(batch[:_WIDTH]):
            yield from leaves(part, (*path, index))
    else:
        yield path, batch


def _is_texts(part: Any) -> bool:
    return bool(part) and all(isinstance(one, (str, bytes)) for one in part[:2])


def _is_replicated(leaf: Any) -> bool:
    return type(leaf).__name__ == "PerReplica"  # TensorFlow: one value per device


def leading_size(leaf: Any) -> Optional[int]:
    """Return the size of an array's first dimension, summed over replicas; None for others."""
    if _is_replicated(leaf):
        sizes = [leading_size(value) for value in leaf.values]
        return None if None in sizes else sum(sizes)  # type: ignore[arg-type]
    shape = getattr(leaf, "shape", None)
    if shape is None or callable(shape):
        return None
    size = shape[0] if len(shape) else None
    return None if size is None else int(size)


def loss_in(result: Any) -> Any:
    """Return the scalar in a step's result that is most likely its loss, or None."""
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
    """Return the same arrays in copies of their tuples, lists and mappings."""
    if type(batch) is dict:
        return {key: in_new_containers(part) for key, part in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(in_new_containers(part) for part in batch)
    return copy.copy(batch) if isinstance(batch, Mapping) else batch
