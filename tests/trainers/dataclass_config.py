"""A trainer with a YAML file read into dataclasses: a key that they do not have is an error.

``python train.py --config config.yaml`` writes a checkpoint and a log, as the config says where.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.trainee import step


@dataclass
class Data:
    """The loader."""

    batch_size: int
    num_workers: int


@dataclass
class Training:
    """The optimizer, and where things go."""

    learning_rate: float
    checkpoint_dir: str
    log_file: str


@dataclass
class Config:
    """The whole file."""

    data: Data
    training: Training


def main() -> None:
    """Trains until it is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    raw = yaml.safe_load(parser.parse_args().config.read_text())
    config = Config(data=Data(**raw.pop("data")), training=Training(**raw.pop("training")), **raw)
    assert isinstance(config.training.learning_rate, float)
    checkpoints = Path(config.training.checkpoint_dir)
    checkpoints.mkdir(parents=True, exist_ok=True)
    step_s = (0.008 + 0.0002 * config.data.batch_size) / min(config.data.num_workers, 2)
    for number in range(1, 100_000):
        time.sleep(step_s)
        step(samples=config.data.batch_size, loss=2.0 / number)
        if number % 20 == 0:
            (checkpoints / "latest.ckpt").write_text(str(number))
            Path(config.training.log_file).write_text(f"step {number}\n")


if __name__ == "__main__":
    main()
