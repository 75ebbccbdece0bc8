"""Trainer for tests that takes flags: ``python flag_trainer.py --batch_size 4 --num-workers=1 [--use_xla] ...``.

It "trains" by waiting. ``--steps`` ends it after so many, with the exit status ``--status``.
"""

import argparse
import json
import os
import sys
import time

from autotune.trainee import step


def main() -> int:
    """Train, by default for ever."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--use_xla", action="store_true")
    parser.add_argument("--out_dir", default="out")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    print(json.dumps({**vars(options), "mode": os.environ.get("MODE")}), flush=True)
    done = 0
    while done != options.steps:
        time.sleep(0.001 * options.batch_size)
        step(samples=options.batch_size)
        done += 1
    return options.status


if __name__ == "__main__":
    sys.exit(main())
