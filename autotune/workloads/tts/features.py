"""Log-mel spectrograms, in NumPy and in TensorFlow; both agree to within float32 rounding.

Frames of 1024 samples every 256, centred (the ends are mirrored), Hann window, magnitudes, 80 triangular
filters of equal area from 0 to 8000 Hz on Slaney's mel scale, natural logarithm of at least 1e-5: the
spectrograms that Tacotron 2 and its successors train on (Shen et al. 2018).
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from autotune.workloads.tts.ljspeech import SAMPLE_RATE

N_FFT = 1024
HOP = 256
N_MELS = 80
TOP_HZ = 8000.0
FLOOR = 1e-5

PARAMETERS = {
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
    """Return the number of frames of a spectrogram of so many samples."""
    return 1 + max(samples, MIN_SAMPLES) // HOP


def log_mel(pcm: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """Compute the spectrogram of 16-bit samples, in NumPy.

    Returns:
        Shape (n_frames, N_MELS).
    """
    sound = pcm.astype(np.float32) / 32768.0
    sound = np.pad(sound, (0, max(0, MIN_SAMPLES - len(sound))))
    sound = np.pad(sound, N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, N_FFT)[::HOP]
    magnitudes = np.abs(np.fft.rfft(frames * _window(), axis=-1))
    mel = magnitudes @ _mel_filters()
    return np.log(np.maximum(mel, FLOOR)).astype(np.float32)


def log_mel_tf(pcm: tf.Tensor) -> tf.Tensor:
    """Compute the same as `log_mel`, as TensorFlow operations in the graph."""
    return log_mel_of_mirrored(mirrored(pcm))


def mirrored(pcm: tf.Tensor) -> tf.Tensor:
    """Return 16-bit samples with half a frame mirrored at each end: what the frames are cut from, still in 16 bits."""
    sound = tf.pad(pcm, [[0, tf.maximum(0, MIN_SAMPLES - tf.size(pcm))]])
    return tf.pad(sound, [[N_FFT // 2, N_FFT // 2]], mode="REFLECT")


def mirrored_samples(frames: int) -> int:
    """Return the number of samples, mirrored ones included, that so many frames are cut from."""
    return (frames - 1) * HOP + N_FFT


def log_mel_of_mirrored(sound: tf.Tensor) -> tf.Tensor:
    """Compute the spectrograms of what `mirrored` returns; a batch of it is computed at once.

    Args:
        sound: 16-bit samples, in the last dimension.

    Returns:
        Frames by mel bands, in the last two dimensions.
    """
    frames = tf.signal.frame(tf.cast(sound, tf.float32) / 32768.0, N_FFT, HOP)
    magnitudes = tf.abs(tf.signal.rfft(frames * tf.constant(_window(), tf.float32)))
    mel = magnitudes @ tf.constant(_mel_filters(), tf.float32)
    return tf.math.log(tf.maximum(mel, FLOOR))


@cache
def _window() -> npt.NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)  # periodic Hann


@cache
def _mel_filters() -> npt.NDArray[np.float64]:
    """Return the filters, shape (n_bins, N_MELS): triangles between neighbouring band edges, each of area 1."""
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
