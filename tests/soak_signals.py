"""``python -m tests.soak json-under-signals``: ^C, ^C^C and SIGTERM at several moments after the start of a command.

Searches and asks for the status with ``--json``, sends the signals, and prints for each what came of it: the exit code,
how many objects were on stdout, and what was left running. Wrong usage is asked for as well. ``--times N`` also sends
two signals to N searches at random moments: half of them as they are, with at most a quarter of a second between the
two, half so that the second one ends the search by force, at once.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.commands.conftest import CONFIG, TRAINER
from tests.commands.test_json_under_signals import listens
from tests.commands.test_search import left_running

DELAYS_S = (0.1, 0.5, 2.0)
SIGNALS = {
    "^C": (signal.SIGINT,),
    "^C^C": (signal.SIGINT, signal.SIGINT),
    "SIGTERM": (signal.SIGTERM,),
}
CODES = {"^C": 130, "^C^C": 130, "SIGTERM": 143}
SEARCH = ("search", "--config", "config.yaml", "--budget", "6s", "--json")
WRONG = (["search", "--json"], ["search", "--json", "--budget", "x"], ["status", "--colour", "--json"], ["--json"])


def main(arguments: Sequence[str]) -> int:
    """Run all of them; 0 if each gave exactly one object and the right exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak json-under-signals", description=__doc__)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a script ignores ^C
    project = Path(tempfile.mkdtemp(prefix="autotune soak "))
    (project / "config.yaml").write_text(CONFIG % TRAINER)
    good = True
    print(f"{'command':<32} {'signal':<8} {'after':>6} {'exit':>5} {'objects':>8}  left running")
    for command in ("search", "status"):
        for name, numbers in SIGNALS.items():
            for delay_s in DELAYS_S:
                code, objects = _run(project, [command, "--config", "config.yaml", "--json"], numbers, delay_s)
                left = left_running(project)
                print(f"{command:<32} {name:<8} {delay_s:4.1f} s {code:>5} {objects:>8}  {left or 'nothing'}")
                # The status may have been told before the signal came.
                codes = {CODES[name]} if command == "search" else {CODES[name], 0, 1}
                good = good and objects == 1 and code in codes and not left
    for arguments in WRONG:
        code, objects = _run(project, arguments, (), 0.0)
        print(f"{' '.join(arguments):<32} {'-':<8} {'-':>6} {code:>5} {objects:>8}  nothing")
        good = good and (code, objects) == (2, 1)
    good = at_random(project, asked.times, random.Random(asked.seed)) and good
    shutil.rmtree(project)
    return 0 if good else 1


def at_random(project: Path, times: int, rng: random.Random) -> bool:
    """Send two signals each to searches at random moments; print how they ended."""
    ends, bad = Counter[str](), 0
    for number in range(times):
        name, is_forced = rng.choice(list(SIGNALS)), number % 2 == 1
        first = SIGNALS[name][0]
        shutil.rmtree(project / ".autotune", ignore_errors=True)
        with _start(project, SEARCH, 0.0 if is_forced else 5.0) as process:
            listens(process)
            threading.Event().wait(rng.choice((rng.uniform(0.0, 1.5), rng.uniform(1.0, 7.0))))
            process.send_signal(first)
            threading.Event().wait(rng.uniform(0.0, 0.25))
            process.send_signal(rng.choice((signal.SIGINT, signal.SIGTERM)))
            said, aside = process.communicate(timeout=120)
        objects, left = _objects(said), left_running(project)
        kind = json.loads(said).get("verdict") or "error" if objects == 1 else f"{objects} objects"
        ends[f"{'by force' if is_forced else 'in order'}, exit {process.returncode}, {kind}"] += 1
        # The second one may come while the first is answered, and ends it by force in the middle of that.
        is_answered = objects == 1 or (is_forced and objects == 0)
        if "Traceback" in aside + said or left or not is_answered or process.returncode not in (0, 1, *CODES.values()):
            bad += 1
            print(
                f"number {number}, {name}: exit {process.returncode}, {objects} objects, left {left}\n{aside[-2000:]}"
            )
    for end, count in sorted(ends.items()):
        print(f"{count:5}  {end}")
    if times:
        print(f"{times} searches with two signals at random moments, {bad} not as they should be")
    return not bad


def _start(project: Path, arguments: Sequence[str], insisting_s: float) -> "subprocess.Popen[str]":
    """Start a command which a later signal ends by force after so long."""
    code = (
        "import sys; from autotune.trial import termination; from autotune.__main__ import main; "
        f"termination.INSISTING_S = {insisting_s}; sys.argv[1:] = {list(arguments)!r}; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(project: Path, arguments: Sequence[str], numbers: Sequence[signal.Signals], delay_s: float) -> tuple[int, int]:
    """Run a command under signals; return its exit code and the number of objects on stdout."""
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if numbers:
            threading.Event().wait(delay_s)  # the moment is what is looked at here
        for number in numbers:
            process.send_signal(number)
        said, aside = process.communicate(timeout=120)
    if "Traceback" in aside:
        print(aside)
    return process.returncode, _objects(said)


def _objects(said: str) -> int:
    """Count the JSON objects of which a text consists; -1 if there is anything else in it."""
    decoder, position, count = json.JSONDecoder(), 0, 0
    while position < len(said.rstrip()):
        try:
            found, position = decoder.raw_decode(said, position)
        except ValueError:
            return -1
        position += len(said[position:]) - len(said[position:].lstrip())
        count += isinstance(found, dict)
    return count
