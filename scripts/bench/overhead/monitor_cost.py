"""Overhead of `autotune monitor`: CPU time of its process, on the GPUs of this machine.

It uses the driver of the machine. Where there is none, use one of the tests' fake machines (from a checkout)::

    python -m tests.fake_nvml eight -- python -m scripts.bench monitor
"""

import sys
from pathlib import Path

from scripts.bench.markdown import markdown_table
from scripts.bench.overhead.collector_cost import names_of, require_gpus
from scripts.bench.overhead.process_cost import process_cost

_START_S = 4.0  # it is imported, and has drawn its first screens
_TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50", "PYTHONUTF8": "1"}
_LOG = {"FORCE_COLOR": "", "NO_COLOR": "1"}


def measure_monitor(*, seconds: float) -> str:
    """Measure the monitor's CPU time.

    Args:
        seconds: Time for which it is watched.

    Returns:
        The result, as Markdown.

    Raises:
        AutotuneError: There is no GPU.
    """
    gpus = require_gpus()

    def command(_folder: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", "-m", "autotune", "monitor")

    rows = []
    for shown, env in (("on a terminal", _TERMINAL), ("in a log file", _LOG)):
        start_cpu_s, cores = process_cost(command, start_s=_START_S, seconds=seconds, env=env)
        rows.append([f"{len(gpus)} ({names_of(gpus)})", shown, f"{start_cpu_s:.2f} s", f"{cores:.2%}"])
    return markdown_table(["GPUs", "shown", "CPU time to start", "share of a core from then on"], rows)
