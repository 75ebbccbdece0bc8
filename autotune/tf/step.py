"""Training step: eager, traced or compiled, in full or mixed precision."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from autotune.tf.options import Precision, StepOptions

Batch = dict[str, tf.Tensor]


class Optimizer(Protocol):
    """Optimizer of a step: `Adam`, or a built one of Keras."""

    def apply_gradients(self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]]) -> Any: ...


class Adam(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Adam (Kingma and Ba 2015, algorithm 1) on TensorFlow's fused kernel; `tf.train.Checkpoint` saves its state.

    Keras's, with the same interface, takes about a second longer to trace, in every trial.
    """

    BETA_1, BETA_2 = 0.9, 0.999  # decay of the two moments
    EPSILON = 1e-7  # avoids division by zero

    def __init__(self, variables: Sequence[tf.Variable], *, learning_rate: float) -> None:
        super().__init__()
        self._learning_rate = learning_rate
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        # Checkpoints track the list; the index is for lookups only.
        self._moments = [
            [tf.Variable(tf.zeros_like(variable), trainable=False) for _ in range(2)] for variable in variables
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
                beta1_power=tf.pow(self.BETA_1, update),
                beta2_power=tf.pow(self.BETA_2, update),
                lr=self._learning_rate,
                beta1=self.BETA_1,
                beta2=self.BETA_2,
                epsilon=self.EPSILON,
                grad=tf.convert_to_tensor(gradient),
            )


class LossScale(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Dynamic loss scaling, which keeps float16 gradients in range (Micikevicius et al. 2018, section 3.2).

    Non-finite gradients skip the update and halve the scale; 2000 good updates in a row double it.
    """

    GROWTH_INTERVAL = 2000

    def __init__(self, initial: float = 2.0**15) -> None:
        super().__init__()
        self.scale = tf.Variable(initial, dtype=tf.float32, trainable=False)
        self._good_updates = tf.Variable(0, dtype=tf.int32, trainable=False)

    def update(self, finite: tf.Tensor) -> None:
        """Adapt the scale, given whether the last gradients were finite."""
        good = tf.where(finite, self._good_updates + 1, 0)
        grow = good >= self.GROWTH_INTERVAL
        factor = tf.where(finite, tf.where(grow, 2.0, 1.0), 0.5)
        self.scale.assign(tf.maximum(self.scale * factor, 1.0))
        self._good_updates.assign(tf.where(grow, 0, good))


class TrainStep(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Training step: computes the loss of a batch and updates the variables.

    Args:
        loss: Function from a batch to a float32 scalar; it casts to the precision's ``compute_dtype`` itself.
        signature: The pipeline's ``element_spec``, for which the step is traced once.

    Raises:
        ValueError: In the first step, if the loss does not depend on a variable.
    """

    def __init__(
        self,
        loss: Callable[[Batch], tf.Tensor],
        variables: Sequence[tf.Variable],
        optimizer: Optimizer,
        options: StepOptions,
        signature: dict[str, tf.TensorSpec],
    ) -> None:
        super().__init__()
        self.loss = loss
        self._variables = list(variables)
        self._optimizer = optimizer
        self.loss_scale = LossScale() if options.precision is Precision.MIXED_FLOAT16 else None
        self.options = options
        self._signature = signature
        self._run: Callable[[Batch], tf.Tensor] = self.compiled(self.update)

    def __call__(self, batch: Batch) -> tf.Tensor:
        """Execute one step; reading the returned loss waits for the accelerator."""
        return self._run(batch)

    @property
    def state(self) -> list[tf.Variable]:
        further = [] if isinstance(self._optimizer, tf.Module) else getattr(self._optimizer, "variables", ())
        return [*self.variables, *further]

    def compiled(self, function: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
        """Return a function of a batch in the step's execution mode."""
        if not self.options.graph:
            return function
        made: Callable[[Batch], Any] = tf.function(
            function, input_signature=[self._signature], jit_compile=self.options.xla or None, autograph=False
        )
        return made

    def gradients(self, batch: Batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return loss and unscaled gradients of a batch, without an update."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
            scaled = loss if self.loss_scale is None else loss * self.loss_scale.scale
        gradients = tape.gradient(scaled, self._variables)
        for gradient, variable in zip(gradients, self._variables, strict=True):
            if gradient is None:
                raise ValueError(f"the loss does not depend on {variable.name}, shape {variable.shape}")
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if self.loss_scale is not None:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        return loss, gradients

    def update(self, batch: Batch) -> tf.Tensor:
        loss, gradients = self.gradients(batch)

        def apply() -> bool:
            self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))
            return True

        if self.loss_scale is None:
            apply()
            return loss
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        tf.cond(finite, apply, lambda: False)
        self.loss_scale.update(finite)
        return loss
