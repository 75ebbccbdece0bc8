"""Texts of the clips: from what the listing says to symbol numbers, as the config selects."""

from collections.abc import Sequence
from pathlib import Path

from autotune.tf.cache_home import cache_home
from autotune.tf.text import preparation
from autotune.tf.text.token_cache import TokenCache
from autotune.tf.text.worker_processes import TextWorkerError
from autotune.workloads.tts.config import TrainerConfig
from autotune.workloads.tts.english import encode_spoken
from autotune.workloads.tts.input_error import InputError
from autotune.workloads.tts.ljspeech import encode


def prepare_texts(config: TrainerConfig, config_file: Path, lines: Sequence[str]) -> list[preparation.Tokens]:
    """Return the symbol numbers of each line.

    Raises:
        InputError: A worker process failed.
    """
    prepare_line = encode_spoken if config.data.normalize_text else encode
    cache = TokenCache(cache_home(near=config_file), prepare_line) if config.data.text_cache else None
    try:
        return preparation.prepare(lines, prepare_line, config.text_options(), cache=cache)
    except TextWorkerError as error:
        raise InputError(
            str(error),
            where="data.text_workers",
            remedy="fewer need less memory; 0 prepares texts in the trainer itself",
        ) from error
