"""Functions that worker processes import by name, for tests of text preparation."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


def codes(line: str) -> list[int]:
    """Code points."""
    return [ord(character) for character in line]


def numpy_codes(line: str) -> np.ndarray:
    """Code points, as NumPy's numbers."""
    return np.array([ord(character) for character in line], dtype=np.int32)


def talkative(line: str) -> list[int]:
    """Code points, with a print, which must not get among the answers."""
    print("preparing", line)
    return codes(line)


def texts(line: str) -> list[str]:
    """No tokens at all."""
    return list(line)


def fails_on_seven(line: str) -> list[int]:
    """Code points; an error on one line."""
    if line == "line 7":
        raise ValueError("seven is not to be said")
    return codes(line)


def killed_on_seven(line: str) -> list[int]:
    """Code points; on one line the process is killed, as by the kernel that is short of memory."""
    if line == "line 7":
        os.kill(os.getpid(), signal.SIGKILL)
    return codes(line)


def exits(line: str) -> list[int]:
    """Leave the process."""
    os._exit(3)


def endless(line: str) -> list[int]:
    """Say that it has begun, in a file of this process's number in the folder that the line names; never return."""
    (Path(line.split("|")[0]) / str(os.getpid())).touch()
    while True:
        time.sleep(0.01)


def loaded_modules(line: str) -> list[int]:
    """Whether TensorFlow and the main script's marker are loaded in this process, and its number."""
    return ["tensorflow" in sys.modules, hasattr(sys.modules["__main__"], "MARKER"), os.getpid()]
