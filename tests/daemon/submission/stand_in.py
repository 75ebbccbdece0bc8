"""Stand-in for autotune on another machine: ``stand_in.py worker --config C ...`` prints its words, and may wait.

If the config says ``waits: true`` it leaves when it gets SIGTERM; with ``fails: true`` it leaves with status 1.
"""

import json
import os
import signal
import sys
from pathlib import Path

words = sys.argv[1:]
config = Path(words[words.index("--config") + 1]).read_text()


def leave(*_: object) -> None:
    """Say that SIGTERM came, and leave."""
    os.write(1, f"{os.getpid()} gives its trial back\n".encode())  # whatever was being printed
    sys.exit(143)


signal.signal(signal.SIGTERM, leave)
task = os.environ.get("SLURM_ARRAY_TASK_ID")
print(json.dumps({"words": words, "cwd": os.getcwd(), "pid": os.getpid(), "task": task}), flush=True)
if "waits: true" in config:
    while True:
        signal.pause()
sys.exit("fails: true" in config)
