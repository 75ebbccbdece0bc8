"""Command line of autotune itself, for processes that it starts of itself."""

import sys

OWN_COMMAND = (sys.executable, "-P", "-m", "autotune")
"""Interpreter and module; a folder called ``autotune`` in the working directory is not taken for the package."""
