"""Cost of two stages where there is nothing to gain: ``python -m tests.soak one-device --data FOLDER``, on one CPU.

Trains the text-to-speech model in turn, in an order that alternates, and prints ratios of speeds with their intervals:

* its plain pipeline against both stages on one device, each training a process of its own. Batches are padded to the
  same shape in both; the plain one makes spectrograms clip by clip before that, two stages those of whole batches,
  padding included.
* the same spectrograms of whole batches in a `tf.data` map against the two-stage feed, in blocks within one process:
  what the threads and the buffer cost.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

import yaml

from tests.soak_drift import ratio_interval

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "config.yaml"
WARM_UP_LINES = 3
BLOCK_STEPS = 40


def main(arguments: Sequence[str]) -> int:
    """Runs the pairs."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak one-device", description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100, help="of each process")
    parser.add_argument("--data", type=Path, required=True, help="folder laid out like LJSpeech")
    given = parser.parse_args(arguments)
    data = given.data.resolve()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            speeds = {
                two_stages: _speed(Path(folder), data, given.steps, two_stages=two_stages)
                for two_stages in _order(pair)
            }
            ratios.append(math.log(speeds[True] / speeds[False]))
            print(f"plain {speeds[False]:.1f}, two stages {speeds[True]:.1f} clips/s", flush=True)
    print("two stages over the plain pipeline: {:.3f} ({:.3f} to {:.3f})".format(*ratio_interval(ratios)))
    print("the same in a map: {:.3f} ({:.3f} to {:.3f})".format(*ratio_interval(_in_blocks(data, given.pairs))))
    return 0


def _order(pair: int) -> tuple[bool, bool]:
    return (True, False) if pair % 2 else (False, True)


def _speed(folder: Path, data: Path, steps: int, *, two_stages: bool) -> float:
    """Clips per second of one training, after its warm-up."""
    content = yaml.safe_load(CONFIG.read_text())
    content["data"].update(dataset_path=str(data), pad_to_fixed_length=True, use_tf_native_loading=True)
    content["training"].update(checkpoint_dir=str(folder / "checkpoints"), checkpoint_every_steps=0)
    if two_stages:
        content["data"].update(data_gpu=0, model_gpu=0)
        content["runtime"].update(logical_cpu_devices=1)
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "autotune.workloads.tts", "--config", "config.yaml", "--steps", str(steps)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    for file in (folder / "checkpoints").iterdir():
        file.unlink()
    speeds = [float(found) for found in re.findall(r"([0-9.]+) clips/s", done.stdout)][WARM_UP_LINES:]
    return 1.0 / fmean(1.0 / speed for speed in speeds)


def _in_blocks(data: Path, pairs: int) -> list[float]:
    """The ln ratios of the speeds of blocks of steps."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from autotune.tf import pipeline
    from autotune.tf.feed import BatchFeed, Feed
    from autotune.tf.options import BufferOptions, PipelineOptions, StepOptions
    from autotune.tf.runtime import Placement
    from autotune.tf.step import TrainStep
    from autotune.tf.two_stage import TwoStageFeed
    from autotune.workloads.tts import batches
    from autotune.workloads.tts.config import DataConfig
    from autotune.workloads.tts.ljspeech import read_clips
    from autotune.workloads.tts.model import Speech
    from autotune.workloads.tts.training import Adam, loss_of

    config = DataConfig(dataset_path=str(data), use_tf_native_loading=True, data_gpu=0, model_gpu=0)
    clips = read_clips(data)

    def read() -> tf.data.Dataset:
        return pipeline.build(
            len(clips),
            batches.sound_loader(clips, config),
            PipelineOptions(batch_size=8, one_shape=True),
            maxima=batches.sound_maxima(config),
            length_of="sound",
        )

    def feed(two_stages: bool) -> BatchFeed:
        if two_stages:
            one = Placement(data="/CPU:0", model="/CPU:0")
            return TwoStageFeed(read(), batches.mel_features, one, BufferOptions(), work="mel_length")
        return Feed(read().map(lambda batch: batches.mel_features(batch, None)).prefetch(4), work="mel_length")

    model = Speech(seed=0, compute_dtype="float32")
    adam = Adam(model.trainable_variables, learning_rate=1e-3)
    with feed(two_stages=True) as first:
        step = TrainStep(loss_of(model), model.trainable_variables, adam, StepOptions(), first.element_spec)

    def time_of(two_stages: bool) -> float:
        with feed(two_stages) as source:
            for fetched in islice(source, 10):
                step(fetched.batch)
            begun_s = time.monotonic()
            for fetched in islice(source, BLOCK_STEPS):
                step(fetched.batch)
            return time.monotonic() - begun_s

    time_of(two_stages=True)
    ratios = []
    for pair in range(2 * pairs):
        times_s = {two_stages: time_of(two_stages) for two_stages in _order(pair)}
        ratios.append(math.log(times_s[False] / times_s[True]))
    return ratios
