"""A trainer with a loader and a GPU step, for a machine whose GPUs are fake: ``python trainer.py <config>``.

It waits where a real one computes, and tells the fake driver when its kernels run (busy_writer.py). So what the driver
shows is what it did, and the intervals that it leaves are the truth for whoever measured it (busy_reader.py).

A batch is read by one of ``num_workers`` loaders, and ``prefetch_buffer_size`` of them may be ready before they are
asked for. Every `Costs.shard_batches` batches a loader has to open the next file: without batches in stock the GPU
stands still for that long, again and again. A step is one stretch of kernels on the model's GPU, a shorter one with
XLA. Where a sample has features to be computed, that is done on the data's GPU while the model trains, with
``pipeline_buffer_size`` batches ready at most; where the keys for both GPUs are null, before each step on the first
GPU.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from busy_writer import BusyWriter

from autotune.trainee import step


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things take; the section ``costs`` of the config.

    Attributes:
        load_s: A loader, for one sample.
        shard_s: A loader, to open the next file.
        shard_batches: Batches in a file.
        features_s: The data's GPU, for one sample; a part of `load_s`.
        launch_s: The model's GPU, for one step.
        kernel_s: The model's GPU, for one sample.
        xla_gain: By how many times a compiled step is shorter.
        sample_bytes: Memory of the model's GPU, for one sample.
        speeds: Of the GPUs; kernels of the second take as long as is said here, divided by the second.
    """

    load_s: float = 0.0
    shard_s: float = 0.0
    shard_batches: int = 8
    features_s: float = 0.0
    launch_s: float = 0.0
    kernel_s: float = 0.0
    xla_gain: float = 1.0
    sample_bytes: int = 16 << 20
    speeds: tuple[float, ...] = (1.0, 1.0)


class Loader:
    """When each batch is ready, worked out from when batches are asked for.

    The next batch is begun by the loader that is free first, once there is room for it: with one worker and no buffer
    that is when the batch is asked for.

    Args:
        workers: Loaders at work, at least 1.
        buffer: Batches that may be ready.
        length_s: How long a loader takes for the batch of that number.
        planned: Told when a batch will be ready, as soon as that is certain.
    """

    def __init__(
        self, workers: int, buffer: int, length_s: Callable[[int], float], planned: Callable[[float], None]
    ) -> None:
        self._ahead = buffer + workers - 1
        self._length_s = length_s
        self._planned = planned
        self._free_s = [0.0] * workers
        self._ready_s: list[float] = []

    def ready_s(self, batch: int, *, asked_s: float) -> float:
        """When the batch is ready that is asked for now; each is to be asked for once, in order."""
        while len(self._ready_s) <= batch + self._ahead:
            worker = self._free_s.index(min(self._free_s))
            self._free_s[worker] = max(self._free_s[worker], asked_s) + self._length_s(len(self._ready_s))
            self._ready_s.append(self._free_s[worker])
            self._planned(self._free_s[worker])
        return self._ready_s[batch]


def train(config: Mapping[str, Any]) -> None:
    """Trains until it is stopped."""
    data, training, costs = config["data"], config["training"], Costs(**config["costs"])
    samples = data.get("batch_size", 8)
    folder = os.environ["AUTOTUNE_FAKE_NVML_TENANTS"]
    data_gpu, model_gpu = data.get("data_gpu", 0), data.get("model_gpu", training.get("model_gpu", 0))
    assert (data_gpu is None) == (model_gpu is None), "one of two GPUs is missing"
    shares, model_gpu = data_gpu is None, model_gpu or 0
    model = BusyWriter(folder, nvml_index(model_gpu), memory_bytes=samples * costs.sample_bytes)
    features = BusyWriter(folder, nvml_index(data_gpu)) if costs.features_s and not shares else None
    features_s = samples * costs.features_s / costs.speeds[data_gpu or 0]
    read_s = samples * (costs.load_s - costs.features_s)

    def length_s(batch: int) -> float:
        opening_s = costs.shard_s if batch % costs.shard_batches == 0 else 0.0
        return read_s + (0.0 if shares else features_s) + opening_s

    def planned(ready_s: float) -> None:
        if features is not None:
            features.kernel(ready_s - features_s, ready_s)

    ahead = data.get("prefetch_buffer_size", 0) + (0 if shares else data.get("pipeline_buffer_size", 0))
    loader = Loader(data.get("num_workers", 1), ahead, length_s, planned)
    gain = costs.xla_gain if training.get("enable_xla") else 1.0
    step_s = costs.launch_s / gain + samples * costs.kernel_s / gain / costs.speeds[model_gpu]
    step_s += features_s if shares else 0.0
    batch = 0
    while True:
        asked_s = time.monotonic()
        _wait_until(loader.ready_s(batch, asked_s=asked_s))
        begin_s = time.monotonic()
        model.kernel(begin_s, begin_s + step_s)
        _wait_until(begin_s + step_s)
        step(samples=samples, wait_s=begin_s - asked_s)
        batch += 1


def nvml_index(cuda_index: int) -> int:
    """The driver's number of a GPU, which CUDA_VISIBLE_DEVICES may have given another one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return cuda_index
    entry = visible.split(",")[cuda_index].strip()
    return int(entry[4:12], 16) if entry.startswith("GPU-") else int(entry)  # scenario.py makes such UUIDs


def _wait_until(t_s: float) -> None:
    time.sleep(max(0.0, t_s - time.monotonic()))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        train(yaml.safe_load(file))
