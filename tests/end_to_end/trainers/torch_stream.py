"""A stream that does not know of workers: each of them repeats all of it."""

import sys
import time

import torch
import yaml
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """Numbers, each after a wait."""

    def __iter__(self):
        for number in range(4000):
            time.sleep(0.002)
            yield torch.full((32,), number / 4000.0), torch.tensor(float(number % 7))


with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)["data"]
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in DataLoader(Stream(), batch_size=config["batch_size"], num_workers=config["num_workers"]):
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
