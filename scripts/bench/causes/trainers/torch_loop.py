"""Training loop on PyTorch over a ``DataLoader``, for an interpreter that has PyTorch.

Ways to load a sample: ``memory``, ``python`` (computes for `load_ms`), ``throttled`` (reads from a file whose disk
gives a sample in `load_ms`). `parallel` is the number of the loader's workers; 0 loads in the training process.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]  # in an interpreter of its own

from scripts.bench.causes.trainers.recipe import Recipe, read_recipe

_SAMPLES = 1 << 20
_FILES = 2000
_READ_BYTES = 4096
_RATE = 1e-3


class _Samples(torch.utils.data.Dataset):  # type: ignore[type-arg, misc, unused-ignore]  # PyTorch may not be there
    """Samples, each loaded by a function of its number."""

    def __init__(self, load: Callable[[int], Any]) -> None:
        self._load = load

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> Any:
        return self._load(number)


def _memory(recipe: Recipe) -> Callable[[int], Any]:
    """Take a row of a tensor."""
    rows = torch.randn(256, recipe.width)
    return lambda number: rows[number % 256]


def _python(recipe: Recipe) -> Callable[[int], Any]:
    """Compute in Python: CPU time, since neighbours must not make it less work."""
    features = torch.ones(recipe.width)

    def load(_number: int) -> Any:
        ends_s = time.thread_time() + recipe.load_ms / 1000
        while time.thread_time() < ends_s:
            sum(range(200))
        return features

    return load


def _throttled(recipe: Recipe) -> Callable[[int], Any]:
    """Read from a file whose disk gives a sample in `load_ms`."""
    path = Path(tempfile.mkdtemp()) / "samples"
    path.write_bytes(bytes(_READ_BYTES) * _FILES)

    def load(number: int) -> Any:
        begin_s = time.monotonic()
        with path.open("rb", buffering=0) as file:
            file.seek(number % _FILES * _READ_BYTES)
            raw = bytearray(file.read(_READ_BYTES))
        time.sleep(max(0.0, recipe.load_ms / 1000 - (time.monotonic() - begin_s)))
        return torch.frombuffer(raw, dtype=torch.uint8)[: recipe.width].float()

    return load


_LOADERS = {"memory": _memory, "python": _python, "throttled": _throttled}


def main() -> None:
    """Train until stopped."""
    recipe = read_recipe()
    loader = torch.utils.data.DataLoader(
        _Samples(_LOADERS[recipe.load](recipe)),
        batch_size=recipe.batch_size,
        num_workers=recipe.parallel,
        persistent_workers=recipe.parallel > 0,
    )
    layers = [[torch.nn.Linear(recipe.width, recipe.width), torch.nn.Tanh()] for _ in range(recipe.layers)]
    model = torch.nn.Sequential(*(part for layer in layers for part in layer))
    optimizer = torch.optim.SGD(model.parameters(), _RATE)
    while True:
        for features in loader:
            optimizer.zero_grad()
            (model(features) - 1.0).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
