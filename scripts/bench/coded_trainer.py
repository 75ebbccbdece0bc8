"""Trainer whose loading is written into its code: what `scripts.bench code` has tools tune. A script.

``python coded_trainer.py LIMIT`` trains until it is ended, or for ``--seconds``; then it prints the speed in samples
per second, the first seconds left out. For loadtune the same parts are a workload, of the limit that ``LIMIT`` names.
"""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

_WIDTH = 256
_WARM_UP_S = 4.0


class Samples(Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Samples that wait for a storage, that take the processor, or that are there."""

    def __init__(self, limit: str) -> None:
        self._limit = limit

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.full((_WIDTH,), float(index % 7))
        if self._limit == "latency":
            time.sleep(0.006)
        elif self._limit == "augmentation":
            for _ in range(60):
                sample = torch.roll(sample, 1).sin() + sample.sort().values.mean()
        return sample


def make_model(limit: str) -> torch.nn.Module:
    """Return a model, a large one where the step is the limit."""
    width = 4096 if limit == "step" else 256
    return torch.nn.Sequential(torch.nn.Linear(_WIDTH, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))


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
