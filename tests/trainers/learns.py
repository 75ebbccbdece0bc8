"""A trainer that really learns, by gradient descent, evaluates, and goes on from its newest checkpoint."""

import sys
import time
from pathlib import Path

import numpy as np
import yaml

from autotune import trainee


def main() -> None:
    """Train for ever; steps take as long as their batch says, whatever the machine does besides."""
    with open(sys.argv[1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    rng = np.random.default_rng(config["seed"])
    truth = np.random.default_rng(0).normal(size=(32, 1))
    weights, made = np.zeros((32, 1)), 0
    path = Path(config["checkpoint_dir"], "last.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        saved = np.load(path)
        weights, made = saved["weights"], int(saved["made"])
    batch, rate = config["batch_size"], config["learning_rate"]
    unseen = np.random.default_rng(1).normal(size=(1000, 32))
    while True:
        begun_s = time.perf_counter()
        x = rng.normal(size=(batch, 32))
        errors = x @ weights - x @ truth - rng.normal(size=(batch, 1))
        with trainee.step(samples=batch, loss=float(np.mean(errors**2))):
            weights -= rate * 2.0 * (x.T @ errors) / batch
            time.sleep(max(0.0, 0.004 + 0.00005 * batch - (time.perf_counter() - begun_s)))
        made += 1
        if made % 100 == 0:
            trainee.mark("eval", loss=float(np.mean((unseen @ (weights - truth)) ** 2)) + 1.0)
        if made % 500 == 0:
            np.savez(path, weights=weights, made=made)


if __name__ == "__main__":
    main()
