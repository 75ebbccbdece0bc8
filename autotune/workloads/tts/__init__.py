"""Small text-to-speech trainer: from text to log-mel spectrograms, over data laid out like LJSpeech.

    python -m autotune.workloads.tts --config configs/config.yaml

`corpus` writes synthetic data, `ljspeech` reads the layout, `batches` computes spectrograms in NumPy or in TensorFlow
and assembles the input pipeline, `model` is the network, `training` the loop.
"""
