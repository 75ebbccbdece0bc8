"""Trainer of trainer.py that has imported NumPy first."""

import runpy
from pathlib import Path

import numpy  # noqa: F401 - what a warm interpreter imports for it

runpy.run_path(str(Path(__file__).with_name("trainer.py")), run_name="__main__")
