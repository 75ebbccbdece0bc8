"""Throughput of a pretended training, with noise: what the sampler is made for."""

import math
import random

import optuna
import optunahub


def throughput(trial: optuna.Trial) -> float:
    """Return samples per second."""
    batch = trial.suggest_int("batch", 8, 256, log=True)
    workers = trial.suggest_int("workers", 1, 16)
    cache = trial.suggest_categorical("cache", ["none", "memory", "disk"])
    loading = {"none": 3.0, "memory": 0.4, "disk": 1.0}[cache] / min(workers, 6)
    return 100 * batch / (8 + batch) / max(1.0, loading) * math.exp(random.gauss(0.0, 0.05))


module = optunahub.load_local_module(package="samplers/config_sampler", registry_root="./package/")
study = optuna.create_study(direction="maximize", sampler=module.ConfigSampler(seed=0))
study.optimize(throughput, n_trials=30)
print(study.best_trial.params, study.best_value)
