"""Matplotlib, imported without starting a program that the PATH names: it looks for fonts with ``fc-list``, once."""

import os

_path = os.environ.get("PATH")
os.environ["PATH"] = os.defpath  # that of the system: a project may have put programs of its own before these
try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
finally:
    if _path is None:
        del os.environ["PATH"]
    else:
        os.environ["PATH"] = _path

__all__ = ["Axes", "Figure", "rc_context"]
