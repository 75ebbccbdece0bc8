"""Lightning's search for the batch size, as its documentation has it; a script beside the trainer."""

import sys

import lightning
import torch
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader
from train import Samples, make_model, make_optimizer


class Module(lightning.LightningModule):  # type: ignore[misc]  # not installed where types are checked
    """Model and loader of the trainer."""

    def __init__(self, limit: str) -> None:
        super().__init__()
        self.batch_size = 16
        self._limit = limit
        self._model = make_model(limit)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the loader, with the batch that is tried."""
        return DataLoader(Samples(self._limit), batch_size=self.batch_size)

    def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self._model(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return make_optimizer(self._model)


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    Tuner(trainer).scale_batch_size(Module(sys.argv[1]), init_val=16)
