"""Model: two convolutions and attention on text, then on frames, with uniform stretching in between.

Plain `tf.Module`: Keras layers take four times as long from start to first step, in every trial.
"""

import math
from typing import Any

import tensorflow as tf

from autotune.workloads.tts.batches import N_MELS
from autotune.workloads.tts.ljspeech import VOCABULARY

CHANNELS = 96
KERNEL_WIDTH = 5
REDUCTION = 2  # frames per decoder step, as in Tacotron (Wang et al. 2017, section 3.3)


class Speech(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Model from text to log-mel spectrograms of given lengths; variables are always float32."""

    def __init__(self, *, seed: int, compute_dtype: str) -> None:
        super().__init__()
        self._dtype = tf.as_dtype(compute_dtype)
        weights = _Weights(seed)
        self._embedding = weights(VOCABULARY, CHANNELS)
        self._encoder = _Block(weights, self._dtype)
        self._place = _Dense(weights, 2, CHANNELS, dtype=self._dtype)
        self._decoder = _Block(weights, self._dtype)
        self._out = _Dense(weights, CHANNELS, REDUCTION * N_MELS, dtype=self._dtype)

    def __call__(self, text: tf.Tensor, text_length: tf.Tensor, frames: tf.Tensor, mel_length: tf.Tensor) -> tf.Tensor:
        """Predict spectrograms, (batch, frames, mel bands).

        Args:
            text: Symbol numbers, (batch, symbols), padded with 0.
            frames: Frames to predict, including padding.
        """
        text_length, mel_length = tf.cast(text_length, tf.int32), tf.cast(mel_length, tf.int32)
        text_mask = tf.sequence_mask(text_length, tf.shape(text)[1])
        encoded = self._encoder(tf.cast(tf.gather(self._embedding, text), self._dtype), text_mask)
        # Uniform expansion: step s of S belongs to symbol floor((s + 1/2) * T / S), and gets its position in the
        # symbol and in the clip.
        steps = (frames + REDUCTION - 1) // REDUCTION
        step_length = (mel_length + REDUCTION - 1) // REDUCTION
        place = (tf.cast(tf.range(steps), tf.float32)[None, :] + 0.5) / tf.cast(step_length, tf.float32)[:, None]
        symbol = place * tf.cast(text_length, tf.float32)[:, None]
        index = tf.minimum(tf.cast(symbol, tf.int32), text_length[:, None] - 1)
        stretched = tf.gather(encoded, index, batch_dims=1)
        within = tf.stack([symbol - tf.floor(symbol), place], axis=-1)
        step_mask = tf.sequence_mask(step_length, steps)
        decoded = self._decoder(stretched + self._place(tf.cast(within, self._dtype)), step_mask)
        spectrogram = tf.reshape(self._out(decoded), [tf.shape(text)[0], steps * REDUCTION, N_MELS])
        return tf.cast(spectrogram[:, :frames], tf.float32)


def l1_loss(predicted: tf.Tensor, mel: tf.Tensor, mel_length: tf.Tensor) -> tf.Tensor:
    """Return the mean absolute difference over frames without padding."""
    valid = tf.sequence_mask(mel_length, tf.shape(mel)[1], tf.float32)
    per_frame = tf.reduce_mean(tf.abs(predicted - mel), axis=-1)
    return tf.reduce_sum(per_frame * valid) / tf.reduce_sum(valid)


class _Weights:
    """Source of variables with Glorot's uniform initialisation (2010), each with its own seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made = 0

    def __call__(self, *shape: int) -> tf.Variable:
        self._made += 1
        fan = math.prod(shape[:-2]) * (shape[-2] + shape[-1])
        limit = math.sqrt(6.0 / fan)
        return tf.Variable(
            tf.random.stateless_uniform(shape, seed=[self._seed, self._made], minval=-limit, maxval=limit)
        )


class _Layer(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    def __init__(self, weights: _Weights, *shape: int, dtype: Any) -> None:
        super().__init__()
        self._kernel = weights(*shape)
        self._bias = tf.Variable(tf.zeros([shape[-1]]))
        self._dtype = dtype


class _Dense(_Layer):
    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        product = tf.tensordot(values, tf.cast(self._kernel, self._dtype), 1)
        return product + tf.cast(self._bias, self._dtype)


class _Convolution(_Layer):
    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        convolved = tf.nn.conv1d(values, tf.cast(self._kernel, self._dtype), stride=1, padding="SAME")
        return tf.nn.relu(convolved + tf.cast(self._bias, self._dtype))


class _Attention(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Scaled dot-product attention (Vaswani et al. 2017), one head; the softmax is always in float32."""

    def __init__(self, weights: _Weights, dtype: Any) -> None:
        super().__init__()
        self._project = _Dense(weights, CHANNELS, 3 * CHANNELS, dtype=dtype)
        self._out = _Dense(weights, CHANNELS, CHANNELS, dtype=dtype)
        self._dtype = dtype

    def __call__(self, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        query, key, value = tf.split(self._project(values), 3, axis=-1)
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) / math.sqrt(CHANNELS)
        scores = tf.where(mask[:, None, :], scores, scores.dtype.min)
        return self._out(tf.matmul(tf.cast(tf.nn.softmax(scores), self._dtype), value))


class _Block(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Two convolutions and attention, with residuals; padding is zeroed before each convolution."""

    def __init__(self, weights: _Weights, dtype: Any) -> None:
        super().__init__()
        shape = (KERNEL_WIDTH, CHANNELS, CHANNELS)
        self._convolutions = [_Convolution(weights, *shape, dtype=dtype) for _ in range(2)]
        self._attention = _Attention(weights, dtype)

    def __call__(self, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        valid = tf.cast(mask, values.dtype)[:, :, None]
        for convolution in self._convolutions:
            values = values * valid
            values += convolution(values)
        return values + self._attention(values, mask)
