"""Config of these trainers."""

import argparse
import json
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a trainer does; the defaults are a healthy one, bound by its step of about 20 ms on two cores.

    Attributes:
        batch_size: Samples in a batch.
        width: Features of a sample, and units of each layer.
        layers: Layers of the model.
        step: Kind of the step, see the trainers.
        load: Kind of loading a sample, see `pipelines.LOADERS`.
        load_ms: Time that loading takes for a sample, where the kind can take any.
        parallel: Samples that are loaded at a time, apart from the training; 0 for one by one as they are asked for.
        prefetch: Batches that are loaded ahead of the step.
        epoch_batches: Batches of an epoch; 0 for one that never ends.
        shuffle: Samples in the buffer that shuffles them; 0 for none.
        beside: What the loop does besides steps, see `besides.BESIDES`; empty for nothing.
        every: Steps between two times of that.
        beside_ms: Time that it takes, where the kind can take any.
        amount: How much of it is done, in a unit of its kind.
        jitter: Part of the steps' time that is left to chance: healthy noise.
    """

    batch_size: int = 256
    width: int = 256
    layers: int = 6
    step: str = "graph"
    load: str = "memory"
    load_ms: float = 0.0
    parallel: int = 1
    prefetch: int = 2
    epoch_batches: int = 0
    shuffle: int = 0
    beside: str = ""
    every: int = 1
    beside_ms: float = 0.0
    amount: int = 1
    jitter: float = 0.0


def read_recipe() -> Recipe:
    """Read the config that the command line names; keys that are not of a recipe are left out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    values = json.loads(parser.parse_args().config.read_text())
    known = {field.name for field in fields(Recipe)}
    return Recipe(**{key: value for key, value in values.items() if key in known})
