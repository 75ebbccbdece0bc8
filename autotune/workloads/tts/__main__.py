"""Command line of the trainer: ``python -m autotune.workloads.tts --config configs/config.yaml``."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from autotune.tf import text
from autotune.tf.options import TextOptions, cache_home
from autotune.workloads.tts.config import TrainerConfig, read_config
from autotune.workloads.tts.ljspeech import InputError, encode, read_clips


def main() -> int:
    """Train; return the exit status, 2 for unusable config or data."""
    program = "python -m autotune.workloads.tts"
    parser = argparse.ArgumentParser(prog=program, description="Trains a text-to-speech model.")
    parser.add_argument("--config", type=Path, required=True, help="config file")
    parser.add_argument("--steps", type=_count, help="stop after this number of steps in total")
    parser.add_argument("--epochs", type=_count, help="stop after this number of epochs, instead of training.epochs")
    arguments = parser.parse_args()
    try:
        config = read_config(arguments.config)
        tokens_of = partial(prepare_texts, config, arguments.config)
        clips = read_clips(Path(config.data.dataset_path), tokens_of)
        # Errors above are reported before the slow import of TensorFlow.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        train = _load_training()
        train(config, arguments.config, clips, steps=arguments.steps, epochs=arguments.epochs)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def prepare_texts(config: TrainerConfig, config_file: Path, lines: Sequence[str]) -> list[text.Tokens]:
    """Return the symbol numbers of each line."""
    cache = text.TokenCache(cache_home(near=config_file), encode) if config.data.text_cache else None
    try:
        return text.prepare(lines, encode, TextOptions(workers=config.data.text_workers), cache=cache)
    except text.TextWorkerError as error:
        remedy = "reduce it to use less memory; 0 prepares texts in the trainer"
        raise InputError(str(error), where="data.text_workers", remedy=remedy) from error


def _load_training() -> Callable[..., None]:
    try:
        from autotune.workloads.tts.training import train
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        remedy = "install the extra in the clone that autotune was installed from: pip install '.[tensorflow]'"
        raise InputError("is not installed, but this trainer needs it", where="tensorflow", remedy=remedy) from error
    return train


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {word}")
    return number


if __name__ == "__main__":
    sys.exit(main())
