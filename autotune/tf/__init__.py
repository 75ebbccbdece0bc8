"""TensorFlow performance library for trainers: runtime, input pipeline, feature cache, text preparation, compiled step.

Each setting has only its own effect, so that it can be measured. `autotune.tf.options` does not import TensorFlow.
"""
