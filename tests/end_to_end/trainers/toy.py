"""A training that waits instead of computing: `mood` says how it misbehaves."""

import os
import signal
import sys
import time

import yaml

from autotune.trainee import step

with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)
mood, data = config["mood"], config["data"]
if mood == "hangs":
    time.sleep(1e6)
elif mood == "forks away":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        time.sleep(1e6)
elif mood == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
duration_s = (0.004 + 0.0002 * data["batch_size"]) / max(1, data["num_workers"])
while True:
    time.sleep(duration_s)
    step(samples=data["batch_size"], wait_s=duration_s / 2)
