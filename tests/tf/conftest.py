"""Two logical CPU devices: what is tested on them is the placement and the threads of two GPUs, run for real."""

import tensorflow as tf

# While tests are collected nothing has been computed yet: afterwards TensorFlow's devices cannot be changed.
_TWO = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], _TWO)
