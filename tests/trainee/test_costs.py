"""What recurs besides the arithmetic of steps: seen in trainers that report nothing, and only in trials."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.records import PHASE_VARIABLE
from autotune.trainee import costs as module
from tests.trainee.conftest import Observed, interpreter_with

TENSORFLOW = """
import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.ones((4, 4)))


@tf.function
def inner(x):
    return x @ weights


@tf.function
def train_step(x, rate):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(inner(x))
    weights.assign_sub(rate * tape.gradient(loss, weights))


def load(number):
    return np.ones((4,), np.float32)


data = tf.data.Dataset.range(6).map(lambda number: tf.numpy_function(load, [number], tf.float32))
for row in data:
    train_step(tf.reshape(row, (1, 4)), 0.1)
train_step(tf.ones((2, 4)), 0.1)
train_step(tf.ones((2, 4)), 0.2)
for _ in range(2):
    tf.function(lambda: 1)()
"""

EAGER = """
import tensorflow as tf

weights = tf.Variable(tf.ones((4, 4)))


def step(x):
    with tf.GradientTape() as tape:
        for _ in range(20):
            x = tf.tanh(x @ weights)
        loss = tf.reduce_mean(x)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


for x in tf.data.Dataset.from_tensors(tf.ones((1, 4))).repeat(20):
    step(x)
"""

TORCH = """
import torch

net = torch.nn.Linear(1, 1)


def loss(x):
    return net(x).sum()


def cut(x):
    torch._dynamo.graph_break()
    return 2 * x


compiled = torch.compile(loss, backend="eager", dynamic=False)
loader = torch.utils.data.DataLoader(torch.ones(5, 1), 2, num_workers=1)
for _ in range(2):
    for x in loader:
        compiled(x).backward()
torch.compile(cut, backend="eager")(x)
"""

SMALL = """
import torch

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)


def loss(x):
    total = 0.0
    for row in range(16):
        total = total + torch.tanh(x[row] @ net.weight).sum()
    return total


for x in torch.utils.data.DataLoader(torch.ones(1600, 4), 16):
    optimizer.zero_grad()
    loss(x).backward()
    optimizer.step()
"""

JAX = """
import jax
import jax.numpy as jnp


def loss(x):
    return (x * x).sum()


step = jax.jit(jax.value_and_grad(loss))
for number in (3, 4, 4, 5):
    step(jnp.ones(number))
"""


PHASED = {PHASE_VARIABLE: "0.4"}


def costs(seen: Observed) -> dict[str, int]:
    """Return how often a script did what, by the kind and the place; of why, nothing."""
    found = seen.kind("cost")
    assert all(event.duration_s for event in found if event.cost != "cut")
    return {f"{one.cost} {(one.place or '').rpartition(':')[2]}": one.times or 0 for one in found} | {
        f"{one.text}": 0 for one in found if one.text
    }


@pytest.fixture
def costs_elsewhere(run: Callable[..., Observed], tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Run a script in an interpreter that has a framework; return what it costs."""

    def run_elsewhere(framework: str, text: str, **env: str) -> dict[str, int]:
        script = tmp_path / "train.py"
        script.write_text(text)
        return costs(run(interpreter_with(framework), script, **env))

    return run_elsewhere


def test_functions_that_are_traced_anew_and_python_in_a_graph(here: Callable[..., Observed]) -> None:
    """By the function in the trainer's code, with the argument that was another one; inner ones are part of outer."""
    seen = costs(here(TENSORFLOW))
    assert seen["trace 13 train_step"] == 3
    assert seen["python 20 load"] >= 3
    assert seen["trace 30 <lambda>"] == 2
    assert "trace 8 inner" not in seen
    assert [text for text, times in seen.items() if times == 0] == [
        "x float32[1, 4] -> float32[2, 4]",
        "rate Literal[0.1] -> Literal[0.2]",
        "a new function each time",
    ]


@pytest.mark.parametrize("phased", [True, False])
def test_operations_outside_of_graphs(
    here: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch, phased: bool
) -> None:
    """Counted at the begin of training, at the line that launches most of them; only where phases are asked for."""
    monkeypatch.setattr(module, "_COUNTED", 500)
    monkeypatch.setattr(module, "_COUNTED_S", 600.0)  # however slow this machine is
    seen = costs(here(EAGER, **(PHASED if phased else {})))
    if phased:
        assert seen["eager 12 step"] == 500
    else:
        assert seen == {}


@pytest.mark.services
def test_operations_of_pytorch(costs_elsewhere: Callable[..., dict[str, int]]) -> None:
    """Of an update, at the line that launches most of them."""
    seen = costs_elsewhere("torch", SMALL, **PHASED)
    assert 120 < seen["launch 11 loss"] < 400, seen


@pytest.mark.services
def test_workers_that_start_anew_and_what_torch_compiles(costs_elsewhere: Callable[..., dict[str, int]]) -> None:
    """The last batch has another shape; what cuts a function is told with the reason."""
    seen = costs_elsewhere("torch", TORCH)
    assert (seen["workers 19 <module>"], seen["compile 7 loss"]) == (2, 2)
    assert "cut 11 cut" in seen
    assert any("graph_break" in text for text, times in seen.items() if times == 0)


@pytest.mark.services
def test_functions_that_jax_compiles_anew(costs_elsewhere: Callable[..., dict[str, int]]) -> None:
    """For each shape."""
    seen = costs_elsewhere("jax", JAX)
    assert seen["compile 12 loss"] == 3
    assert not any(name.startswith("gradient ") for name in seen)


@pytest.mark.services
def test_gradients_that_jax_takes_outside_of_compiled_functions(costs_elsewhere: Callable[..., dict[str, int]]) -> None:
    """At the line that takes them."""
    text = JAX.replace("jax.jit(jax.value_and_grad(loss))", "jax.value_and_grad(loss)")
    assert costs_elsewhere("jax", text)["gradient 12 <module>"] >= 3
