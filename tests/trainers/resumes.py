"""A trainer that goes on from the newest checkpoint it finds, and is done at once if that is the last one."""

import sys
import time
from pathlib import Path

import yaml

from autotune.trainee import step


def main() -> None:
    """Trains from where it was to the last step."""
    with open(sys.argv[1], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    folder = Path(config["checkpoint_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(path.stem) for path in folder.glob("*.ckpt")), default=0)
    if last >= config["max_steps"]:
        print("Training is complete; nothing to do.")
        return
    for number in range(last + 1, config["max_steps"] + 1):
        time.sleep(0.008 + 0.0002 * config["batch_size"])
        step(samples=config["batch_size"])
        if number % 50 == 0:
            (folder / f"{number}.ckpt").write_text("weights")


if __name__ == "__main__":
    main()
