"""Small trainers, mostly hostile ones: ``python trainer.py <what it does> [argument]``. Standard library only."""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["AUTOTUNE_TRIAL_DIR"])


def ready() -> None:
    """Says that the trainer has come to the point that the test is about."""
    path = FOLDER / "ready"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def trains(steps: int, status: int = 0) -> None:
    """Reports that many steps; below 0: without end."""
    with (FOLDER / f"steps.{os.getpid()}.1.jsonl").open("w", buffering=1) as file:  # .0 is the observer's
        header = {"v": 1, "pid": os.getpid(), "clock": "monotonic", "start_s": time.monotonic()}
        file.write(json.dumps({**header, "source": "test", "devices": []}) + "\n")
        done = 0
        while done != steps:
            time.sleep(0.01)
            step = {"k": "step", "t_s": time.monotonic(), "wait_s": 0.001, "samples": 8, "work": None}
            file.write(json.dumps({**step, "update": True}) + "\n")
            done += 1
    sys.exit(status)


def for_ever() -> None:
    """Goes on until it is killed."""
    while True:
        time.sleep(3600)


def silent() -> None:
    """Reports nothing and never ends."""
    ready()
    for_ever()


def stubborn() -> None:
    """Ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    silent()


def leaves(kind: str, *, then_ends: bool) -> None:
    """Leave a process that ignores SIGTERM: in this session, in a new one, or a daemon of two forks."""
    if os.fork() == 0:
        if kind != "worker":
            os.setsid()
        if kind == "daemon" and os.fork() != 0:
            os._exit(0)
        stubborn()
    while not (FOLDER / "ready").exists():
        time.sleep(0.01)
    if then_ends:
        print("done", flush=True)
        sys.exit(0)
    for_ever()


def respawns(generations: int) -> None:
    """Fork a child and end, and so does the child, faster than one can look."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    for _ in range(generations):
        if os.fork() != 0:
            os._exit(0)
    for_ever()


def prints(size: int) -> None:
    """Prints that much on both streams; below 0: without end."""
    line = b"x" * 999 + b"\n"
    os.write(1, b"the first words\n")
    os.write(2, b"the first words\n")
    done = 0
    while done != size // 1000 or size < 0:
        sys.stdout.buffer.write(line)
        sys.stderr.buffer.write(line)
        done += 1
        if done == 1000:
            ready()
    sys.stdout.buffer.flush()
    os.write(1, b"the last words\n")
    os.write(2, b"the last words\n")


def shows() -> None:
    """Writes down what it was started with."""
    about = {
        "argv": sys.argv[2:],
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2),
        "session": os.getsid(0) == os.getpid(),
        "ignored": [s.name for s in (signal.SIGINT, signal.SIGPIPE) if signal.getsignal(s) is signal.SIG_IGN],
        "config": (FOLDER / "config.yaml").read_bytes().decode(),
    }
    (FOLDER / "about.json").write_text(json.dumps(about))


def closes() -> None:
    """Closes its output and goes on for half a second of CPU time."""
    os.close(1)
    os.close(2)
    while time.process_time() < 0.5:
        pass


def uses(megabytes: int) -> None:
    """Uses memory, and 0.3 s of CPU time in a child that it leaves to others to reap."""
    child = os.fork()
    if child == 0:
        end_s = time.process_time() + 0.3
        while time.process_time() < end_s:
            pass
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    held = b"x" * (megabytes << 20)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "trains":
        trains(*map(int, rest))
    elif what in ("leaves", "leaves-and-ends"):
        leaves(rest[0], then_ends=what == "leaves-and-ends")
    elif what == "respawns":
        respawns(int(rest[0]))
    elif what == "prints":
        prints(int(rest[0]))
    elif what == "uses":
        uses(int(rest[0]))
    else:
        {"silent": silent, "stubborn": stubborn, "shows": shows, "closes": closes}[what]()
