"""Trainer of the shipped text-to-speech model to a held-out loss: ``python speech.py CONFIG --until LOSS``.

Model, data and step are those of ``python -m autotune.workloads.tts``. The last clips of the corpus are held out; the
time is that of fetching and stepping, without the looks at their loss.
"""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import tensorflow as tf

from autotune.tf import pipeline
from autotune.tf.feed import Feed
from autotune.tf.optimizer import Adam
from autotune.tf.step import TrainStep
from autotune.workloads.tts import batches
from autotune.workloads.tts.config import read_config
from autotune.workloads.tts.ljspeech import read_clips
from autotune.workloads.tts.model import Speech
from autotune.workloads.tts.texts import prepare_texts
from autotune.workloads.tts.training import loss_of

_HELD_OUT, _LOOKED_AT_ONCE = 64, 16
_LOOK_EVERY_S = 2.0


def main() -> None:
    """Train; print the time to the held-out loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--until", type=float, required=True, help="held-out loss at which training ends")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of training after which it is given up")
    arguments = parser.parse_args()
    config = read_config(arguments.config)
    tokens_of = partial(prepare_texts, config, arguments.config)
    clips = read_clips(Path(config.data.dataset_path), tokens_of, written=config.data.normalize_text)
    clips, held_out = clips[:-_HELD_OUT], clips[-_HELD_OUT:]
    model = Speech(seed=config.training.seed, compute_dtype=config.training.mixed_precision.compute_dtype)
    optimizer = Adam(model.trainable_variables, learning_rate=config.training.learning_rate)
    options = config.pipeline_options(seed=config.training.seed)
    dataset = pipeline.build(
        len(clips), batches.loader(clips, config.data), options, maxima=batches.maxima(config.data), length_of="mel"
    )
    looked_at = replace(options, batch_size=_LOOKED_AT_ONCE)
    unseen = pipeline.build(
        _HELD_OUT, batches.loader(held_out, config.data), looked_at, maxima=batches.maxima(config.data), length_of="mel"
    )
    unseen = [*unseen.take(_HELD_OUT // _LOOKED_AT_ONCE)]
    loss = loss_of(model)
    trained_s, look_s = 0.0, 0.0
    with Feed(dataset, work="mel_length") as feed:
        step = TrainStep(loss, model.trainable_variables, optimizer, config.step_options(), feed.element_spec)
        float(step(next(feed).batch))  # traces
        while True:
            begun_s = time.perf_counter()
            float(step(next(feed).batch))
            trained_s += time.perf_counter() - begun_s
            if trained_s < look_s:
                continue
            look_s = trained_s + _LOOK_EVERY_S
            mean = float(tf.reduce_mean([loss(batch) for batch in unseen]))
            print(f"{trained_s:.1f} s: {mean:.4f}", flush=True)
            if mean <= arguments.until or trained_s > arguments.limit:
                break
    print(json.dumps({"trained_s": trained_s, "loss": mean}))


if __name__ == "__main__":
    main()
