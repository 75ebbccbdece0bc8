"""A loop in plain Python, which nobody can tell steps of: python train.py config.yaml"""

import sys
import time

import yaml

with open(sys.argv[1]) as file:
    config = yaml.safe_load(file)

for _ in range(400):
    time.sleep(0.0005 * config["batch_size"])  # a batch is loaded, and trained on
