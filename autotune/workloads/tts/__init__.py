"""Small text-to-speech trainer: text to log-mel spectrograms, on data in the LJSpeech layout.

python -m autotune.workloads.tts --config configs/config.yaml
"""
