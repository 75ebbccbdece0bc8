"""Search of a loader's arguments as a good engineer writes it with Optuna; a script beside the trainer."""

import json
import os
import sys
import time

import optuna
import torch
from torch.utils.data import DataLoader
from train import Samples, make_model, make_optimizer, train_step


def speed(workers: int, prefetch: int, threads: int) -> float:
    """Return the samples per second of some seconds of training."""
    torch.set_num_threads(threads)
    limit = os.environ["LIMIT"]
    model = make_model(limit)
    optimizer = make_optimizer(model)
    ahead = {"prefetch_factor": prefetch, "persistent_workers": True} if workers else {}
    begin_s, now_s, samples = 0.0, 0.0, 0
    for batch in DataLoader(Samples(limit), batch_size=16, num_workers=workers, **ahead):
        train_step(model, optimizer, batch)
        now_s = time.monotonic()
        begin_s = begin_s or now_s  # the first batch starts the workers
        samples += len(batch)
        if now_s - begin_s > 4.0:
            break
    return (samples - 16) / (now_s - begin_s)


def objective(trial: optuna.Trial) -> float:
    """Return the speed of a proposal."""
    return speed(
        trial.suggest_int("workers", 0, 8), trial.suggest_int("prefetch", 2, 8), trial.suggest_int("threads", 1, 2)
    )


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({"workers": 0, "prefetch": 2, "threads": 2})
    study.optimize(objective, timeout=float(sys.argv[1]))
    best = {**study.best_params, "persistent": True}
    print(json.dumps({"best": best, "gain": study.best_value / (study.trials[0].value or 1.0)}))
