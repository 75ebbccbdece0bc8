"""Steps of JAX trainers that make their batches of arrays: no loader tells of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainee.conftest import Observed, interpreter_with

pytestmark = pytest.mark.services

TRAINER = """\
import functools

import jax
import jax.numpy as jnp

X = jax.random.normal(jax.random.PRNGKey(0), (256, 8))
Y = X.sum(axis=1)


def loss(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


@functools.partial(jax.jit, donate_argnums=0)
def step(weights, x, y):
    return weights - 0.1 * jax.grad(loss)(weights, x, y)


@jax.jit
def evaluate(weights):
    return loss(weights, X, Y)


class Model:
    def __init__(self):
        self.weights = jnp.zeros(8)

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, weights, x, y):
        return step(weights, x, y)


weights, model = jnp.zeros(8), Model()
for epoch in range(3):
    for start in range(0, 256, 32):
        weights = step(weights, X[start : start + 32], Y[start : start + 32])
    assert evaluate(weights) >= 0
assert isinstance(step, jax.stages.Wrapped) and step.__name__ == "step"
assert step.lower(weights, X, Y).as_text()
print(float(loss(weights, X, Y)))
"""


@pytest.mark.parametrize("called", ["step", "model.step"])
def test_each_call_of_the_compiled_step_is_a_step(run: Callable[..., Observed], tmp_path: Path, called: str) -> None:
    """Also of a method, and where its arguments are given away; evaluation is none, and the result is the same."""
    python = interpreter_with("jax")
    script = tmp_path / "train.py"
    script.write_text(TRAINER.replace("weights = step(", f"weights = {called}("))
    seen = run(python, script)
    assert [event.wait_s for event in seen.kind("step")] == [None] * 3 * 8  # the device works on between calls
    assert all(event.t_s > seen.kind("step")[-1].t_s for event in seen.kind("unseen"))  # of what is only lowered
    assert float(seen.folder.stdout.read_text()) < 0.1


AHEAD = """\
import time

import jax
import jax.numpy as jnp


@jax.jit
def step(weights):
    def loss(weights):
        return jnp.tanh(weights @ weights @ weights).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


weights = jnp.eye(800)
step(weights)[1].block_until_ready()
begin_s = time.monotonic()
for _ in range(20):
    weights, value = step(weights)
given_s = time.monotonic()
weights.block_until_ready()
print(begin_s, given_s, time.monotonic())
"""


def test_a_step_ends_when_the_device_has_completed_it(run: Callable[..., Observed], tmp_path: Path) -> None:
    """The program has given it twenty steps before it has done a few; in the end, all are there."""
    script = tmp_path / "train.py"
    script.write_text(AHEAD)
    seen = run(interpreter_with("jax"), script)
    begin_s, given_s, done_s = map(float, seen.folder.stdout.read_text().split())
    ends_s = [event.t_s for event in seen.kind("step")][1:]
    assert len(ends_s) == 20
    assert begin_s < ends_s[0] < ends_s[-1]
    assert ends_s[-1] >= done_s > given_s


EAGER = """\
import jax
import jax.numpy as jnp

X = jax.random.normal(jax.random.PRNGKey(0), (256, 8))
Y = X.sum(axis=1)


def loss(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


weights = jnp.zeros(8)
for epoch in range(3):
    for start in range(0, 256, 32):
        value, gradient = jax.value_and_grad(loss)(weights, X[start : start + 32], Y[start : start + 32])
        weights = weights - 0.1 * gradient
"""


def test_a_gradient_of_which_nothing_is_compiled_is_a_step(run: Callable[..., Observed], tmp_path: Path) -> None:
    """Each time that it is taken."""
    script = tmp_path / "train.py"
    script.write_text(EAGER)
    seen = run(interpreter_with("jax"), script)
    assert len(seen.kind("step")) == 24
    assert not seen.kind("unseen")


@pytest.mark.parametrize("line", ["value, gradient = jax.jit(jax.value_and_grad(loss))("])
def test_a_step_that_is_compiled_anew_each_time_is_one(run: Callable[..., Observed], tmp_path: Path, line: str) -> None:
    """It is the same function of the trainer's, whatever object it is compiled to."""
    script = tmp_path / "train.py"
    script.write_text(EAGER.replace("value, gradient = jax.value_and_grad(loss)(", line))
    assert len(run(interpreter_with("jax"), script).kind("step")) == 24
