"""Batches of the trainer: from clips on disk to padded batches of text and log-mel spectrograms."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from autotune.tf.options import Cache
from autotune.tf.pipeline import DiskStore, Features, Load, MemoryStore, Store, cache_folder, in_graph, in_python
from autotune.workloads.tts.config import DataConfig
from autotune.workloads.tts.ljspeech import SAMPLE_RATE, SYMBOLS, Clip, crop

ByIndex = Callable[[tf.Tensor], tf.Tensor]
"""Graph function from a clip's number to its sound or log-mel spectrogram."""


def maxima(data: DataConfig) -> dict[str, int]:
    """Return the largest lengths in features of `loader`."""
    return {"text": data.max_text_length, "mel": data.max_mel_frames}


def loader(clips: Sequence[Clip], data: DataConfig) -> Load:
    """Return the function that loads a clip by number.

    Features: ``text`` (symbol numbers, int32), ``text_length``, ``mel`` (frames, bands; float32), ``mel_length``.
    """
    with tf.device("CPU:0"):  # where the pipeline runs, even with a GPU
        texts, frames = _cropped(clips, data)
        spectrogram = _spectrogram(clips, data)
    text_of = in_graph("text", lambda index: texts[index])

    def load(index: tf.Tensor) -> Features:
        text = text_of(index)
        mel = spectrogram(index)[: frames[index]]
        return {
            "text": text,
            "text_length": tf.size(text),
            "mel": tf.ensure_shape(mel, [None, N_MELS]),
            "mel_length": tf.shape(mel)[0],
        }

    return load


def sound_maxima(data: DataConfig) -> dict[str, int]:
    """Return the largest lengths in features of `sound_loader`."""
    return {"text": data.max_text_length, "sound": mirrored_samples(data.max_mel_frames)}


