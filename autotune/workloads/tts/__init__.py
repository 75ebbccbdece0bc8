"""A small text-to-speech trainer: from text to log-mel spectrograms, over data laid out like LJSpeech.

    python -m autotune.workloads.tts --config configs/config.yaml

`corpus` writes data to try it on, `ljspeech` reads the layout, `features` computes spectrograms in NumPy
or in TensorFlow, `batches` assembles the input pipeline, `model` is what is trained, `training` the loop.
"""
