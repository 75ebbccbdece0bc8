"""A small PyTorch training with a DataLoader and torch.compile, which generates code while it runs."""

import sys

import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

with open(sys.argv[1]) as file:
    data = yaml.safe_load(file)["data"]
torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
step = torch.compile(lambda batch: torch.nn.functional.mse_loss(torch.tanh(model(batch)), batch[:, :1]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = TensorDataset(torch.randn(4096, 16))
while True:
    for (batch,) in DataLoader(samples, batch_size=data["batch_size"], drop_last=True):
        loss = step(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
