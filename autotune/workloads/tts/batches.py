"""Batches of the trainer: from the clips on disk to a feed of padded batches of text and spectrograms."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from autotune.tf.cache import DiskStore, Features, Load, MemoryStore, Store, cache_folder
from autotune.tf.options import Cache
from autotune.workloads.tts import features
from autotune.workloads.tts.config import DataConfig
from autotune.workloads.tts.ljspeech import SYMBOLS, Clip, crop

Spectrogram = Callable[[tf.Tensor], tf.Tensor]
"""Function from the number of a clip to its log-mel spectrogram, in the graph."""


def maxima(data: DataConfig) -> dict[str, int]:
    """Return the largest lengths that `loader` gives."""
    return {"text": data.max_text_length, "mel": data.max_mel_frames}


def loader(clips: Sequence[Clip], data: DataConfig) -> Load:
    """Return the function that loads a clip by its number.

    Its features: ``text`` (symbol numbers, int32), ``text_length``, ``mel`` (frames by bands, float32),
    ``mel_length``.
    """
    kept = [
        crop(
            len(clip.text),
            features.frame_count(clip.samples),
            max_text=data.max_text_length,
            max_frames=data.max_mel_frames,
        )
        for clip in clips
    ]
    with tf.device("CPU:0"):  # where the pipeline runs, also when there is a GPU
        texts = tf.RaggedTensor.from_row_lengths(
            np.concatenate([clip.text[:symbols] for clip, (symbols, _) in zip(clips, kept, strict=True)]).astype(
                "int32"
            ),
            [symbols for symbols, _ in kept],
        )
        frames = tf.constant([frames for _, frames in kept], tf.int32)
        spectrogram = _native(clips) if data.use_tf_native_loading else _in_numpy(clips)

    def load(index: tf.Tensor) -> Features:
        text = texts[index]
        mel = spectrogram(index)[: frames[index]]
        return {
            "text": text,
            "text_length": tf.size(text),
            "mel": tf.ensure_shape(mel, [None, features.N_MELS]),
            "mel_length": tf.shape(mel)[0],
        }

    return load


def store(clips: Sequence[Clip], data: DataConfig, config_file: Path) -> Store | None:
    """Return the feature cache that ``data.cache`` selects."""
    if data.cache is Cache.NONE:
        return None
    if data.cache is Cache.MEMORY:
        return MemoryStore()
    depends_on = {
        "clips": [[str(clip.wav.resolve()), clip.size_bytes, clip.mtime_ns, clip.text] for clip in clips],
        "symbols": SYMBOLS,
        "features": features.PARAMETERS,
        "native": data.use_tf_native_loading,
        "maxima": maxima(data),
    }
    return DiskStore(cache_folder(depends_on, near=config_file))


def _native(clips: Sequence[Clip]) -> Spectrogram:
    paths = tf.constant([str(clip.wav) for clip in clips])
    offsets = tf.constant([clip.offset_bytes for clip in clips], tf.int32)
    sizes = tf.constant([2 * clip.samples for clip in clips], tf.int32)

    def spectrogram(index: tf.Tensor) -> tf.Tensor:
        data = tf.strings.substr(tf.io.read_file(paths[index]), offsets[index], sizes[index])
        return features.log_mel_tf(tf.io.decode_raw(data, tf.int16, little_endian=True))

    return spectrogram


def _in_numpy(clips: Sequence[Clip]) -> Spectrogram:
    def compute(index: np.int64) -> npt.NDArray[np.float32]:
        clip = clips[int(index)]
        return features.log_mel(np.fromfile(clip.wav, "<i2", count=clip.samples, offset=clip.offset_bytes))

    return lambda index: tf.numpy_function(compute, [index], tf.float32)
