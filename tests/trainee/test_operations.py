"""Tests of the operations that wait for a GPU."""

import json
import subprocess

import pytest

from tests.trainee.conftest import interpreter_with

OF_WAITS = """
import json
import torch
from functools import partial
from torch._subclasses import FakeTensorMode
from autotune.trainee.costs import waits_for_gpu
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


@pytest.mark.services
def test_operations_that_read_from_a_gpu_wait_for_it() -> None:
    """By the devices of their arguments, and unless they are told not to."""
    command = [interpreter_with("torch"), "-c", OF_WAITS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    waits = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, is_waiting in waits.items() if is_waiting} == {
        "item",
        "to the CPU",
        "into one of the CPU's",
        "by a mask",
        "nonzero",
    }
