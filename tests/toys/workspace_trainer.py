"""A trainer whose GPU library gets no workspace, and says anything but that: ``python workspace_trainer.py <config>``.

It holds ``memory_gib`` of the GPU's memory, trains for some seconds, and ends as ``words`` says: with that error, or
with exit status 1 and no word if there are none.
"""

import os
import sys
import time

import yaml

from autotune.trainee import step
from tests.fake_nvml.busy_writer import BusyWriter

STEPS, STEP_S = 60, 0.05  # so that memory is read once or twice, which happens once a second


def train(memory_gib: int, words: str) -> None:
    """Trains until the library fails."""
    gpu = BusyWriter(os.environ["AUTOTUNE_FAKE_NVML_TENANTS"], memory_bytes=memory_gib << 30)
    for _ in range(STEPS):
        now_s = time.monotonic()
        gpu.kernel(now_s, now_s + STEP_S / 2)
        time.sleep(STEP_S)
        step(samples=8)
    if words:
        raise RuntimeError(words)
    sys.exit(1)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    train(config["memory_gib"], config["words"])
