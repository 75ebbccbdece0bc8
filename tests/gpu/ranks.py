"""Trains as launchers of several processes do it: ``python ranks.py <config>``; each rank in a session of its own.

Rank 0 is the fake trainer, on the first GPU. Rank 1 reports nothing; its kernels run on the second GPU, and some on the
first.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

FAKE = Path(__file__).parents[1] / "fake_nvml"
TURN_S = 0.05


def train_silently() -> None:
    """Rank 1."""
    sys.path.insert(0, str(FAKE))
    from busy_writer import BusyWriter

    folder = os.environ["AUTOTUNE_FAKE_NVML_TENANTS"]
    own, other = BusyWriter(folder, 1), BusyWriter(folder, 0)
    while True:
        now_s = time.monotonic()
        own.kernel(now_s, now_s + 0.8 * TURN_S)
        other.kernel(now_s, now_s + 0.2 * TURN_S)
        time.sleep(TURN_S)


def launch(config: str) -> int:
    """The launcher."""
    silent = subprocess.Popen([sys.executable, __file__], start_new_session=True)
    try:
        trainer = [sys.executable, str(FAKE / "trainer.py"), config]
        return subprocess.run(trainer, start_new_session=True, check=False).returncode
    finally:
        silent.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(launch(sys.argv[1]))
    train_silently()
