"""Measurements: idle machines, trainings that are watched, two stages on one device, warm imports."""

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import psutil
import yaml

from autotune.clock import SystemClock
from autotune.daemon.home import open_home
from autotune.daemon.idleness import IdlePolicy
from autotune.daemon.trainings import MachineReader, TrainingEvent, Trainings
from autotune.measure.statistics import student_t_quantile
from autotune.records import TrialPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner, Runner
from autotune.trial.warm import ZygoteRunner
from tests.daemon.idle.machines import played, staged
from tests.daemon.idle.timelines import LENGTH_S
from tests.fake_nvml.library import FakeGpu, build
from tests.fake_nvml.scenario import Gpu, Scenario
from tests.soak.harness import AUTOTUNE, REPOSITORY, Result, Soak, check

_LATEST_S, _MEDIAN_S = 3.0, 1.5  # from a stranger's arrival to the last process of the search gone
_CONFIG = REPOSITORY / "configs" / "config.yaml"

# Idle machines

# Looks as the daemon does, at its pace, and says what that took; the first looks open the driver.
_WATCH = """
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


@check(
    cases=("timelines", "leaving", "cost"),
    options={"--timelines": 100, "--visits": 8, "--niceness": 0, "--seconds": 60.0, "--jobs": 1},
    in_memory=True,
)
def idle(soak: Soak) -> Iterator[Result]:
    """Idle machines: when searches start, how fast they leave, and what the watch costs.

    Timelines from seeds in virtual time, on the fake driver; --visits of strangers to real searches; the watch of
    one GPU and of eight.
    """
    library = soak.folder / "libnvidia-ml.so.1"
    build(library)
    for case in soak.cases:
        yield from {"timelines": _timelines, "leaving": _leaving, "cost": _cost}[case](soak, library)


def _timelines(soak: Soak, library: Path) -> Iterator[Result]:
    """Play timelines in virtual time, on the fake driver."""
    count = soak.options.timelines
    outcomes = list(soak.map(lambda seed: played(library, soak.place(), seed), range(count)))
    starts = sum(len(outcome["starts_s"]) for outcome in outcomes)
    came = [one for outcome in outcomes for one in outcome["leavings"]]
    unused_s = sum(outcome["missed_s"] for outcome in outcomes) / max(starts, 1)
    for kind in sorted({one["kind"] for one in came}):
        noticed_s = [one["noticed_s"] - one["came_s"] for one in came if one["kind"] == kind]
        yield Result(f"  {kind}: {_spread(noticed_s)} until it was noticed")
    gone_s = [one["gone_s"] - one["came_s"] for one in came]
    yield Result(
        f"{count} timelines of {LENGTH_S / 60:.0f} min: {starts} starts, {unused_s:.1f} s of an idle machine unused "
        f"before each; from arrival to the last process gone, with stops drawn from measured ones: {_spread(gone_s)}",
        *(f"start that should not be, seed {seed}: {bad}" for seed, one in enumerate(outcomes) for bad in one["wrong"]),
        *(
            f"left for nobody, seed {seed}: {bad}"
            for seed, one in enumerate(outcomes)
            for bad in one["left_for_nobody"]
        ),
        max(gone_s, default=0.0) > _LATEST_S and "gone too late",
    )


def _leaving(soak: Soak, library: Path) -> Iterator[Result]:
    """Let strangers come to real searches, at all moments of a trial, and between two of them."""
    gone_s: list[float] = []
    for stranger in ("gpu", "cpu"):
        for mood in ("", "ignores SIGTERM", "forks away"):
            how = {"stranger": stranger, "mood": mood, "niceness": soak.options.niceness}
            outcomes = [
                staged(library, soak.place(), after_s=0.37 * number % 3.0, **how)
                for number in range(soak.options.visits)
            ]
            noticed_s, left_s = (
                [one[key] for one in outcomes if one[key] is not None] for key in ("noticed_s", "left_s")
            )
            gone_s += [one["gone_s"] for one in outcomes if one["gone_s"] is not None]
            yield Result(
                f"  {stranger}, trainer that {mood or 'behaves'}: noticed {_spread(noticed_s)}, then gone "
                f"{_spread(left_s)}, SIGKILL {sum(one['killed'] for one in outcomes)}",
                *(f"left: {one['left']}" for one in outcomes if one["left"]),
            )
    late = max(gone_s) > _LATEST_S or median(gone_s) > _MEDIAN_S
    yield Result(f"from arrival to the last process gone: {_spread(gone_s)}", late and "too late")


def _cost(soak: Soak, library: Path) -> Iterator[Result]:
    """Measure the watch of the machine."""
    policy = IdlePolicy()
    for gpus in (1, 8):
        machine = FakeGpu(library, soak.place(), Scenario(gpus=(Gpu(),) * gpus), at_s=None, began_s_ago=30.0)
        for name, pace_s in (("idle", policy.look_s), ("close", policy.close_look_s)):
            looks = str(max(2, round(soak.options.seconds / pace_s)))
            said = subprocess.check_output([sys.executable, "-c", _WATCH, str(pace_s), looks], env=machine.env)
            seen, used, peak_mib, heavy = json.loads(said)
            yield Result(
                f"{seen} GPUs, looked at every {pace_s:g} s ({name}): {used:.3%} of a core, {peak_mib:.0f} MiB",
                peak_mib > 80.0 and "more than 80 MiB",
                heavy and f"imported: {heavy}",
                name == "idle" and used > 0.005 and "more than half a percent of a core",
            )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "never"
    return f"{len(values)} times, median {median(values):.2f} s, worst {max(values):.2f} s"


# Trainings that are watched


def _tts_config(folder: Path, **changes: dict[str, object]) -> Path:
    """Write the shipped config with outputs of its own, and a training that goes on until it is ended."""
    content = yaml.safe_load(_CONFIG.read_text())
    content["data"]["dataset_path"] = str(REPOSITORY / content["data"]["dataset_path"])
    content["training"].update(checkpoint_dir=str(folder / "checkpoints"), checkpoint_every_steps=0, epochs=1_000_000)
    for section, values in changes.items():
        content[section].update(values)
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return folder / "config.yaml"


@check(options={"--before": 420.0, "--most": 900.0, "--hogs": 2, "--pairs": 0, "--steps": 120})
def drift(soak: Soak) -> Iterator[Result]:
    """A real training with --watch while busy processes come and go; with --pairs what being watched costs.

    Needs the data of `python -m autotune.workloads.tts.corpus --out data/quickstart`.
    """
    options = soak.options
    yield from _pairs_of_trainings(soak) if options.pairs else _hogs_beside(soak)


def _trained(soak: Soak, *options: str, out: int) -> tuple["subprocess.Popen[Any]", Path]:
    """Start a training; what it says of errors is shown."""
    folder = soak.place()
    words = (*AUTOTUNE, "run", "--config", str(_tts_config(folder)), *options)
    env = {"AUTOTUNE_DAEMON_DIR": str(folder / "state")}
    return soak.start(REPOSITORY, *words, env=env, stdout=out, stderr=None), folder


def _hogs_beside(soak: Soak) -> Iterator[Result]:
    """Train, disturb, and leave alone again."""
    training, folder = _trained(soak, "--watch", out=subprocess.DEVNULL)
    trainings = Trainings(open_home({"AUTOTUNE_DAEMON_DIR": str(folder / "state")}).trainings, SystemClock())
    machine, began_s = MachineReader(SystemClock()), time.monotonic()
    told: list[TrainingEvent] = []

    def said(text: str) -> Result:
        return Result(f"[{(time.monotonic() - began_s) / 60:5.1f} min] {text}")

    def follow(most_s: float, kind: str = "") -> Iterator[Result]:
        over_s = time.monotonic() + most_s
        while time.monotonic() < over_s and training.poll() is None:
            for event in trainings.poll(machine):
                told.append(event)
                yield said(event["message"])
                if event["event"] == kind:
                    return
            threading.Event().wait(1.0)

    yield from follow(soak.options.before)
    before = len(told)
    hogs = [soak.start(folder, sys.executable, "-c", "while True: pass") for _ in range(soak.options.hogs)]
    yield said(f"{len(hogs)} busy processes come")
    yield from follow(soak.options.most, "slower")
    for hog in hogs:
        hog.kill()
    yield said("they are gone")
    yield from follow(soak.options.most, "recovered")
    slower = [event for event in told[before:] if event["event"] == "slower"]
    cause = slower[0]["cause"]["kind"] if slower and slower[0]["cause"] else "not named"
    recovered = any(event["event"] == "recovered" for event in told)
    machine.close()
    ended = training.poll() is not None and f"the training has ended, exit {training.returncode}"
    yield Result(f"cause: {cause}", ended, not slower and "no alarm", not recovered and "no word of the recovery")


def _pairs_of_trainings(soak: Soak) -> Iterator[Result]:
    """Train with and without being watched in turns; compare the speeds, and the CPU time of a step."""
    speeds, works, steps = [], [], str(soak.options.steps)
    for pair in range(soak.options.pairs):
        made: dict[bool, tuple[float, float]] = {}
        for watched in (True, False) if pair % 2 else (False, True):
            typed = ["--", "{python}", "-m", "autotune.workloads.tts", "--config", "{config}", "--steps", steps]
            training, _ = _trained(soak, *(["--watch"] if watched else []), *typed, out=subprocess.PIPE)
            times, process = {}, psutil.Process(training.pid)
            for line in training.stdout or ():
                if match := re.match(rb"step (\d+) ", line):
                    times[int(match[1])] = time.monotonic(), sum(process.cpu_times()[:2])
            begin, end, many = times[20], times[max(times)], max(times) - 20
            made[watched] = (end[0] - begin[0]) / many, (end[1] - begin[1]) / many
        speeds.append(math.log(made[False][0] / made[True][0]))
        works.append(math.log(made[True][1] / made[False][1]))
        each = (f"{name}: {1 / s:.2f} steps/s, {cpu_s:.3f} s of CPU each" for name, (s, cpu_s) in
                (("alone", made[False]), ("watched", made[True])))  # fmt: skip
        yield Result(f"pair {pair}: {'; '.join(each)}")
    yield Result(f"CPU time of a step, watched over alone: {_interval(works)[1]}")
    high, text = _interval(speeds)
    yield Result(f"speed, watched over alone: {text}", high < 1.0 and "being watched costs something")


def _interval(ln_ratios: Sequence[float]) -> tuple[float, str]:
    """Return the upper end of the 95 % interval (t) of the mean of ln ratios, and all of it in words, as ratios."""
    mean, half = fmean(ln_ratios), math.inf
    if len(ln_ratios) > 1:
        half = student_t_quantile(0.975, len(ln_ratios) - 1) * stdev(ln_ratios) / math.sqrt(len(ln_ratios))
    low, high = math.exp(mean - half), math.exp(mean + half)
    return high, f"{math.exp(mean):.3f} (95 %: {low:.3f} to {high:.3f})"


# Two stages on one device


@check(options={"--data": Path, "--pairs": 6, "--steps": 100})
def one_device(soak: Soak) -> Iterator[Result]:
    """What two stages cost on one CPU, where there is nothing to gain.

    Against the plain pipeline, each training a process, and against spectrograms of whole batches in a tf.data map.
    --data is laid out like LJSpeech.
    """
    data, pairs, ratios = soak.options.data.resolve(), soak.options.pairs, []
    for pair in range(pairs):
        speeds = {two: _clips_per_s(soak, data, two_stages=two) for two in _order(pair)}
        ratios.append(math.log(speeds[True] / speeds[False]))
        yield Result(f"plain {speeds[False]:.1f}, two stages {speeds[True]:.1f} clips/s")
    yield Result(f"two stages over the plain pipeline: {_interval(ratios)[1]}")
    time_of, times_s = _blocks(data), list[dict[bool, float]]()
    time_of(True)
    for pair in range(2 * pairs):
        times_s.append({two: time_of(two) for two in _order(pair)})
    yield Result(f"the same in a map: {_interval([math.log(one[False] / one[True]) for one in times_s])[1]}")


def _order(pair: int) -> tuple[bool, bool]:
    return (True, False) if pair % 2 else (False, True)


def _clips_per_s(soak: Soak, data: Path, *, two_stages: bool) -> float:
    """Return the speed of one training, after its warm-up."""
    folder, padded = (
        soak.place(),
        {"dataset_path": str(data), "pad_to_fixed_length": True, "use_tf_native_loading": True},
    )
    stages = {"runtime": {"logical_cpu_devices": 1}} if two_stages else {}
    config = _tts_config(folder, data={**padded, **({"data_gpu": 0, "model_gpu": 0} if two_stages else {})}, **stages)
    words = ("-m", "autotune.workloads.tts", "--config", str(config), "--steps", str(soak.options.steps))
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return 1.0 / fmean(1.0 / float(found) for found in re.findall(r"([0-9.]+) clips/s", done.stdout)[3:])


def _blocks(data: Path) -> Callable[[bool], float]:
    """Return what trains a block of steps in this process, from either feed, and tells the time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from autotune.tf import pipeline
    from autotune.tf.feed import BatchFeed, Feed
    from autotune.tf.options import BufferOptions, PipelineOptions, StepOptions
    from autotune.tf.runtime import Placement
    from autotune.tf.step import TrainStep
    from autotune.tf.two_stage import TwoStageFeed
    from autotune.workloads.tts import batches
    from autotune.workloads.tts.config import DataConfig
    from autotune.workloads.tts.ljspeech import read_clips
    from autotune.workloads.tts.model import Speech
    from autotune.workloads.tts.training import Adam, loss_of

    config = DataConfig(dataset_path=str(data), use_tf_native_loading=True, data_gpu=0, model_gpu=0)
    loader, count = batches.sound_loader(read_clips(data), config), len(read_clips(data))

    def feed(two_stages: bool) -> BatchFeed:
        options, maxima = PipelineOptions(batch_size=8, one_shape=True), batches.sound_maxima(config)
        read = pipeline.build(count, loader, options, maxima=maxima, length_of="sound")
        if two_stages:
            one = Placement(data="/CPU:0", model="/CPU:0")
            return TwoStageFeed(read, batches.mel_features, one, BufferOptions(), work="mel_length")
        return Feed(read.map(lambda batch: batches.mel_features(batch, None)).prefetch(4), work="mel_length")

    model = Speech(seed=0, compute_dtype="float32")
    adam = Adam(model.trainable_variables, learning_rate=1e-3)
    with feed(two_stages=True) as first:
        step = TrainStep(loss_of(model), model.trainable_variables, adam, StepOptions(), first.element_spec)

    def time_of(two_stages: bool) -> float:
        with feed(two_stages) as source:
            for fetched in islice(source, 10):
                step(fetched.batch)
            begun_s = time.monotonic()
            for fetched in islice(source, 40):
                step(fetched.batch)
            return time.monotonic() - begun_s

    return time_of


