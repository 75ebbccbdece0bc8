"""A trainer with a YAML file read into dataclasses: a key that they do not have is an error.

``python train.py --config config.yaml`` trains with Keras's ``fit`` and a loader with worker threads, and writes
checkpoints and a log, as the config says where.
"""

import argparse
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import yaml


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


class Clips(keras.utils.PyDataset):
    """Batches, which take a while to load."""

    def __init__(self, config: Data) -> None:
        super().__init__(workers=config.num_workers, max_queue_size=2 * config.num_workers)
        self.batch_size = config.batch_size

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(0.008 + 0.0002 * self.batch_size)
        return np.ones((self.batch_size, 16)), np.zeros((self.batch_size, 1))


def main() -> None:
    """Trains until it is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    raw = yaml.safe_load(parser.parse_args().config.read_text())
    config = Config(data=Data(**raw.pop("data")), training=Training(**raw.pop("training")), **raw)
    logging.basicConfig(filename=config.training.log_file, filemode="w", level=logging.INFO)
    logging.info("training with %s", config)
    checkpoints = Path(config.training.checkpoint_dir)
    checkpoints.mkdir(parents=True, exist_ok=True)
    latest = keras.callbacks.ModelCheckpoint(
        str(checkpoints / "latest.weights.h5"), save_weights_only=True, save_freq=20
    )
    model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(config.training.learning_rate), "mse")
    model.fit(Clips(config.data), callbacks=[latest])


if __name__ == "__main__":
    main()
