"""Batches of the trainer: from the clips on disk to a feed of padded batches of text and spectrograms."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from autotune.tf.cache import DiskStore, Features, Load, MemoryStore, Store, cache_folder
from autotune.tf.loading_stages import in_graph, in_python
from autotune.tf.options import Cache
from autotune.workloads.tts import features
from autotune.workloads.tts.config import DataConfig
from autotune.workloads.tts.ljspeech import SYMBOLS, Clip, crop

ByIndex = Callable[[tf.Tensor], tf.Tensor]
"""Function from the number of a clip to its sound or its log-mel spectrogram, in the graph."""


def maxima(data: DataConfig) -> dict[str, int]:
    """Return the largest lengths that `loader` gives."""
    return {"text": data.max_text_length, "mel": data.max_mel_frames}


def loader(clips: Sequence[Clip], data: DataConfig) -> Load:
    """Return the function that loads a clip by its number.

    Its features: ``text`` (symbol numbers, int32), ``text_length``, ``mel`` (frames by bands, float32),
    ``mel_length``.
    """
    with tf.device("CPU:0"):  # where the pipeline runs, also when there is a GPU
        texts, frames = _cropped(clips, data)
        spectrogram = _spectrogram(clips, data)
    text_of = in_graph("text", lambda index: texts[index])

    def load(index: tf.Tensor) -> Features:
        text = text_of(index)
        mel = spectrogram(index)[: frames[index]]
        return {
            "text": text,
            "text_length": tf.size(text),
            "mel": tf.ensure_shape(mel, [None, features.N_MELS]),
            "mel_length": tf.shape(mel)[0],
        }

    return load


def sound_maxima(data: DataConfig) -> dict[str, int]:
    """Return the largest lengths that `sound_loader` gives."""
    return {"text": data.max_text_length, "sound": features.mirrored_samples(data.max_mel_frames)}


def sound_loader(clips: Sequence[Clip], data: DataConfig) -> Load:
    """Return the function that loads a clip whose spectrogram is made elsewhere, by `mel_features`.

    Its features: ``text`` and ``text_length`` as those of `loader`, ``sound`` (16 bits, mirrored at its ends),
    ``mel_length``. All but the sound are int64: TensorFlow keeps an int32 in host memory, wherever it is put.
    """
    with tf.device("CPU:0"):
        texts, frames = _cropped(clips, data)
        sound = _sound(clips, data)

    def load(index: tf.Tensor) -> Features:
        text = tf.cast(texts[index], tf.int64)
        length = tf.cast(frames[index], tf.int64)
        return {
            "text": text,
            "text_length": tf.size(text, tf.int64),
            "sound": features.mirrored(sound(index))[: features.mirrored_samples(length)],
            "mel_length": length,
        }

    return load


def mel_features(batch: Features, _number: tf.Tensor) -> Features:
    """Return the batch with spectrograms in place of sounds: the feature work of a pipeline over two devices."""
    mel = features.log_mel_of_mirrored(batch["sound"])
    there = tf.sequence_mask(batch["mel_length"], mel.shape[1], tf.float32)
    return {
        "text": batch["text"],
        "text_length": batch["text_length"],
        "mel": mel * there[:, :, None],
        "mel_length": batch["mel_length"],
    }


def store(clips: Sequence[Clip], data: DataConfig, config_file: Path) -> Store | None:
    """Return the cache that ``data.cache`` selects: of spectrograms, or of sounds where these are made elsewhere."""
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
        **({"of": "sounds"} if data.data_gpu is not None else {}),
    }
    return DiskStore(cache_folder(depends_on, near=config_file))


def _cropped(clips: Sequence[Clip], data: DataConfig) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Return the symbols of each clip, and its frames, both as far as they are kept."""
    kept = [
        crop(
            len(clip.text),
            features.frame_count(clip.samples),
            max_text=data.max_text_length,
            max_frames=data.max_mel_frames,
        )
        for clip in clips
    ]
    texts = tf.RaggedTensor.from_row_lengths(
        np.concatenate([clip.text[:symbols] for clip, (symbols, _) in zip(clips, kept, strict=True)]).astype("int32"),
        [symbols for symbols, _ in kept],
    )
    return texts, tf.constant([frames for _, frames in kept], tf.int32)


def _spectrogram(clips: Sequence[Clip], data: DataConfig) -> ByIndex:
    if data.use_tf_native_loading:
        sound, native = _sound(clips, data), in_graph("spectrogram", features.log_mel_tf)
        return lambda index: native(sound(index))
    read, spectrogram = in_python("read", _read), in_python("spectrogram", features.log_mel)
    return lambda index: tf.numpy_function(lambda number: spectrogram(read(clips[number])), [index], tf.float32)


def _sound(clips: Sequence[Clip], data: DataConfig) -> ByIndex:
    if not data.use_tf_native_loading:
        read = in_python("read", _read)
        in_numpy = partial(tf.numpy_function, lambda number: read(clips[number]), Tout=tf.int16)
        return lambda index: tf.ensure_shape(in_numpy([index]), [None])
    paths = tf.constant([str(clip.wav) for clip in clips])
    places = tf.constant([[clip.offset_bytes, 2 * clip.samples] for clip in clips], tf.int32)

    def decode(content: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_raw(tf.strings.substr(content, place[0], place[1]), tf.int16, little_endian=True)

    native, decoded = in_graph("read", lambda path: tf.io.read_file(path)), in_graph("decode", decode)
    return lambda index: decoded(native(paths[index]), places[index])


def _read(clip: Clip) -> npt.NDArray[np.int16]:
    return np.fromfile(clip.wav, "<i2", count=clip.samples, offset=clip.offset_bytes)
