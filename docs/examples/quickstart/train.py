"""A small training: python train.py config.yaml"""

import itertools
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import yaml

from autotune.trainee import step

disk = threading.Semaphore(4)


def load(number):
    """One recording, from a slow disk that serves four reads at a time."""
    with disk:
        time.sleep(0.003)
    return np.random.default_rng(number).normal(size=256)


def batches(batch_size, num_workers, prefetch):
    """Endless batches; the loader's threads work ahead by `prefetch` batches."""
    ahead, numbers = deque(), itertools.count()
    with ThreadPoolExecutor(num_workers) as pool:
        while True:
            while len(ahead) <= prefetch:
                ahead.append([pool.submit(load, next(numbers)) for _ in range(batch_size)])
            yield np.stack([one.result() for one in ahead.popleft()])


def main(config):
    data, weights = config["data"], np.zeros(256)
    for batch in batches(data["batch_size"], data["num_workers"], data["prefetch"]):
        error = batch @ weights - batch[:, 0]
        weights -= config["training"]["learning_rate"] * batch.T @ error / len(batch)
        step(samples=len(batch))  # reports the step to autotune; outside autotune it does nothing


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(yaml.safe_load(file))
