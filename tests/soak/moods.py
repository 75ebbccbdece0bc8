"""Trainer that misbehaves in the way that its config names: ``python moods.py <config>``.

For ``python -m tests.soak hostile``. Each mood does its harm once and then trains as others do, or ends.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from autotune.trainee import step

TRIAL = Path(os.environ.get("AUTOTUNE_TRIAL_DIR", "."))
OUTPUTS = TRIAL / "outputs"
CONFIG = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("config.yaml")


def _forever(*_: object) -> None:
    while True:
        time.sleep(1000)


def _train(**what: float) -> None:
    batch_size = yaml.safe_load(CONFIG.read_text())["data"]["batch_size"] if CONFIG.exists() else 4
    while True:
        time.sleep(0.01)
        step(samples=batch_size, **what)


def _away(*, twice: bool = False) -> None:
    """Leave a process behind, in a session of its own, that hears no signal."""
    if os.fork():
        return
    os.setsid()
    if twice and os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _forever()


def _daemonise() -> None:
    """Go on as a daemon; the process that was started ends."""
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
    os.chdir("/")


def _files(where: str | Path, count: int, folders: int = 0) -> None:
    for folder in [Path(where) / f"{os.getpid()}-{number}" for number in range(folders)] or [Path(where)]:
        folder.mkdir(exist_ok=True)
        for number in range(count):
            with open(folder / f"{os.getpid()}-{number}.npy", "w"):
                pass


def _stuck(*command: str) -> None:
    """Make something that is not deleted, by a program that may not be allowed to."""
    place = OUTPUTS / "stuck"
    place.mkdir()
    (place / "file").write_text("x")
    subprocess.run([*command, str(place)], check=False, capture_output=True)
    if os.path.ismount(place):
        os.chdir(place)


def _steps(name: str, start_s: float, lines: int | None = None) -> None:
    """Write a stream of steps, as fast as it can be written."""
    with open(TRIAL / f"steps.{name}.jsonl", "w", buffering=1) as file:
        head = {"v": 1, "pid": os.getpid(), "clock": "monotonic", "start_s": start_s, "source": "x"}
        file.write(json.dumps(head) + "\n")
        number = 0
        while number != lines:
            t_s = time.monotonic() if lines is None else start_s + number
            file.write(json.dumps({"k": "step", "t_s": t_s, "samples": 1 if lines is None else 1e9}) + "\n")
            number += 1


def _print(text: bytes, times: int = 1) -> None:
    for _ in range(times):
        os.write(1, text)
        os.write(2, text[:1000])


def _eat_memory() -> None:
    """Allocate all memory up to a limit of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    held = []
    while True:
        held.append(bytearray(16 << 20))


def _append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


_GARBAGE = os.urandom(200_000) + b"\n" + b"[" * 100_000 + b"\n{}\nnull\n"
_SLEEP = "import time; time.sleep(1e6)"
MOODS: dict[str, Callable[[], Any]] = {
    "hangs at the start": _forever,
    "writes no step": lambda: [time.sleep(0.01) for _ in iter(int, 1)],
    "silent for 8 s": lambda: time.sleep(8),
    "ignores SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "forks away with setsid": _away,
    "double forks": lambda: _away(twice=True),
    "a daemon": _daemonise,
    "200 processes": lambda: [os.fork() or _forever() for _ in range(200)],
    "a shell with a child": lambda: subprocess.run(["sh", "-c", "sleep 1000000; true"], check=False),
    "becomes another program": lambda: os.execvp("sleep", ["sleep", "1000000"]),
    "no environment": lambda: os.execve(sys.executable, [sys.executable, "-c", _SLEEP], {}),
    "another name": lambda: ctypes.CDLL(None).prctl(15, b"systemd", 0, 0, 0),
    "kills its guard": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "stops itself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "writes 20,000 files beside": lambda: _files("features", 20_000),
    "200,000 files in outputs": lambda: _files(OUTPUTS, 200_000),
    "200,000 files in 2,000 folders": lambda: _files(OUTPUTS, 100, folders=2000),
    "200,000 temporary files": lambda: _files(os.environ["TMPDIR"], 200_000),
    "a file that nobody may delete": lambda: _stuck("chattr", "-R", "+i"),
    "a busy mount in outputs": lambda: _stuck("mount", "-t", "tmpfs", "none"),
    "fills stdout": lambda: _print(b"x" * 999_999 + b"\n", times=1000),
    "prints binary": lambda: _print(b"\x1b]0;gone\x07\x1b[31m\x1b[2J" + os.urandom(1 << 20)),
    "closes stdout": lambda: (os.close(1), os.close(2)),
    "closes all files": lambda: os.closerange(3, 4096),
    "deletes its folder": lambda: shutil.rmtree(TRIAL, ignore_errors=True),
    "locks its folder": lambda: TRIAL.chmod(0),
    "renames its folder": lambda: TRIAL.rename(TRIAL.with_name("elsewhere")),
    "elsewhere": lambda: os.chdir("/"),
    "deletes its config": lambda: CONFIG.unlink(),
    "rewrites its config": lambda: CONFIG.write_text("data: {batch_size: 7}\n\x00"),
    "tears the journal": lambda: [
        _append(path, b'{"op_code": 4, ') for path in TRIAL.parents[2].glob("studies/*.journal")
    ],
    "writes over a checkpoint": lambda: Path("model.ckpt").write_bytes(os.urandom(1000)),
    "loss is NaN": lambda: _train(loss=float("nan")),
    "garbage steps": lambda: [(TRIAL / f"steps.{n}.0.jsonl").write_bytes(_GARBAGE) for n in range(20)],
    "empty steps": lambda: (TRIAL / "steps.5.0.jsonl").touch(),
    "a huge line of steps": lambda: (TRIAL / "steps.9.0.jsonl").write_bytes(
        b'{"k": "step", "t_s": ' + b"1" * (200 << 20)
    ),
    "steps of the future": lambda: _steps("1.0", time.monotonic() + 1e6, 10_000),
    "steps of the past": lambda: _steps("1.0", time.monotonic() - 1e6, 10_000),
    "spams steps": lambda: _steps(f"{os.getpid()}.7", time.monotonic()),
    "eats memory": _eat_memory,
    "own limits": lambda: (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)),
    ),
    "ends at once": lambda: os._exit(0),
    "exits 3": lambda: sys.exit(3),
    "raises": lambda: 1 / 0,
    "segfaults": lambda: ctypes.string_at(0),
}

if __name__ == "__main__":
    MOODS[yaml.safe_load(CONFIG.read_text())["mood"]]()
    _train()