# Warm imports

COMPUTATIONS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("computations.yaml").read_text())
"""Import of each package, and a small computation with it, as a trainer's code."""

# The rest of the trainer's code: it writes what it finds into a file of the trial's folder.
_REPORT = """
import json, os, sys, time
ready_s = time.monotonic()
tables = {}
for when in ("after the imports", "after the computation"):
    if when == "after the computation":
        exec(computation)
    # By the interpreter's own tables: a lazy module is loaded by reading an attribute of it.
    homeless = set()
    for name, module in list(sys.modules.items()):
        try:
            names = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        for key, thing in list(names.items()):
            kind = type(thing)
            if kind.__name__ in ("function", "builtin_function_or_method"):
                home = thing.__module__
            else:
                home = type.__dict__["__module__"].__get__(thing if issubclass(kind, type) else kind)
            if isinstance(home, str) and home not in sys.modules:
                homeless.add(f"{name}.{key} of {home}")
    tables[when] = {"modules": sorted(sys.modules), "homeless": sorted(homeless)}
with open(os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "imports.json"), "w") as file:
    json.dump({"tables": tables, "value": repr(value), "ready_s": ready_s}, file)
"""
_AT_RANDOM = {"_remote_module_non_scriptable", "multiprocessing.resource_tracker"}  # loaded or not by a cold import


