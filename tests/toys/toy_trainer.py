"""Trainer for tests: ``python toy_trainer.py <config>`` "trains" by waiting, and reports its steps.

A step costs 8 ms and 0.4 ms for each sample, twice that with one worker; so larger batches and a second worker pay.
``mood`` in the config makes it a bad trainer of the named kind; a batch of ``breaks_at`` trains well until its first
checkpoint.
"""

import os
import signal
import sys
import time

import yaml

from autotune.trainee import epoch_end, mark, step


def _bad(mood: str) -> None:
    if mood == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif mood == "sleeps for ever":
        time.sleep(1e6)
    elif mood == "forks away":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            time.sleep(1e6)
    elif mood == "prints 100 MB":
        for _ in range(1000):
            print("x" * 100_000)
    elif mood == "writes checkpoints":
        os.makedirs("checkpoints", exist_ok=True)
        with open("checkpoints/last.ckpt", "wb") as file:
            file.write(os.urandom(100))
    elif mood == "ends at once":
        sys.exit(0)
    elif mood == "crashes":
        raise ValueError("there is no such layer")
    elif mood == "writes no step":
        while True:
            time.sleep(0.01)


def main() -> None:
    """Train for ever."""
    with open(sys.argv[1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    _bad(config.get("mood", ""))
    batch_size, workers = config["data"]["batch_size"], config["data"]["num_workers"]
    if batch_size == config.get("crashes_at"):
        _bad("crashes")
    os.makedirs(config["out"]["log_dir"], exist_ok=True)
    duration_s = (0.008 + 0.0004 * batch_size) * (2 if workers == 1 else 1)
    if config.get("dull"):
        duration_s = 0.002 * batch_size
    made, due_s = 0, time.monotonic()
    while True:
        due_s += duration_s  # what is lost by waking up late does not add up to a difference between configs
        time.sleep(max(0.0, due_s - time.monotonic()))
        made += 1
        step(samples=batch_size, wait_s=duration_s / 2, loss=1.0 + 1.0 / made)
        if made % 50 == 0:
            epoch_end()
        if made == 60:
            mark("eval", duration_s=0.0)
        if made == 80:
            if batch_size == config.get("breaks_at"):
                raise OSError(28, "No space left on device")
            mark("checkpoint", duration_s=0.0)


if __name__ == "__main__":
    main()
