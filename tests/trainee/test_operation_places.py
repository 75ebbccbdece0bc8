"""Tests of the devices that operations and tensors are on, and of the operations that wait for a GPU."""

import json
import subprocess
from typing import Any

import pytest

from tests.trainee.conftest import interpreter_with

pytestmark = pytest.mark.services  # each imports a framework

ON_TWO_DEVICES = """
import json
import tensorflow as tf
from autotune.trainee.step_profile_tensorflow import placed_operations
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

@tf.function
def step(x):
    with tf.device("CPU:0"):
        y = tf.linalg.matmul(x, x)
    with tf.device("CPU:1"):
        return tf.math.erf(y) + tf.math.erf(x)

print(json.dumps(placed_operations(step, tf.ones((4, 4)))))
"""

OF_A_MODEL = """
import json
import torch
from autotune.trainee.step_profile_torch import TensorPlaces
model = torch.nn.Sequential(torch.nn.Linear(4, 4, device="meta"), torch.nn.BatchNorm1d(4))
places = TensorPlaces()
places.add_call(model, (({"x": torch.ones(2, 4)},), {"mask": [torch.ones(2, device="meta")]}))
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(2, 4)).sum().backward()
optimizer.step()
places.add_optimizer(optimizer)
print(json.dumps(places.rows()))
"""

OF_WAITS = """
import json
import torch
from functools import partial
from torch._subclasses import FakeTensorMode
from autotune.trainee.operations import waits_for_gpu
aten, cpu = torch.ops.aten, torch.device("cpu")
with FakeTensorMode():
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    mask = there > 0
print(json.dumps({name: waits_for_gpu(operation) for name, operation in {
    "item": partial(aten._local_scalar_dense.default, there),
    "item of the CPU's": partial(aten._local_scalar_dense.default, here),
    "to the CPU": partial(aten._to_copy.default, there, device=cpu),
    "to the CPU, not blocking": partial(aten._to_copy.default, there, device=cpu, non_blocking=True),
    "to another type": partial(aten._to_copy.default, there, dtype=torch.half),
    "to the GPU": partial(aten._to_copy.default, here, device=torch.device("cuda")),
    "into one of the CPU's": partial(aten.copy_.default, here, there),
    "into one of the GPU's": partial(aten.copy_.default, there, here),
    "by a mask": partial(aten.index.Tensor, there, [mask]),
    "by indices": partial(aten.index.Tensor, there, [None, torch.ones(1, dtype=torch.long)]),
    "nonzero": partial(aten.nonzero.default, mask),
    "sum": partial(aten.add.Tensor, there, there),
}.items()}))
"""


def printed(python: str, script: str) -> Any:
    """Return what a script prints."""
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows(python: str, script: str) -> dict[tuple[str, str], tuple[int, list[str]]]:
    """Return the rows that a script prints, by kind and device."""
    return {(row["what"], row["device"]): (row["count"], row["names"]) for row in printed(python, script)}


def test_operations_of_tensorflow_are_counted_where_they_run() -> None:
    """Of a function whose operations are on two devices, each device has its own."""
    found = rows(interpreter_with("tensorflow"), ON_TWO_DEVICES)
    # Some machines have implementations of their own, such as _MklMatMul.
    first, second = (" ".join(found["operations", device][1]) for device in ("CPU:0", "CPU:1"))
    assert "MatMul" in first
    assert "Erf" in second
    assert "MatMul" not in second


def test_tensors_of_a_step_are_counted_where_they_lie() -> None:
    """Parameters, buffers, inputs and the optimizer's state; its counters do not count."""
    found = rows(interpreter_with("torch"), OF_A_MODEL)
    assert found["parameters", "meta"] == (2, ["0.weight", "0.bias"])
    assert found["parameters", "cpu"] == (2, ["1.weight", "1.bias"])
    assert found["buffers", "cpu"][0] == 3
    assert found["inputs of the model", "cpu"] == (1, ["x"])
    assert found["inputs of the model", "meta"] == (1, ["mask"])
    assert found["state of the optimizer", "cpu"] == (4, ["exp_avg", "exp_avg_sq"])


def test_operations_that_read_from_a_gpu_wait_for_it() -> None:
    """By the devices of their arguments, and unless they are told not to."""
    waits = printed(interpreter_with("torch"), OF_WAITS)
    assert {name for name, is_waiting in waits.items() if is_waiting} == {
        "item",
        "to the CPU",
        "into one of the CPU's",
        "by a mask",
        "nonzero",
    }
