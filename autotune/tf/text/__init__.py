"""Text preparation of a trainer: in order, in worker processes, from a cache; without TensorFlow."""
