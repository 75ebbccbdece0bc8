"""GPU readings of a node that the search doesn't run on: its first rank starts a collector there.

The collector (autotune/measure/gpu/collector.py) runs in the search's interpreter, which nodes usually share with the
state folder. Without it, the GPUs of that node aren't measured. It ends with the rank.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Optional

from autotune.trainee.ranks import node_in_file_names

_collector: Optional[subprocess.Popen[bytes]] = None  # referenced, or Python would warn that it still runs


def collect_gpus(folder: str) -> None:
    """Start the collector of this node's GPUs, which writes into ``gpus.<node>`` in the trial's folder, once."""
    global _collector
    interpreter, _, path = os.environ.get("AUTOTUNE_COLLECTOR", "").partition(os.pathsep)
    if not interpreter or not os.access(interpreter, os.X_OK):
        return
    file = os.path.join(folder, f"gpus.{node_in_file_names()}")
    with contextlib.suppress(OSError):  # FileExistsError: another rank of this node has started it
        records = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _collector = subprocess.Popen(
                (interpreter, "-P", "-m", "autotune.measure.gpu.collector"),
                cwd="/",
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=records,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(records)
