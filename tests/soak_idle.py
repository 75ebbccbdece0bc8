"""Idle machines at length: ``python -m tests.soak idle [timelines|leaving|cost]``, all three without a name.

``timelines`` plays timelines from seeds in virtual time, on the fake driver, and counts the starts that should not have
been. ``leaving`` lets strangers come to real searches, and measures until their last process is gone. ``cost`` measures
the watch of the machine, on one fake GPU and on eight.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from autotune.daemon.idleness import IdlePolicy
from tests.daemon.idle.machines import played, staged
from tests.daemon.idle.timelines import LENGTH_S
from tests.fake_nvml.library import FakeGpu, build
from tests.fake_nvml.scenario import Gpu, Scenario

STRANGERS = ("gpu", "cpu")
MOODS = ("", "ignores SIGTERM", "forks away")
LATEST_S = 3.0
MEDIAN_S = 1.5

# Looks as the daemon does, at its pace, and says what that took; the first looks open the driver.
WATCH = """
import json, os, sys, time
from autotune.clock import SystemClock
from autotune.daemon.idleness import Idleness
from autotune.daemon.machine_watch import MachineWatch
pace_s, looks, clock = float(sys.argv[1]), int(sys.argv[2]), SystemClock()
watch, idleness = MachineWatch(clock), Idleness()
for _ in range(3):
    idleness.update(watch.read())
    clock.wait(0.6)
cpu_s, began_s = time.process_time(), time.monotonic()
for _ in range(looks):
    reading = watch.read()
    idleness.update(reading)
    clock.wait(pace_s)
used = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
heavy = sorted({"numpy", "optuna", "rich", "yaml"} & set(sys.modules))
print(json.dumps([len(reading.gpus), used, int(peak) / 1024, heavy]))
os._exit(0)
"""


def timelines(library: Path, folder: Path, *, count: int, jobs: int) -> bool:
    """Play timelines; return whether none had a wrong start."""

    def one(seed: int) -> dict[str, Any]:
        place = folder / f"timeline {seed}"
        place.mkdir()
        return played(library, place, seed)

    with ThreadPoolExecutor(jobs) as threads:
        outcomes = list(threads.map(one, range(count)))
    starts = sum(len(outcome["starts_s"]) for outcome in outcomes)
    wrong = [(seed, *start) for seed, outcome in enumerate(outcomes) for start in outcome["wrong"]]
    for_nobody = [(seed, *one) for seed, outcome in enumerate(outcomes) for one in outcome["left_for_nobody"]]
    came = [one for outcome in outcomes for one in outcome["leavings"]]
    missed_s = sum(outcome["missed_s"] for outcome in outcomes)
    print(f"{count} timelines of {LENGTH_S / 60:.0f} min: {starts} starts, that should not be: {len(wrong)} {wrong}")
    print(f"searches that left for nobody: {len(for_nobody)} {for_nobody}")
    print(f"idle machine left unused: {missed_s / max(starts, 1):.1f} s a start")
    for kind in sorted({one["kind"] for one in came}):
        noticed_s = [one["noticed_s"] - one["came_s"] for one in came if one["kind"] == kind]
        print(f"  {kind}: {_spread(noticed_s)} until it was noticed")
    gone_s = [one["gone_s"] - one["came_s"] for one in came]
    print(f"from arrival to the last process gone, with stops drawn from measured ones: {_spread(gone_s)}")
    return not wrong and not for_nobody and max(gone_s, default=0.0) <= LATEST_S


def leaving(library: Path, folder: Path, *, times: int, niceness: int) -> bool:
    """Let strangers come to real searches; return whether these were gone in time."""
    gone_s: list[float] = []
    left = 0
    for stranger in STRANGERS:
        for mood in MOODS:
            outcomes = []
            for number in range(times):
                place = folder / f"{stranger} {mood} {number}"
                place.mkdir()
                # Strangers come at all moments of a trial, and between two of them.
                after_s = 0.37 * number % 3.0
                outcomes.append(
                    staged(library, place, stranger=stranger, mood=mood, after_s=after_s, niceness=niceness)
                )
            left += sum(len(one["left"]) for one in outcomes)
            gone_s += [one["gone_s"] for one in outcomes if one["gone_s"] is not None]
            noticed_s = [one["noticed_s"] for one in outcomes if one["noticed_s"] is not None]
            print(
                f"  {stranger}, trainer that {mood or 'behaves'}: noticed {_spread(noticed_s)}, then gone "
                f"{_spread([one['left_s'] for one in outcomes])}, SIGKILL {sum(one['killed'] for one in outcomes)}",
                flush=True,
            )
    print(f"from arrival to the last process gone: {_spread(gone_s)}; processes left: {left}")
    return not left and max(gone_s) <= LATEST_S and median(gone_s) <= MEDIAN_S


def cost(library: Path, folder: Path, *, seconds: float) -> bool:
    """Measure the watch; return whether it is cheap enough."""
    policy, good = IdlePolicy(), True
    for gpus in (1, 8):
        place = folder / f"{gpus} GPUs"
        place.mkdir()
        machine = FakeGpu(library, place, Scenario(gpus=(Gpu(),) * gpus), at_s=None, began_s_ago=30.0)
        for name, pace_s in (("idle", policy.look_s), ("close", policy.close_look_s)):
            looks = max(2, round(seconds / pace_s))
            done = subprocess.run(
                [sys.executable, "-c", WATCH, str(pace_s), str(looks)],
                env=machine.env,
                stdout=subprocess.PIPE,
                check=True,
            )
            seen, used, peak_mib, heavy = json.loads(done.stdout)
            print(
                f"{seen} GPUs, looked at every {pace_s:g} s ({name}): {used:.3%} of a core, {peak_mib:.0f} MiB {heavy}"
            )
            good = good and peak_mib <= 80.0 and not heavy and (name != "idle" or used <= 0.005)
    return good


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "never"
    return f"{len(values)} times, median {median(values):.2f} s, worst {max(values):.2f} s"


def main(arguments: Sequence[str]) -> int:
    """Run one of them, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak idle", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("timelines", "leaving", "cost"))
    parser.add_argument("--timelines", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--times", type=int, default=8, help="of each stranger and trainer (default: 8)")
    parser.add_argument("--niceness", type=int, default=0, help="of the searches; below 0 on a machine that is in use")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which the watch is measured (default: 60)")
    options = parser.parse_args(arguments)
    good = True
    # In memory: the clock of the fake driver is a file, which is written a thousand times for each timeline.
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="autotune soak ", dir=place) as name:
        folder = Path(name)
        library = folder / "libnvidia-ml.so.1"
        build(library)
        if options.part in (None, "timelines"):
            good &= timelines(library, folder, count=options.timelines, jobs=options.jobs)
        if options.part in (None, "leaving"):
            good &= leaving(library, folder, times=options.times, niceness=options.niceness)
        if options.part in (None, "cost"):
            good &= cost(library, folder, seconds=options.seconds)
    return 0 if good else 1
