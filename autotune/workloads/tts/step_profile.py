"""Program that times the training step of the shipped model in parts, on random batches.

Prints one JSON object, after a marker, on a line of its own: what `autotune.diagnose.step_profile` reads.
"""

import json
import sys

import tensorflow as tf

from autotune.tf.options import Precision, StepOptions
from autotune.tf.step import Adam, TrainStep
from autotune.trainee.step_profile import Timing
from autotune.trainee.step_profile_tensorflow import copied, parts_of_train_step
from autotune.workloads.tts.features import N_MELS
from autotune.workloads.tts.ljspeech import VOCABULARY
from autotune.workloads.tts.model import Speech
from autotune.workloads.tts.training import forward_of, loss_of

MARKER = "autotune-step-profile "
SYMBOLS = 100  # of a sentence
FRAMES = 400  # of a sentence, about 5 s
BATCHES = 4


def main(batch_size: int, rounds: int) -> None:
    """Print the times of the step's parts.

    Args:
        rounds: How often each part is timed.
    """
    model = Speech(seed=0, compute_dtype="float32")
    dataset = _random_batches(batch_size)
    options = StepOptions(graph=True, xla=False, precision=Precision.FLOAT32)
    optimizer = Adam(model.trainable_variables, learning_rate=1e-3)
    step = TrainStep(
        loss_of(model),
        model.trainable_variables,
        optimizer,
        options,
        dataset.element_spec,
        forward=forward_of(model),
    )
    iterator = iter(dataset)
    parts = parts_of_train_step(
        step, [next(iterator) for _ in range(BATCHES)], "the shipped text-to-speech model, random batches"
    )
    device = None if parts.device == "CPU" else parts.device
    parts.functions = {
        "data": lambda _batch: next(iterator),
        **parts.functions,
        "step": lambda _batch: step(copied(next(iterator), device)),
    }
    timing = Timing(parts)
    timing.block(rounds=rounds, fewest=rounds, limit_s=0.0)
    print(f"\n{MARKER}{json.dumps(timing.result(), separators=(',', ':'))}", flush=True)


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
