"""Table of real trainers."""

from tests.real_trainers.other_trainers import OTHERS
from tests.real_trainers.tensorflow_trainers import TENSORFLOW
from tests.real_trainers.torch_trainers import TORCH

TRAINERS = (*TORCH, *TENSORFLOW, *OTHERS)
"""All rows, in the order in which they are tried."""