def compared(python: str, package: str, place: Path) -> Result:
    """Compare the warm imports of a package with its cold ones, in an empty folder."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", code], check=False).returncode:
        return Result(f"{package:<13} not installed")
    clock, computation = SystemClock(), COMPUTATIONS[package]
    imports = [line for line in computation.splitlines() if line.startswith(("import ", "from "))]
    (place / "train.py").write_text("\n".join([*imports, f"computation = {computation!r}", _REPORT]), encoding="utf-8")

    def run(runner: Runner, name: str) -> dict[str, Any]:
        folder, argv = place / "trials" / name, (python, "train.py")
        plan = TrialPlan(trial_id=f"soak/{name}", folder=folder, argv=argv, cwd=place, env={}, config_text="")
        ended = runner.run(plan, lambda _: None, clock.now_s() + 300.0)
        try:
            found: dict[str, Any] = json.loads((folder / "imports.json").read_text())
        except OSError:
            return {"error": (ended.stderr_tail.strip().splitlines() or [f"exit status {ended.exit_code}"])[-1]}
        return {**found, "import_s": found["ready_s"] - ended.started_s}

    with Guard() as guard:
        zygotes = ZygoteRunner(guard, clock)
        cold = run(ProcessRunner(guard, clock), "cold")
        warm = {name: run(zygotes, name) for name in ("first", "warm", "again")}
        remarks = list(zygotes.remarks)
    if "error" in cold:  # not to be imported at all: then the same has to come of it
        wrong = [f"{name} it can" for name, found in warm.items() if "error" not in found]
        return Result(f"{package:<13} cannot be imported ({cold['error'][:80]})", *wrong)
    wrong = [f"{name}: {one}" for name, found in warm.items() for one in _unlike(cold, found)]
    starts = zygotes.warm_starts != 2 and f"{zygotes.warm_starts} warm starts of 2"
    times = f"cold import {cold['import_s']:5.1f} s, warm {warm['again'].get('import_s', math.nan):5.2f} s"
    return Result(f"{package:<13} {times}", *wrong, starts, *remarks)


def _unlike(cold: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return what is unlike a cold import."""
    if "error" in found:
        return [found["error"]]
    unlike = [] if found["value"] == cold["value"] else [f"{found['value']} instead of {cold['value']}"]
    for when, table in cold["tables"].items():
        modules, own = set(table["modules"]), set(found["tables"][when]["modules"])
        homeless = set(found["tables"][when]["homeless"]) - set(table["homeless"])
        for what, names in (("missing", modules - own), ("too many", own - modules), ("without module", homeless)):
            if names - _AT_RANDOM:
                unlike.append(f"{what} {when}: {', '.join(sorted(names)[:12])} ({len(names)})")
    return unlike


@check(cases=COMPUTATIONS, options={"--python": sys.executable})
def warm(soak: Soak) -> Iterator[Result]:
    """Warm and cold imports of each package: loaded modules, their objects and a small computation are alike.

    In a fresh process, one whose imports are recorded, and two of the warm interpreter.
    """
    for package in soak.cases:
        yield compared(soak.options.python, package, soak.place())
