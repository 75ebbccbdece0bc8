"""Builds the fake driver, and makes machines of it."""

import ctypes
import json
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fake_nvml.scenario import Scenario

_SOURCES = Path(__file__).parent
_REPOSITORY = _SOURCES.parents[1]
_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")

NO_COMPILER = "no C compiler (cc or gcc) to build the fake NVIDIA driver with"

FROZEN_ORIGIN_S = 1_000.0  # where autotune's VirtualClock starts, and
FROZEN_EPOCH_S = 1_893_456_000.0  # what it says of the year: 2030-01-01T00:00:00Z

_PRELUDE = f"""\
import json, os, time
from pynvml import *

def at(t_s):
    clock = os.environ["AUTOTUNE_FAKE_NVML_CLOCK"]
    with open(clock + ".new", "w") as file:
        file.write(str(round(({FROZEN_ORIGIN_S} + t_s) * 1e9)))
    os.replace(clock + ".new", clock)

def code_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except NVMLError as error:
        return error.value
    return 0
"""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [__name__, "autotune.commands.search_run", "autotune.commands.apply", "tests.command_line"]
)


def build(library: Path) -> None:
    """Builds the fake driver there.

    Raises:
        FileNotFoundError: There is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError(NO_COMPILER)
    sources = sorted(map(str, _SOURCES.glob("*.c")))
    command = [compiler, *_FLAGS, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), *sources]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class FakeGpu:
    """A machine with an NVIDIA driver, for the processes that are started with `env`.

    Attributes:
        env: This process's environment and what makes another one load the fake driver.
        tenants: Folder for `BusyWriter`; read only if the scenario says ``follow``.
    """

    def __init__(
        self, library: Path, folder: Path, scenario: Scenario, *, at_s: float | None, began_s_ago: float
    ) -> None:
        self._library = str(library)
        self.tenants = folder / "tenants"
        self._clock = folder / "clock"
        if at_s is None:
            origin_ns = time.monotonic_ns() - round(began_s_ago * 1e9)
            epoch_ns = time.time_ns() - round(began_s_ago * 1e9)
        else:
            origin_ns, epoch_ns = round(FROZEN_ORIGIN_S * 1e9), round(FROZEN_EPOCH_S * 1e9)
            self.at(at_s)
        path = folder / "scenario"
        path.write_text(
            scenario.text(
                origin_ns=origin_ns,
                epoch_ns=epoch_ns,
                tenants_folder=str(self.tenants),
                clock_file=None if at_s is None else str(self._clock),
            )
        )
        self.origin_s = origin_ns / 1e9
        paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.env = {
            **os.environ,
            "AUTOTUNE_FAKE_NVML": str(path),
            "AUTOTUNE_FAKE_NVML_CLOCK": str(self._clock),
            "AUTOTUNE_FAKE_NVML_TENANTS": str(self.tenants),
            "LD_LIBRARY_PATH": os.pathsep.join(paths),
        }

    def at(self, t_s: float) -> None:
        """Sets a frozen clock to so many seconds after the scenario's origin, for all who look."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(round((FROZEN_ORIGIN_S + t_s) * 1e9)))
        os.replace(new, self._clock)

    def run(self, code: str, *, timeout_s: float = 120.0) -> Any:
        """Runs Python in a process of its own that has this driver, and answers what it tells.

        The code finds all of `pynvml`, and ``at(t_s)`` (see `at`), ``tell(value)`` (what `run` answers: the value
        after a trip through JSON; None if nothing is told), ``code_of(function, *arguments, **options)`` (the
        NVML error that a call raises; 0 if none). The process is a fork, in which most of autotune is imported already.
        """
        told, tells = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(target=_play, args=(tells, code, self._library, self.env))
        process.start()
        tells.close()
        try:
            assert told.poll(timeout_s), f"nothing was told for {timeout_s:g} s"
            kind, value = told.recv()
        finally:
            process.kill()
            process.join()
            told.close()
        assert kind != "failed", value
        return json.loads(value) if value else None


def _play(tells: Connection, code: str, library: str, env: dict[str, str]) -> None:
    """Be a process with that driver and environment, and run the code; ends without waiting for calls that hang."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(_REPOSITORY)
    ctypes.CDLL(library)  # the bindings find it by its soname
    said = [""]
    names = {"tell": lambda value: said.append(json.dumps(value))}
    try:
        exec(_PRELUDE, names)
        exec(compile(code, "played", "exec"), names)
        tells.send(("told", said[-1]))
    except BaseException:
        tells.send(("failed", traceback.format_exc()))
    os._exit(0)


@contextmanager
def machine_of(scenario: Scenario, *, at_s: float | None = None) -> Iterator[FakeGpu]:
    """A machine for what is no test; tests have the fixture ``fake_gpu``."""
    with tempfile.TemporaryDirectory(prefix="fake-nvml-") as name:
        library = Path(name, "libnvidia-ml.so.1")
        build(library)
        yield FakeGpu(library, Path(name), scenario, at_s=at_s, began_s_ago=30.0)
