"""Tests of the devices that operations of TensorFlow and tensors of PyTorch are on."""

import json
import subprocess

from tests.trainee.conftest import interpreter_with

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


def rows(python: str, script: str) -> dict[tuple[str, str], tuple[int, list[str]]]:
    """Return what a script prints, by kind and device."""
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {(row["what"], row["device"]): (row["count"], row["names"]) for row in found}


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
