"""Program that times the training step of the shipped model in parts, on random batches.

Prints one JSON object, after a marker, on a line of its own: what `autotune.profile.step_phases` reads.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from autotune.tf.feed import accelerator
from autotune.tf.optimizer import Adam
from autotune.tf.options import Precision, StepOptions
from autotune.tf.step import Batch, TrainStep
from autotune.trainee.step_phases import time_in_turn
from autotune.workloads.tts.features import N_MELS
from autotune.workloads.tts.ljspeech import VOCABULARY
from autotune.workloads.tts.model import Speech
from autotune.workloads.tts.training import loss_of

MARKER = "autotune-step-profile "
SYMBOLS = 100  # of a sentence
FRAMES = 400  # of a sentence, about 5 s
BATCHES = 4


def main(batch_size: int, rounds: int) -> None:
    """Print the times of the step's parts.

    Args:
        batch_size: Sentences in a batch.
        rounds: How often each part is timed.
    """
    model = Speech(seed=0, compute_dtype="float32")
    dataset = _random_batches(batch_size)
    options = StepOptions(graph=True, xla=False, precision=Precision.FLOAT32)
    optimizer = Adam(model.trainable_variables, learning_rate=1e-3)
    step = TrainStep(loss_of(model), model.trainable_variables, optimizer, options, dataset.element_spec)
    iterator = iter(dataset)
    device = accelerator()
    batch = next(iterator)
    on_device = _copied(batch, device)

    def forward(batch: Batch) -> tf.Tensor:
        return model(batch["text"], batch["text_length"], tf.shape(batch["mel"])[1], batch["mel_length"])

    parts: dict[str, Callable[[], object]] = {"data": lambda: next(iterator)}
    if device is not None:
        parts["copy"] = partial(_waited, lambda: _copied(batch, device))
    functions: dict[str, Callable[[Batch], Any]] = {
        "forward": step.compiled(forward),
        "loss": step.compiled(loss_of(model)),
        "gradients": step.compiled(step.gradients),
        "update": step,
    }
    for name, function in functions.items():
        parts[name] = partial(_waited, partial(function, on_device))
    parts["step"] = partial(_waited, lambda: step(_copied(next(iterator), device)))
    document = {
        "batch_size": batch_size,
        "device": device or "CPU",
        "tensorflow": tf.__version__,
        "times_ms": {name: [round(value, 3) for value in times] for name, times in time_in_turn(parts, rounds).items()},
    }
    print(f"\n{MARKER}{json.dumps(document, separators=(',', ':'))}", flush=True)


def _waited(function: Callable[[], Any]) -> Any:
    result = function()
    tf.test.experimental.sync_devices()
    return result


def _copied(batch: Batch, device: str | None) -> Batch:
    if device is None:
        return batch
    with tf.device(device):
        return {name: tf.identity(value) for name, value in batch.items()}


def _random_batches(batch_size: int) -> tf.data.Dataset:
    random = tf.random.Generator.from_seed(0)
    shape = [BATCHES, batch_size]
    batches = {
        "text": random.uniform([*shape, SYMBOLS], 1, VOCABULARY, tf.int32),
        "text_length": tf.fill(shape, SYMBOLS),
        "mel": random.normal([*shape, FRAMES, N_MELS]),
        "mel_length": tf.fill(shape, FRAMES),
    }
    return tf.data.Dataset.from_tensor_slices(batches).repeat()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
