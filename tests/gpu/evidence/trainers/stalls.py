"""A trainer with two faults: each step reads numbers back from the GPU, and every 40 steps it pauses for 0.5 s."""

import sys
import time

import device
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training = yaml.safe_load(open(sys.argv[1]))["training"]
WIDTH, LAYERS = (16, 4) if device.IS_FAKE else (512, 24)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(4096, WIDTH)
    loader = DataLoader(TensorDataset(samples), batch_size=training["batch_size"], shuffle=True, drop_last=True)
    steps = 0
    for _ in range(training["epochs"]):
        for (batch,) in loader:
            batch = batch.to(device.NAME)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms = [parameter.grad.norm().item() for parameter in model.parameters()]  # fault: reads
            optimizer.step()
            device.kernels(0.008)
            steps += 1
            if steps % 40 == 0:
                print(f"step {steps}: norm of the gradient {sum(norms):.3f}", flush=True)
                time.sleep(0.5)  # fault: pause


if __name__ == "__main__":
    main()
