"""A training that takes flags: python train.py --batch-size 16"""

import argparse
import time

from autotune.trainee import step

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=16)
parser.add_argument("--num-workers", type=int, default=1)
parser.add_argument("--use-xla", action="store_true")
options = parser.parse_args()

while True:
    load_s, step_s = 0.0008 * options.batch_size / options.num_workers, 0.004
    time.sleep(max(load_s, step_s))  # a loader and a step that share nothing
    step(samples=options.batch_size)
