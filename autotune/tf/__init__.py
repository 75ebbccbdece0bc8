"""TensorFlow performance library for trainers: runtime, input pipeline, feature cache, text preparation, compiled step.

Each setting changes what its name says and nothing else, so that its effect can be measured.
`autotune.tf.options` imports no TensorFlow: settings can be checked before the seconds of its import.
"""
