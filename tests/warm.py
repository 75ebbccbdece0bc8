"""``autotune`` processes that begin warm: forks of a server that has all modules loaded, for tests that type commands.

Each is a process of its own, with its own environment, folder, streams and exit code; what it is spared is the second
that imports take. Commands whose start is what is tested run as ``python -m autotune``, and so does one with an
environment that the interpreter itself reads.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_HEAVY = (
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "optuna.storages.journal",
    "rich.progress",
    "sqlalchemy.dialects.sqlite",
)
"""What commands load when they need it."""

_LEFT_OUT = ("autotune.__main__", "autotune.tf", "autotune.trainee", "autotune.workloads")
"""Parts of the package that no command loads."""

_INTERPRETERS = ("LANG", "LC_", "LD_", "MPL", "OMP_", "OPENBLAS", "PYTHON")
"""Beginnings of the names of variables that count when a process or a module is loaded."""

_AT_START = dict(os.environ)
_LIMIT_S = 150.0
_ROOT = Path(__file__).parents[1]

Done = subprocess.CompletedProcess[str]


def typed(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, umask: int = 0o022) -> Done:
    """Run one command to its end; return its exit code and what it said.

    Args:
        arguments: What is typed after ``autotune``.
        cwd: Folder where it is typed.
        env: All of its environment; None is that of the tests.
        umask: Its umask.
    """
    environ = dict(os.environ if env is None else env)
    if any(name.startswith(_INTERPRETERS) and environ.get(name) != _AT_START.get(name) for name in environ | _AT_START):
        command = [sys.executable, "-m", "autotune", *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False, umask=umask,
        )  # fmt: skip
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                streams = [one.fileno() for one in (nothing, out, err, theirs)]
                asked = json.dumps({"arguments": arguments, "cwd": os.fspath(cwd), "environ": environ, "umask": umask})
                socket.send_fds(_server()[0], [asked.encode()], streams)
            ours.settimeout(_LIMIT_S)
            pid = int(ours.recv(16))
            try:
                code = int(ours.recv(16))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["autotune", *arguments], code, out.read(), err.read())


@cache
def _server() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Start the server of these tests, which ends with them; return where it is asked, and its process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from tests.warm import serve; serve({theirs.fileno()})"],
            cwd=_ROOT,
            env={**_AT_START, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return ours, process


def serve(number: int) -> None:
    """Fork a process for each command, until nobody can ask any more."""
    import autotune

    modules = [module.name for module in pkgutil.walk_packages(autotune.__path__, "autotune.")]
    for name in (*(name for name in modules if not name.startswith(_LEFT_OUT)), *_HEAVY):
        with suppress(ModuleNotFoundError):  # a package of an extra is not everywhere
            importlib.import_module(name)
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}
    with socket.socket(fileno=number) as asks:
        while True:
            ready = select.select([asks, *running], [], [])[0]
            for ended in ready:
                if ended is not asks:
                    pid, told = running.pop(ended)
                    os.write(told, b"%16d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(told)
                    os.close(ended)
            if asks not in ready:
                continue
            asked, fds, _, _ = socket.recv_fds(asks, 1 << 20, 4)
            if not asked:
                return
            *streams, told = fds
            if (pid := os.fork()) == 0:
                break
            os.write(told, b"%16d" % pid)
            running[os.pidfd_open(pid)] = pid, told
            for fd in streams:
                os.close(fd)
    for fd in (told, *running, *(told for _, told in running.values())):
        os.close(fd)
    _begin(**json.loads(asked), streams=streams)


def _begin(arguments: list[str], cwd: str, environ: dict[str, str], umask: int, streams: list[int]) -> None:
    """Make this process one that was started with these, and run the command."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.umask(umask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments
    sys.path[0:1] = [cwd]  # as `python -m` has it
    runpy.run_module("autotune", run_name="__main__", alter_sys=True)
