"""Parts for the tests of the evidence run's driver: as processes they behave well, badly, or not at all.

python -m tests.gpu.stub_parts NAME FOLDER
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.evidence.notes import Notes
from tests.gpu.evidence.parts import end_with_driver

_STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def main(name: str, folder: Path) -> None:
    """Be one of them."""
    end_with_driver()
    notes = Notes(folder=folder)
    notes.figure("speed", "7 samples/s")
    if name == "crashes":
        raise RuntimeError("a fault of the part")
    if name == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        (folder / "pids").write_text(f"{child.pid}\n")
        notes.text("so far", "it hangs now")
        time.sleep(600)
    notes.criterion("it is good", name != "bad", name)
    notes.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
