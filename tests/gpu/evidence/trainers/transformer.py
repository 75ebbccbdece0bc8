"""A small float32 transformer language model on random tokens."""

import sys

import device
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training = yaml.safe_load(open(sys.argv[1]))["training"]
WIDTH, LAYERS, LENGTH, HEADS = (32, 1, 16, 2) if device.IS_FAKE else (512, 6, 256, 8)
SAMPLE_S = 0.0015  # of the fake GPU, in float32


def main():
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = training["tf32"]
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(1000, WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, 1000),
    ).to(device.NAME)
    if training["compile"]:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, 1000, (8192, LENGTH + 1))
    loader = DataLoader(TensorDataset(tokens), batch_size=training["batch_size"], shuffle=True, drop_last=True)
    pace = device.Pace(float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
    for epoch in range(training["epochs"]):
        for (batch,) in loader:
            batch = batch.to(device.NAME)
            with torch.autocast(device.NAME, dtype=torch.bfloat16, enabled=training["bf16"] and not device.IS_FAKE):
                logits = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(logits.reshape(-1, 1000), batch[:, 1:].reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            faster = 0.45 if training["bf16"] else 0.65 if training["tf32"] else 1.0
            device.kernels(SAMPLE_S * len(batch) * faster)
            if pace.is_over(len(batch)):
                return
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
