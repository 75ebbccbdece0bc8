"""Loops over PyTorch that train for ever in the style that their config says.

A script for any interpreter that has PyTorch: ``torch_trainer.py CONFIG.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WIDTH = 384
Loop = Callable[[dict[str, Any]], None]


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows, each of which takes a time to load."""

    def __init__(self, load_s: float) -> None:
        self._load_s = load_s
        self._rows = torch.randn(64, WIDTH)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._load_s)
        return self._rows[index % 64]


class Net(torch.nn.Module):
    """Layers of the same width."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def loader(config: dict[str, Any]) -> Any:
    """Return the batches of a pass."""
    return torch.utils.data.DataLoader(Rows(config["load_s"]), batch_size=config["batch_size"], shuffle=True)


def error_of(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch."""
    return torch.nn.functional.mse_loss(net(x), torch.ones_like(x))


def plain(config: dict[str, Any]) -> None:
    """Train in a plain loop."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for x in loader(config):
        optimizer.zero_grad()
        error_of(net, x).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def profiled(config: dict[str, Any]) -> None:
    """Train with PyTorch's profiler."""
    with torch.profiler.profile():
        plain(config)


def accumulated(config: dict[str, Any]) -> None:
    """Train on four batches a step."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for number, x in enumerate(loader(config), start=1):
        (error_of(net, x) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def adversarial(config: dict[str, Any]) -> None:
    """Train two models against each other, each with an optimizer of its own."""
    made, judge = Net(3), Net(3)
    made_by, judged_by = torch.optim.Adam(made.parameters()), torch.optim.Adam(judge.parameters())
    for x in loader(config):
        judged_by.zero_grad()
        with torch.no_grad():
            fake = made(torch.randn_like(x))
        (judge(x).mean() - judge(fake).mean()).backward()
        judged_by.step()
        made_by.zero_grad()
        judge(made(torch.randn_like(x))).mean().backward()
        made_by.step()


def closure(config: dict[str, Any]) -> None:
    """Give the optimizer a function that makes both passes."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for x in loader(config):

        def both_passes(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = error_of(net, x)
            loss.backward()
            return loss

        optimizer.step(both_passes)


def checkpointed(config: dict[str, Any]) -> None:
    """Compute the activations again in the backward pass."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for x in loader(config):
        outputs = x.requires_grad_()
        for layer in net.layers:
            outputs = torch.utils.checkpoint.checkpoint(layer, outputs, use_reentrant=True)
        optimizer.zero_grad()
        outputs.square().mean().backward()
        optimizer.step()


def own_batches(config: dict[str, Any]) -> None:
    """Train on batches that come from no loader."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        x = torch.randn(config["batch_size"], WIDTH)
        optimizer.zero_grad()
        error_of(net, x).backward()
        optimizer.step()


def validated(config: dict[str, Any]) -> None:
    """Train in short passes with a validation and a checkpoint after each."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        for number, x in enumerate(loader(config)):
            optimizer.zero_grad()
            error_of(net, x).backward()
            optimizer.step()
            if number == 20:
                break
        with torch.no_grad():
            for number, x in enumerate(loader(config)):
                net(x)
                if number == 20:
                    break
        torch.save(net.state_dict(), Path(config["out_dir"]) / "net.pt")


STYLES: dict[str, Loop] = {
    each.__name__: each
    for each in (plain, profiled, accumulated, adversarial, closure, checkpointed, own_batches, validated)
}


def main() -> None:
    """Train in the style of the config."""
    config = json.loads(Path(sys.argv[1]).read_text())
    Path(config["out_dir"]).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    while True:
        STYLES[config["style"]](config)


if __name__ == "__main__":
    main()
