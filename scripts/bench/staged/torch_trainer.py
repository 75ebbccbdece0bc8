"""Trainer of PyTorch with one staged cause: ``torch_trainer.py CONFIG``; ``staged`` in the config names it."""

import gc
import sys
import time

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, Dataset

with open(sys.argv[1]) as _file:
    CONFIG = yaml.safe_load(_file)
CAUSE, DATA, WIDTH = CONFIG["staged"], CONFIG["data"], CONFIG["model"]["width"]
LENGTH = 256


class Sounds(Dataset):  # type: ignore[misc]
    """Short sounds, made as they are asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        sound = torch.linspace(0, number % 7, LENGTH)
        if CAUSE == "reading" or CAUSE == "no_overlap":
            time.sleep(0.004 if CAUSE == "reading" else 0.0008)
        elif CAUSE == "preparing":
            for _ in range(40):
                sound = torch.fft.irfft(torch.fft.rfft(sound.repeat(8)))[:LENGTH]
        elif CAUSE == "python":
            sound = torch.tensor([value * 0.5 + (place % 3) for place, value in enumerate(sound.tolist() * 8)][:LENGTH])
        return sound, number % 10


class Deep(nn.Module):  # type: ignore[misc]
    """Many small layers, or few large ones."""

    def __init__(self) -> None:
        super().__init__()
        small = CAUSE == "launches"
        width, depth = (8, 150) if small else (WIDTH, 3)
        self.first = nn.Linear(LENGTH, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 10)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        hidden = self.first(sound)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return self.last(hidden)


def main() -> None:
    """Train for ever."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loss_of = Deep(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    call = torch.compile(model, backend="aot_eager", dynamic=False) if CAUSE == "compiling" else model
    size = 64 if CAUSE == "workers" else 512 if CAUSE == "outside" else 1 << 16
    workers = DATA["num_workers"]
    keeps = workers > 0 and CAUSE != "workers"
    loader = DataLoader(Sounds(size), DATA["batch_size"], num_workers=workers, persistent_workers=keeps)
    steps = 0
    while True:
        for sounds, labels in loader:
            if CAUSE == "compiling" and steps % 5 == 0:
                sounds, labels = sounds[: 1 + steps // 5 % len(sounds)], labels[: 1 + steps // 5 % len(labels)]
                torch._dynamo.reset()
            optimizer.zero_grad()
            loss_of(call(sounds), labels).backward()
            optimizer.step()
            steps += 1
            if CAUSE == "stalls" and steps % 40 == 0:
                kept = [[number] for number in range(600_000)]
                gc.collect()
                del kept
        if CAUSE == "outside":
            model.eval()
            with torch.no_grad():
                for sounds, _ in DataLoader(Sounds(4096), 64):
                    model(sounds)
            model.train()


if __name__ == "__main__":
    main()
