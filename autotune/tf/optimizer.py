"""Adam on TensorFlow's fused kernel: one operation per variable, so that tracing a step takes little time."""

from collections.abc import Iterable, Sequence

import tensorflow as tf


class Adam(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Adam (Kingma and Ba 2015, algorithm 1), with state that `tf.train.Checkpoint` keeps.

    It has the one method of Keras's optimizers that a training step needs, so either can be used.
    Keras's takes about a second longer to trace, which every trial of a search would pay.

    Args:
        learning_rate: Step size, above 0.
        beta_1: Decay of the first moment, 0..1.
        beta_2: Decay of the second moment, 0..1.
        epsilon: Constant that keeps the division finite.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        learning_rate: float,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        super().__init__()
        self._learning_rate = learning_rate
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._epsilon = epsilon
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A list, for checkpoints to follow; the index by variable is for lookups only.
        self._moments = [
            (
                tf.Variable(tf.zeros_like(variable), trainable=False),
                tf.Variable(tf.zeros_like(variable), trainable=False),
            )
            for variable in variables
        ]
        self._index = {variable.ref(): index for index, variable in enumerate(variables)}

    def apply_gradients(self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]]) -> None:
        update = tf.cast(self._updates.assign_add(1), tf.float32)
        for gradient, variable in grads_and_vars:
            first, second = self._moments[self._index[variable.ref()]]
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=tf.pow(self._beta_1, update),
                beta2_power=tf.pow(self._beta_2, update),
                lr=self._learning_rate,
                beta1=self._beta_1,
                beta2=self._beta_2,
                epsilon=self._epsilon,
                grad=tf.convert_to_tensor(gradient),
            )
