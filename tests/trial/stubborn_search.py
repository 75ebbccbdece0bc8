"""Search that does not listen, nor does its trial: ``stubborn_search.py FOLDER`` ignores SIGTERM.

It says the ids of its guard and of the trial.
"""

import os
import signal
import sys
import time
from pathlib import Path

from autotune.trial.launch import Guard, Started

signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = Path(sys.argv[1])
DEAF = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork() or os.setsid(); time.sleep(600)"
)
guard = Guard()
guard.start()
guard.launch(
    {"argv": (sys.executable, "-c", DEAF), "cwd": folder, "env": dict(os.environ)},
    stdout=folder / "out",
    stderr=folder / "err",
    deadline_s=time.monotonic() + 600.0,
)
started = guard.receive(60.0)
assert isinstance(started, Started)
print(guard.pid, started.pid, flush=True)
while True:
    signal.pause()
