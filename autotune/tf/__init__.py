"""TensorFlow performance library for trainers: runtime, input pipeline, feature cache, compiled step.

Every setting is what its name says and nothing else moves with it, so that measuring one is worth something.
`autotune.tf.options` imports no TensorFlow: settings can be checked before the seconds of its import.
"""
