"""Devices that the tensors of a step of PyTorch lie on, where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST_NAMES = 5
_DEPTH = 4
_WIDTH = 256


class TensorPlaces:
    """Tensors of a step by their kind and their device."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], list[str]] = {}

    def add_call(self, module: Any, arguments: Any) -> None:
        """Add a model and what it is called with."""
        for name, parameter in module.named_parameters():
            self._add("parameters", name, parameter)
        for name, buffer in module.named_buffers():
            self._add("buffers", name, buffer)
        for name, tensor in _tensors(arguments, "input"):
            self._add("inputs of the model", name, tensor)

    def add_optimizer(self, optimizer: Any) -> None:
        """Add what an optimizer keeps of its parameters; its counters are on the CPU by design."""
        for state in list(optimizer.state.values()):
            for name, tensor in _tensors(state, "state"):
                if tensor.ndim:
                    self._add("state of the optimizer", name, tensor)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each kind and device."""
        return [
            {"what": kind, "device": device, "count": len(names), "names": list(dict.fromkeys(names))[:_MOST_NAMES]}
            for (kind, device), names in self._names.items()
        ]

    def _add(self, kind: str, name: str, tensor: Any) -> None:
        self._names.setdefault((kind, str(tensor.device)), []).append(name)


def _tensors(part: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Return the tensors in nested containers, each with the name under which it stands there."""
    if hasattr(part, "device") and hasattr(part, "ndim"):
        yield name, part
    elif depth < _DEPTH and isinstance(part, (Mapping, list, tuple)):
        parts: Iterable[tuple[Any, Any]] = part.items() if isinstance(part, Mapping) else enumerate(part)
        for key, one in list(parts)[:_WIDTH]:
            yield from _tensors(one, key if isinstance(key, str) else name, depth + 1)
