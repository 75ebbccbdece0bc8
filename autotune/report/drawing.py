"""Matplotlib, imported without starting a program that the PATH names: it looks for fonts with ``fc-list``, once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_path = os.environ.get("PATH")
os.environ["PATH"] = os.defpath  # that of the system: a project may have put programs of its own before these
try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
finally:
    if _path is None:
        del os.environ["PATH"]
    else:
        os.environ["PATH"] = _path

__all__ = ["Axes", "Figure", "rc_context"]


@contextmanager
def rc_context(settings: dict[Any, Any]) -> Iterator[None]:
    """Draw with these settings and otherwise matplotlib's own, for a while.

    Those of a ``matplotlibrc`` do not count: it is looked for in the working directory first, and can have text set by
    LaTeX, which is started from the PATH.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield
