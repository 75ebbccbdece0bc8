"""Training as fournex wants it: its variables for the loader, its events, and an end; a script beside the trainer."""

import os
import sys

import fournex
from fournex.step_context import step_context
from torch.utils.data import DataLoader
from train import Samples, make_model, make_optimizer, train_step


def main() -> None:
    """Train for as many steps as fournex wants; a step begins with the wait for its batch."""
    limit = sys.argv[1]
    workers = int(os.environ.get("FRX_NUM_WORKERS", "0"))
    ahead = {"prefetch_factor": int(os.environ["FRX_PREFETCH_FACTOR"]), "persistent_workers": True} if workers else {}
    pinned = os.environ.get("FRX_PIN_MEMORY") == "true"
    fournex.init(job_name=limit)
    model = make_model(limit)
    optimizer = make_optimizer(model)
    batches = iter(DataLoader(Samples(limit), batch_size=16, num_workers=workers, pin_memory=pinned, **ahead))
    for step in range(int(os.environ["FRX_TUNE_MAX_STEPS"])):
        with step_context(step, model=model):
            train_step(model, optimizer, next(batches))


if __name__ == "__main__":
    main()
