"""Small trainers on libraries above PyTorch: ``torch_frameworks.py STYLE ACCUMULATED``.

Each prints what it knows of itself, and validates in between, on a dataset of its own. A script for any interpreter
that has the library.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch

EPOCHS = 2
BATCHES = 20  # of an epoch
BATCH = 8


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random rows, as the arguments of `Net`."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randn(4)
        return {"x": row, "labels": row[:1]}


class Net(torch.nn.Module):
    """Regression."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and predictions."""
        predicted = self.linear(x)
        return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}


TRAINING, VALIDATION = Rows(BATCHES * BATCH), Rows(3 * BATCH)


def transformers(accumulated: int, folder: str) -> int:
    """Train with ``transformers.Trainer``; return the steps of its optimizer."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulated,
        num_train_epochs=EPOCHS,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=TRAINING, eval_dataset=VALIDATION)
    trainer.train()
    return int(trainer.state.global_step)


def accelerate(accumulated: int, folder: str) -> int:
    """Train with ``accelerator.accumulate``; return the steps of its optimizer."""
    from accelerate import Accelerator

    accelerator, net = Accelerator(gradient_accumulation_steps=accumulated, cpu=True), Net()
    model, optimizer, training, validation = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), *(loader(data) for data in (TRAINING, VALIDATION))
    )
    steps = 0
    for _ in range(EPOCHS):
        for batch in training:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
        with torch.no_grad():
            for batch in validation:
                model(**batch)
    return steps


def lightning(accumulated: int, folder: str, *, loaders: int = 1) -> int:
    """Train with Lightning, which checks the validation first; return the steps of its optimizer."""
    import lightning as library

    class Module(library.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _index: int) -> Any:
            return sum(self.net(**part)["loss"] for part in (batch if loaders > 1 else [batch]))

        def validation_step(self, batch: Any, _index: int) -> None:
            self.net(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = library.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulated,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    training = [loader(TRAINING) for _ in range(loaders)]
    trainer.fit(Module(), training if loaders > 1 else training[0], loader(VALIDATION))
    return int(trainer.global_step)


def several_loaders(accumulated: int, folder: str) -> int:
    """Train with Lightning on two loaders at once; return the steps of its optimizer."""
    return lightning(accumulated, folder, loaders=2)


def loader(data: Rows) -> Any:
    """Return a loader of a dataset."""
    return torch.utils.data.DataLoader(data, batch_size=BATCH)


if __name__ == "__main__":
    style, accumulated = sys.argv[1], int(sys.argv[2])
    train = {each.__name__: each for each in (transformers, accelerate, lightning, several_loaders)}[style]
    with tempfile.TemporaryDirectory() as folder:
        updates = train(accumulated, folder)
    facts = {"style": style, "pid": os.getpid(), "steps": EPOCHS * BATCHES, "samples": EPOCHS * BATCHES * BATCH}
    print("\n" + json.dumps({**facts, "updates": updates}))
