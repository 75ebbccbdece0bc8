"""Each stage of a prefetch holds what it is told, on a device of its own: a second logical CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Two logical devices have to be asked for before TensorFlow starts: in a process of its own.
SCRIPT = """
import json, sys
import tensorflow as tf
from autotune.clock import SystemClock
from autotune.tf.pipeline import as_written
from autotune.tf.feed import staged_prefetch

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
clock = SystemClock()
made = []

def remember(number):
    made.append(int(number))
    return number

def made_ahead(wanted):
    until_s = clock.now_s() + 60
    while len(made) < wanted and clock.now_s() < until_s:
        clock.wait(0.01)
    clock.wait(0.2)  # time to make more than it should
    return len(made)

source = tf.data.Dataset.range(40).map(lambda n: tf.ensure_shape(tf.numpy_function(remember, [n], tf.int64), []))
for stages in json.loads(sys.argv[1]):
    made.clear()
    batches = iter(staged_prefetch(source.with_options(as_written(1)), "/CPU:1", **stages))
    first = next(batches)
    ahead = made_ahead(1 + sum(stages.values()))
    values = [int(first), *map(int, batches)]
    print(json.dumps([stages, first.device, ahead, values == list(range(40))]))
"""
STAGES = [
    {"host_batches": 0, "device_batches": 1, "ready_batches": 0},
    {"host_batches": 3, "device_batches": 1, "ready_batches": 0},
    {"host_batches": 0, "device_batches": 4, "ready_batches": 0},
    {"host_batches": 2, "device_batches": 2, "ready_batches": 3},
]


def test_each_stage_holds_its_own_batches() -> None:
    """The batches are on the device, all of them in order, and as many are made ahead as the buffers hold."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(STAGES)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [stages for stages, *_ in answers] == STAGES
    for stages, device, ahead, complete in answers:
        assert device.endswith("CPU:1")
        assert complete
        assert ahead == 1 + sum(stages.values())  # one is in hand
