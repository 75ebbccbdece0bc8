"""Contrastive learning: the memory of a step grows with the square of its batch, and its time hardly does."""

import sys
import time

import device
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training = yaml.safe_load(open(sys.argv[1]))["training"]
STEP_S = 0.05  # that a step takes whatever its batch, on the host
# A step holds a few tensors of batch x batch x features numbers. Three of a batch of 64 take 40 % of the GPU, of one of
# 128 not even two fit.
TENSORS, NUMBER_BYTES = 3, 4
FEATURES = int(0.40 * device.total_bytes() / (TENSORS * NUMBER_BYTES * 64**2))


def main():
    torch.manual_seed(0)
    features = 16 if device.IS_FAKE else FEATURES
    model = nn.Linear(4, features).to(device.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(65_536, 4)
    loader = DataLoader(TensorDataset(samples), batch_size=training["batch_size"], shuffle=True, drop_last=True)
    for _ in range(training["epochs"]):
        for (batch,) in loader:
            size = len(batch)
            device.holds(TENSORS * NUMBER_BYTES * FEATURES * size**2)
            points = model(batch.to(device.NAME))
            loss = ((points[:, None] - points[None]) ** 2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            device.kernels(0.01)
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
