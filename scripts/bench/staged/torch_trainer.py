"""Trainer of PyTorch with one staged cause: ``torch_trainer.py CONFIG``; ``staged`` in the config names it."""

import gc
import sys
import time
from collections.abc import Iterator

import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

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
        elif CAUSE in ("preparing", "refill"):
            for _ in range(40 if CAUSE == "preparing" else 4):
                sound = torch.fft.irfft(torch.fft.rfft(sound.repeat(8)))[:LENGTH]
        elif CAUSE == "python":
            sound = torch.tensor([value * 0.5 + (place % 3) for place, value in enumerate(sound.tolist() * 8)][:LENGTH])
        return sound, number % 10


class Shuffled(IterableDataset):  # type: ignore[misc]
    """The same in a random order: each pass begins by preparing all of them."""

    def __init__(self, sounds: Sounds) -> None:
        self.sounds = sounds

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        buffer = [self.sounds[number] for number in range(len(self.sounds))]
        yield from (buffer[place] for place in torch.randperm(len(buffer)).tolist())


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
    size = {"workers": 64, "outside": 512, "refill": 2048}.get(CAUSE, 1 << 16)
    workers = DATA["num_workers"]
    keeps = workers > 0 and CAUSE != "workers"
    sounds = Shuffled(Sounds(size)) if CAUSE == "refill" else Sounds(size)
    loader = DataLoader(sounds, DATA["batch_size"], num_workers=workers, persistent_workers=keeps)
    steps, seen = 0, torch.empty(0)
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
            elif CAUSE == "drift":
                seen = torch.cat([seen, sounds.flatten()])
                seen.std()
        if CAUSE == "outside":
            model.eval()
            with torch.no_grad():
                for sounds, _ in DataLoader(Sounds(4096), 64):
                    model(sounds)
            model.train()


if __name__ == "__main__":
    main()