def sound_loader(clips: Sequence[Clip], data: DataConfig) -> Load:
    """Return the function that loads a clip for `mel_features`, which computes its spectrogram.

    Features: ``sound`` (16 bits, mirrored at its ends), and those of `loader` in int64, because TensorFlow keeps int32
    in host memory.
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
            "sound": mirrored(sound(index))[: mirrored_samples(length)],
            "mel_length": length,
        }

    return load


def mel_features(batch: Features, _number: tf.Tensor) -> Features:
    """Replace sounds by spectrograms: the feature stage of a pipeline over two devices."""
    mel = log_mel_of_mirrored(batch["sound"])
    mask = tf.sequence_mask(batch["mel_length"], mel.shape[1], tf.float32)
    others = {name: value for name, value in batch.items() if name != "sound"}
    return {**others, "mel": mel * mask[:, :, None]}


def store(clips: Sequence[Clip], data: DataConfig, config_file: Path) -> Store | None:
    """Return the cache of spectrograms, or of sounds with two devices."""
    if data.cache is Cache.NONE:
        return None
    if data.cache is Cache.MEMORY:
        return MemoryStore()
    depends_on = {
        "clips": [[str(clip.wav.resolve()), clip.size_bytes, clip.mtime_ns, clip.text] for clip in clips],
        "symbols": SYMBOLS,
        "features": SPECTROGRAM,
        "native": data.use_tf_native_loading,
        "maxima": maxima(data),
        **({"of": "sounds"} if data.data_gpu is not None else {}),
    }
    return DiskStore(cache_folder(depends_on, near=config_file))


def _cropped(clips: Sequence[Clip], data: DataConfig) -> tuple[tf.RaggedTensor, tf.Tensor]:
    limits = {"max_text": data.max_text_length, "max_frames": data.max_mel_frames}
    kept = [crop(len(clip.text), frame_count(clip.samples), **limits) for clip in clips]
    texts = tf.RaggedTensor.from_row_lengths(
        np.concatenate([clip.text[:symbols] for clip, (symbols, _) in zip(clips, kept, strict=True)]).astype("int32"),
        [symbols for symbols, _ in kept],
    )
    return texts, tf.constant([frames for _, frames in kept], tf.int32)


def _spectrogram(clips: Sequence[Clip], data: DataConfig) -> ByIndex:
    if data.use_tf_native_loading:
        sound, native = _sound(clips, data), in_graph("spectrogram", log_mel_tf)
        return lambda index: native(sound(index))
    read, spectrogram = in_python("read", _read), in_python("spectrogram", log_mel)
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


# Log-mel spectrograms in NumPy and TensorFlow, equal within float32 rounding, as in Tacotron 2 (Shen et al. 2018):
# frames of 1024 samples every 256, centred, ends mirrored, Hann window, magnitudes, 80 triangular filters of equal area
# from 0 to 8000 Hz on Slaney's mel scale, natural logarithm of at least 1e-5.


N_FFT = 1024
HOP = 256
N_MELS = 80
TOP_HZ = 8000.0
FLOOR = 1e-5

SPECTROGRAM = {
    "sample_rate": SAMPLE_RATE,
    "n_fft": N_FFT,
    "hop": HOP,
    "n_mels": N_MELS,
    "top_hz": TOP_HZ,
    "floor": FLOOR,
}
"""Parameters that determine a spectrogram."""

MIN_SAMPLES = N_FFT // 2 + 1  # mirroring needs more than half a frame


def frame_count(samples: int) -> int:
    """Return the number of spectrogram frames of this many samples."""
    return 1 + max(samples, MIN_SAMPLES) // HOP


def log_mel(pcm: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """Compute the spectrogram of 16-bit samples in NumPy, shape (n_frames, N_MELS)."""
    sound = pcm.astype(np.float32) / 32768.0
    sound = np.pad(sound, (0, max(0, MIN_SAMPLES - len(sound))))
    sound = np.pad(sound, N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, N_FFT)[::HOP]
    magnitudes = np.abs(np.fft.rfft(frames * _window(), axis=-1))
    mel = magnitudes @ _mel_filters()
    return np.log(np.maximum(mel, FLOOR)).astype(np.float32)


def log_mel_tf(pcm: tf.Tensor) -> tf.Tensor:
    """Compute `log_mel` in the graph."""
    return log_mel_of_mirrored(mirrored(pcm))


def mirrored(pcm: tf.Tensor) -> tf.Tensor:
    """Mirror half a frame at each end of 16-bit samples."""
    sound = tf.pad(pcm, [[0, tf.maximum(0, MIN_SAMPLES - tf.size(pcm))]])
    return tf.pad(sound, [[N_FFT // 2, N_FFT // 2]], mode="REFLECT")


def mirrored_samples(frames: int) -> int:
    """Return the number of samples, including mirrored ones, for this many frames."""
    return (frames - 1) * HOP + N_FFT


def log_mel_of_mirrored(sound: tf.Tensor) -> tf.Tensor:
    """Compute the spectrograms of `mirrored` 16-bit samples, shape (..., samples) to (..., n_frames, N_MELS)."""
    frames = tf.signal.frame(tf.cast(sound, tf.float32) / 32768.0, N_FFT, HOP)
    magnitudes = tf.abs(tf.signal.rfft(frames * tf.constant(_window(), tf.float32)))
    mel = magnitudes @ tf.constant(_mel_filters(), tf.float32)
    return tf.math.log(tf.maximum(mel, FLOOR))


@cache
def _window() -> npt.NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)  # periodic Hann


@cache
def _mel_filters() -> npt.NDArray[np.float64]:
    """Return triangles of area 1 between neighbouring band edges, shape (n_bins, N_MELS)."""
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(TOP_HZ), N_MELS + 2))
    bins = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins - low) / (middle - low)
    falling = (high - bins) / (high - middle)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (high - low)
    return np.asarray(triangles, np.float64)


# Slaney's scale (Auditory Toolbox, 1998): linear below 1 kHz, logarithmic above.
_LINEAR_HZ = 200.0 / 3.0
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27.0


def _hz_to_mel(hz: float) -> float:
    return hz / _LINEAR_HZ if hz < _KNEE_HZ else float(_KNEE_MEL + np.log(hz / _KNEE_HZ) / _LOG_STEP)


def _mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = _KNEE_HZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _LINEAR_HZ, above)
