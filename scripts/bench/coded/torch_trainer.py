"""Trainer whose loading is written into its code: what `scripts.bench code` has tools tune. A script.

``python train.py LIMIT`` trains until it is ended, or for ``--seconds``; then it prints the speed in samples
per second, the first seconds left out. For loadtune the same parts are a workload, of the limit that ``LIMIT`` names.
"""

import argparse
import os
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

_WIDTH = 256
_WARM_UP_S = 4.0
_FILES, _FILE_BYTES = 400, 1 << 20


class Samples(Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Samples that are read from a disk, wait for a storage, or take the processor."""

    def __init__(self, limit: str) -> None:
        self._limit = limit
        self._file = os.path.join(tempfile.gettempdir(), f"samples-{os.getuid()}")
        if limit == "disk" and not os.path.exists(self._file):
            with open(self._file, "wb") as file:
                file.write(os.urandom(_FILES * _FILE_BYTES))

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.full((_WIDTH,), float(index % 7))
        if self._limit == "latency":
            time.sleep(0.006)
        elif self._limit == "disk":
            with open(self._file, "rb") as file:
                begin = index % _FILES * _FILE_BYTES
                os.posix_fadvise(file.fileno(), begin, _FILE_BYTES, os.POSIX_FADV_DONTNEED)  # as of data beyond memory
                sample += sum(os.pread(file.fileno(), _FILE_BYTES, begin)[:100])
        else:
            for _ in range(60):
                sample = torch.roll(sample, 1).sin() + sample.sort().values.mean()
        return sample


def make_model(_limit: str) -> torch.nn.Module:
    """Return a model."""
    return torch.nn.Sequential(torch.nn.Linear(_WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer."""
    return torch.optim.SGD(model.parameters(), lr=1e-5)


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, device: object = None
) -> torch.Tensor:
    """Make one step."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def get_workload() -> object:
    """Return these parts as loadtune wants them."""
    from loadtune import Workload

    limit = os.environ["LIMIT"]
    return Workload(
        name=limit,
        make_dataset=lambda: Samples(limit),
        make_model=lambda: make_model(limit),
        train_step=train_step,
        make_optimizer=make_optimizer,
        default_batch_size=16,
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("limit")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    model = make_model(options.limit)
    optimizer = make_optimizer(model)
    loader = DataLoader(Samples(options.limit), batch_size=16)
    began_s, samples = time.monotonic(), 0
    measured_s = began_s
    while True:
        for batch in loader:
            train_step(model, optimizer, batch)
            now_s = time.monotonic()
            if now_s - began_s < _WARM_UP_S:
                measured_s = now_s
                continue
            samples += len(batch)
            if now_s - began_s > options.seconds:
                print(f"{samples / (now_s - measured_s):.3f}", flush=True)
                os._exit(0)  # workers may be in the way


if __name__ == "__main__":
    main()
