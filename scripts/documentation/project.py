"""Project that the commands of a page run in: a copy of an example in a temporary folder."""

import os
import pty
import re
import selectors
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path
from typing import Any

_EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_ROOT = _EXAMPLES.parents[1]
_COLUMNS, _ROWS = 100, 50
_SHOWN = "/home/you/project"
_STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_LONGEST_S = 900.0
_STOPPING_S = 20.0


class Project:
    """Copy of an example, in which commands run.

    Args:
        example: Name of its folder below docs/examples.
        further: Additional environment variables of the commands.
    """

    def __init__(self, example: str, further: dict[str, str]) -> None:
        self._top = Path(tempfile.mkdtemp(prefix="doc-", dir="/tmp"))  # its length affects the output
        self.folder = self._top / "project"
        shutil.copytree(_EXAMPLES / example, self.folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
        self._env = {
            **kept,
            **further,
            "HOME": str(self._top),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
            "PYTHONPATH": str(_ROOT),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm",
            "NO_COLOR": "1",
            "COLUMNS": str(_COLUMNS),
        }
        self._started: list[subprocess.Popen[Any]] = []
        self.further = ExitStack()

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit status and its output in chronological order.

        Its stdout is a terminal and its stderr a pipe, so progress comes in lines, as in a log.
        """
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        process = subprocess.Popen(
            self._words(command),
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        os.close(theirs)
        assert process.stderr is not None, "stderr is a pipe"
        with process, selectors.DefaultSelector() as waiting:
            printed = _printed(waiting, (ours, process.stderr.fileno()))
            status = process.wait(_LONGEST_S)
        os.close(ours)
        return status, _STYLES.sub("", printed.decode()).replace("\r", "")  # line ends and cleared lines

    def start(self, command: str) -> None:
        """Start a command that runs until `stop`."""
        self._started.append(
            subprocess.Popen(
                self._words(command),
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def stop(self) -> None:
        """Stop the started commands."""
        for process in self._started:
            process.terminate()
            try:
                process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOPPING_S)
        self._started.clear()

    def shown(self, text: str) -> str:
        """Return a text for a page: with the project in a neutral home folder, and the interpreter as ``python``."""
        shown = text.replace(str(self.folder), _SHOWN).replace(sys.executable, "python")
        return shown.replace(str(self._top), str(Path(_SHOWN).parent))

    def close(self) -> None:
        """Stop running commands and delete the project."""
        self.stop()
        self.further.close()
        shutil.rmtree(self._top, ignore_errors=True)

    def _words(self, command: str) -> list[str]:
        words = shlex.split(command)
        return [sys.executable, "-m", "autotune", *words[1:]] if words[0] == "autotune" else words


def project_of(description: str) -> Project:
    """Return a fresh project.

    Args:
        description: Name of an example; with `` gpu`` after it, on the simulated machine with a GPU.
    """
    example, _, gpu = description.partition(" ")
    if not gpu:
        return Project(example, {})
    from tests.fake_nvml.library import machine_of
    from tests.fake_nvml.scenario import Gpu, Scenario

    stack = ExitStack()
    machine = stack.enter_context(machine_of(Scenario(gpus=(Gpu(name="NVIDIA A100-SXM4-80GB"),), follow=True)))
    names = ("LD_LIBRARY_PATH", *(name for name in machine.env if name.startswith("AUTOTUNE_FAKE_NVML")))
    project = Project(example, {name: machine.env[name] for name in names})
    project.further = stack
    shutil.copy(_ROOT / "tests" / "fake_nvml" / "busy_writer.py", project.folder)
    return project


def _printed(waiting: selectors.BaseSelector, sources: tuple[int, ...]) -> bytes:
    """Return the output of several sources until all have ended, in chronological order.

    Simultaneous output is ordered by source: the answer before progress.
    """
    pieces = []
    for source in sources:
        waiting.register(source, selectors.EVENT_READ)
    while waiting.get_map():
        for key, _ in sorted(waiting.select(_LONGEST_S), key=lambda ready: sources.index(ready[0].fd)):
            try:
                piece = os.read(key.fd, 1 << 16)
            except OSError:  # the other side of the terminal is closed
                piece = b""
            pieces.append(piece)
            if not piece:
                waiting.unregister(key.fd)
    return b"".join(pieces)
