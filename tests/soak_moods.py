"""Trainer that misbehaves in the way that its config names: ``python soak_moods.py <config>``.

For ``python -m tests.soak trainers``. Each mood does its harm once and then trains as others do, or ends.
"""

import contextlib
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
from typing import Any, NoReturn

import yaml

from autotune.trainee import step

TRIAL = Path(os.environ.get("AUTOTUNE_TRIAL_DIR", "."))
CONFIG = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("config.yaml")


def train(loss: float | None = None, step_s: float = 0.01) -> NoReturn:
    """Train for ever."""
    batch_size = yaml.safe_load(CONFIG.read_text())["data"]["batch_size"] if CONFIG.exists() else 4
    while True:
        time.sleep(step_s)
        if loss is None:
            step(samples=batch_size)
        else:
            step(samples=batch_size, loss=loss)


def forever() -> NoReturn:
    """Do nothing, for ever."""
    while True:
        time.sleep(1000)


def away(*, twice: bool = False, deaf: bool = True) -> None:
    """Leave a process behind, in a session of its own."""
    if os.fork():
        return
    os.setsid()
    if twice and os.fork():
        os._exit(0)
    if deaf:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    forever()


def nested(levels: int) -> None:
    """Make folders in folders, in the trial's own outputs."""
    logs = Path(yaml.safe_load(CONFIG.read_text())["out"]["log_dir"])
    logs.mkdir(parents=True, exist_ok=True)
    folder = os.open(logs, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("deeper", dir_fd=folder)
        below = os.open("deeper", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)


def many_files(where: str, count: int) -> None:
    """Make files beside the config, in one folder that was there before."""
    for number in range(count):
        with open(os.path.join(where, f"{os.getpid()}-{number}.npy"), "w"):
            pass


def in_folders(count: int, each: int) -> None:
    """Make files in folders of the trial's outputs."""
    for number in range(count):
        folder = TRIAL / "outputs" / f"{os.getpid()}-{number}"
        folder.mkdir()
        many_files(str(folder), each)


def many_pipes(count: int) -> None:
    """Make FIFOs in the trial's outputs."""
    for number in range(count):
        os.mkfifo(TRIAL / "outputs" / f"{os.getpid()}-{number}")


def stuck(command: list[str]) -> None:
    """Make something in the trial's outputs that is not deleted, by a program that may not be allowed to."""
    place = TRIAL / "outputs" / "stuck"
    place.mkdir()
    (place / "file").write_text("x")
    subprocess.run([*command, str(place)], check=False, capture_output=True)
    if os.path.ismount(place):
        os.chdir(place)


def replaced(path: Path, make: Callable[[Path], Any]) -> None:
    """Put something else in the place of a file."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        make(path)


def pipes() -> None:
    """Put FIFOs in place of all files of a trial that are read."""
    for name in ("stdout.log", "stderr.log", "imports.jsonl", "unfit.txt", "result.json", "zygote.log"):
        replaced(TRIAL / name, os.mkfifo)


def forged(shift_s: float) -> None:
    """Forge a stream of steps at other times."""
    with open(TRIAL / "steps.1.0.jsonl", "w") as file:
        now_s = time.monotonic() + shift_s
        file.write(json.dumps({"v": 1, "pid": 1, "clock": "monotonic", "start_s": now_s, "source": "x"}) + "\n")
        for number in range(10_000):
            file.write(json.dumps({"k": "step", "t_s": now_s + number, "samples": 1e9}) + "\n")


def garbage() -> None:
    """Write steps that are none."""
    for number in range(20):
        (TRIAL / f"steps.{number}.0.jsonl").write_bytes(os.urandom(200_000) + b"\n" + b"[" * 100_000 + b"\n{}\nnull\n")


def huge() -> None:
    """Write one line that does not end, and then many."""
    with open(TRIAL / "steps.9.0.jsonl", "wb") as file:
        file.write(b'{"k": "step", "t_s": ')
        for _ in range(200):
            file.write(b"1" * (1 << 20))


def spam() -> NoReturn:
    """Write steps as fast as they can be written."""
    with open(TRIAL / f"steps.{os.getpid()}.7.jsonl", "w", buffering=1) as file:
        file.write(
            json.dumps({"v": 1, "pid": os.getpid(), "clock": "monotonic", "start_s": time.monotonic(), "source": "x"})
            + "\n"
        )
        while True:
            file.write(f'{{"k": "step", "t_s": {time.monotonic()}, "samples": 1}}\n')


def fill_stdout() -> None:
    """Print a gigabyte of text."""
    for _ in range(1000):
        os.write(1, b"x" * 999_999 + b"\n")


def binary() -> None:
    """Print what no terminal should see."""
    os.write(1, os.urandom(1 << 20) + b"\x1b]0;gone\x07\x1b[2J")
    os.write(2, os.urandom(1 << 20) + b"\x1b[31m\x1b[2J")


def eat_memory() -> NoReturn:
    """Allocate all memory up to a limit of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    held = []
    while True:
        held.append(bytearray(16 << 20))


def crowd() -> None:
    """Start two hundred processes."""
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(1e6)


def kill_parent() -> None:
    """Kill the guard."""
    os.kill(os.getppid(), signal.SIGKILL)


def daemonise() -> None:
    """Go on as a daemon; the process that was started ends."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")


def own_limits() -> None:
    """Limit its own file sizes and open files."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def journal() -> None:
    """Append half a line to the study's record."""
    for path in TRIAL.parents[2].glob("studies/*.journal"):
        with path.open("ab") as file:
            file.write(b'{"op_code": 4, "hello": ')


def segfault() -> None:
    """End by a signal."""
    ctypes.string_at(0)


MOODS: dict[str, Callable[[], Any]] = {
    "hangs at the start": forever,
    "ignores SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "forks away with setsid": away,
    "double forks": lambda: away(twice=True),
    "writes 20,000 files beside": lambda: many_files("features", 20_000),
    "writes 20,000 files in outputs": lambda: many_files(str(TRIAL / "outputs"), 20_000),
    "200,000 files in outputs": lambda: many_files(str(TRIAL / "outputs"), 200_000),
    "200,000 files in 2,000 folders": lambda: in_folders(2000, 100),
    "200,000 temporary files": lambda: many_files(os.environ["TMPDIR"], 200_000),
    "20,000 pipes in outputs": lambda: many_pipes(20_000),
    "a file that nobody may delete": lambda: stuck(["chattr", "-R", "+i"]),
    "a busy mount in outputs": lambda: stuck(["mount", "-t", "tmpfs", "none"]),
    "nests 3,000 folders in outputs": lambda: nested(3000),
    "fills stdout": fill_stdout,
    "prints binary": binary,
    "closes stdout": lambda: (os.close(1), os.close(2)),
    "pipes in place of its logs": pipes,
    "deletes its folder": lambda: shutil.rmtree(TRIAL, ignore_errors=True),
    "locks its folder": lambda: TRIAL.chmod(0),
    "renames its folder": lambda: TRIAL.rename(TRIAL.with_name("elsewhere")),
    "loss is NaN": lambda: train(loss=float("nan")),
    "garbage steps": garbage,
    "a huge line of steps": huge,
    "steps of the future": lambda: forged(1e6),
    "steps of the past": lambda: forged(-1e6),
    "kills its guard": kill_parent,
    "stops itself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "eats memory": eat_memory,
    "200 processes": crowd,
    "becomes another program": lambda: os.execvp("sleep", ["sleep", "1000000"]),
    "ends at once": lambda: os._exit(0),
    "exits 3": lambda: sys.exit(3),
    "segfaults": segfault,
    "raises": lambda: 1 / 0,
    "deletes its config": lambda: CONFIG.unlink(),
    "rewrites its config": lambda: CONFIG.write_text("data: {batch_size: 7}\n\x00"),
    "stderr.log is a link": lambda: replaced(TRIAL / "stderr.log", lambda path: path.symlink_to("/etc/passwd")),
    "tears the journal": journal,
    "writes over a checkpoint": lambda: Path("model.ckpt").write_bytes(os.urandom(1000)),
    "a pipe in place of a checkpoint": lambda: replaced(Path("model.ckpt"), os.mkfifo),
    "elsewhere": lambda: os.chdir("/"),
    "closes all files": lambda: os.closerange(3, 4096),
    "spams steps": spam,
    "silent for 8 s": lambda: time.sleep(8),
    "another name": lambda: ctypes.CDLL(None).prctl(15, b"systemd", 0, 0, 0),
    "a daemon": daemonise,
    "empty steps": lambda: (TRIAL / "steps.5.0.jsonl").touch(),
    "own limits": own_limits,
    "no environment": lambda: os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(1e6)"], {}),
    "a shell with a child": lambda: subprocess.run(["sh", "-c", "sleep 1000000; true"], check=False),
}

if __name__ == "__main__":
    MOODS[yaml.safe_load(CONFIG.read_text())["mood"]]()
    train()
