"""The parts of the check of a real GPU; see check.py. Each asks one thing, and says what it found."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from autotune.measure.gpu import collector
from autotune.measure.gpu.driver import Device, Driver, DriverError, GpuFacts
from autotune.measure.gpu.records import Record, clock_offset_s, of_line
from autotune.measure.gpu.timeline import DeviceUsage, GpuTimeline
from autotune.measure.utilization import Segment, describe, pooled_utilization
from autotune.records import TrialExit
from autotune.trial.outcome import ending_of
from scripts.bench.results import markdown_table
from tests.until import until

CALLS = 100
_BESIDES_S = 3.0  # that a load is watched before and after what counts: readings come late
_LOAD = Path(__file__).with_name("load.py")

_OUT_OF_MEMORY = {
    "torch": "kept = []\nwhile True:\n    kept.append(torch.empty(1 << 30, device='cuda'))\n",
    "tensorflow": "kept = []\nwhile True:\n    kept.append(tensorflow.random.normal((1 << 28,)))\n",
}
_FORK = """\
import json, os, time
began_s, threads = time.monotonic(), len(os.listdir("/proc/self/task"))
pid = os.fork()
if pid == 0:
    {work}
    print(json.dumps({{"threads_before": threads, "first_result_s": time.monotonic() - began_s}}), flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
_WORK = {
    "torch": "assert torch.ones(8, device='cuda').sum().item() == 8",
    "tensorflow": "assert float(tensorflow.reduce_sum(tensorflow.ones(8))) == 8",
}
_READY = "import json, sys\nimport {module}\nexec(json.loads(sys.stdin.readline() or '\"\"'))\n"
_LOADING = "import runpy\nsys.argv = {argv!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of the check.

    Attributes:
        gpu: The GPU.
        python: The interpreter that has the framework.
        framework: ``torch``, ``tensorflow`` or ``fake``; None if there is none that sees the GPU.
        env: Environment of what is started.
        loaded_s: Time for which each load is watched.
        ready: Processes that have imported the framework, and wait for a program.
    """

    gpu: GpuFacts
    python: str
    framework: str | None
    env: Mapping[str, str]
    loaded_s: float
    ready: list[subprocess.Popen[str]] = field(default_factory=list)

    @contextmanager
    def processes_ready(self) -> Iterator[None]:
        """Keep two processes ready, as many as are on the GPU at a time: no part waits for a framework's import."""
        try:
            for _ in range(2 if self.framework else 0):
                self._make_ready()
            yield
        finally:
            for process in self.ready:
                process.kill()
                process.communicate()

    def begin(self, program: str) -> "subprocess.Popen[str]":
        """Let a process that is ready begin a program, and make another one ready in its place."""
        process = self.ready.pop(0)
        assert process.stdin is not None
        process.stdin.write(json.dumps(program) + "\n")
        process.stdin.flush()
        self._make_ready()
        return process

    def _make_ready(self) -> None:
        module = "sys" if self.framework == "fake" else self.framework
        command = [self.python, "-c", _READY.format(module=module)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.ready.append(subprocess.Popen(command, env=self.env, text=True, **pipes))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the report: what was found, for people, and the raw numbers."""

    title: str
    text: str
    raw: dict[str, Any] = field(default_factory=dict)


def driver_windows(place: Place) -> Part:
    """Length of the driver's windows, its ring, what its stamps count from, and how late they can be read."""
    with Driver() as driver:
        device = driver.device(place.gpu.uuid)
        ring = device.busy_samples(0)
        now_s, epoch_s = time.monotonic(), time.time()
        newest_us = max((stamp_us for stamp_us, _ in ring), default=0)
        offset_s = clock_offset_s(newest_us, now_s=now_s, epoch_s=epoch_s)
        lags_s, looked_until_s = [], time.monotonic() + min(4.0, 0.6 * place.loaded_s)
        while time.monotonic() < looked_until_s:
            for stamp_us, _ in _new_samples(device, newest_us):
                newest_us = max(newest_us, stamp_us)
                lags_s.append(time.monotonic() - stamp_us / 1e6 - offset_s)
            time.sleep(0.005)
    spacings_s = [(after - before) / 1e6 for (before, _), (after, _) in pairwise(sorted(ring))]
    raw = {
        "samples_in_ring": len(ring),
        "ring_s": (max(ring)[0] - min(ring)[0]) / 1e6 if ring else None,
        "spacing_s": _spread(spacings_s),
        "stamps_from": "1970" if newest_us > 1e15 else "boot",
        "lag_s": _spread(lags_s),
        "above_100": sum(percent > 100 for _, percent in ring),
    }
    text = (
        f"{len(ring)} samples in the ring, {_words(raw['spacing_s'], 's')} apart; stamps count from "
        f"{raw['stamps_from']}. A new sample can be read {_words(raw['lag_s'], 's')} after its stamp."
    )
    return Part(title="Driver windows", text=text, raw=raw)


def _new_samples(device: Device, since_us: int) -> list[tuple[int, int]]:
    try:
        return device.busy_samples(since_us)
    except DriverError:
        return []  # "not found": nothing new


def call_costs(place: Place) -> Part:
    """Time that each question to the driver takes."""
    rows, raw = [], {}
    with Driver() as driver:
        device = driver.device(place.gpu.uuid)
        questions: dict[str, Callable[[], object]] = {
            "utilization samples": lambda: _new_samples(device, 1 << 62),
            "the whole ring": lambda: device.busy_samples(0),
            "utilization": device.busy_percent,
            "memory": device.memory,
            "power": device.power_w,
            "energy": device.energy_j,
            "temperature": device.temperature_c,
            "SM clock": device.sm_clock_mhz,
            "clock reasons": device.clock_reasons,
            "process list": device.holders,
            "utilization by process": lambda: device.process_shares(0),
            "GPM sample": lambda: device.gpm_sample().free(),
        }
        for name, question in questions.items():
            took_us, refused = [], ""
            for _ in range(CALLS):
                began_ns = time.perf_counter_ns()
                try:
                    question()
                except DriverError as error:
                    refused = str(error)
                took_us.append((time.perf_counter_ns() - began_ns) / 1e3)
            spread = _spread(took_us)
            raw[name] = {"us": spread, "error": refused}
            rows.append([name, *(f"{spread[key]:.0f}" for key in ("median", "p95", "most")), refused])
    table = markdown_table(["question", "median, us", "95 %", "most", "refused"], rows)
    return Part(title="What a question costs", text=table, raw=raw)


def loads(place: Place) -> Part:
    """The collector beside loads whose busy time is known: half busy, fully busy, and starved at a beat."""
    rows, raw = [], {}
    for name, busy_ms, idle_ms in (("half busy", 40, 40), ("busy", 100, 0), ("starved", 480, 720)):
        use, (t0_s, t1_s), truth = _watched(place, busy_ms, idle_ms)
        verdict = describe(pooled_utilization([Segment.within(t0_s, t1_s, use.windows)] * 3))
        raw[name] = {"truth": truth, "verdict": verdict, **_numbers(use)}
        names = ("utilization", "own_fraction", "sm_activity", "tensor_activity", "dram_activity")
        shown = (truth, *(getattr(use.figures, name) for name in names))
        reasons = ", ".join(f"{reason} {share:.0%}" for reason, share in use.clock_reasons.items())
        power = "-" if use.figures.power_w is None else f"{use.figures.power_w:.0f} W"
        rows.append([name, *map(_percent, shown), power, reasons or "-", verdict])
    heads = ["load", "truth", "utilization", "own", "SM", "tensor", "DRAM", "power", "clocks", "verdict"]
    text = markdown_table(heads, rows) + "\n\nTruth is the time from each burst's first launch to its last wait. SM, "
    text += "tensor and DRAM are GPM's. For the verdict the stretch is counted three times, as three trials would be."
    return Part(title="Utilization, GPM and clocks against a known load", text=text, raw=raw)


def attribution(place: Place) -> Part:
    """Two processes on the GPU, one of them not ours."""
    with tempfile.TemporaryDirectory() as name, _load(place, 30, 70, Path(name, "stranger")) as stranger:
        use, stretch, truth = _watched(place, 40, 60)
        foreign = _busy_fraction(Path(name, "stranger"), *stretch)
    raw = {"own_truth": truth, "foreign_truth": foreign, "stranger": stranger.pid, **_numbers(use)}
    text = (
        f"Ours was busy for {_percent(truth)} and is said to be for {_percent(use.figures.own_fraction)}; "
        f"a stranger for {_percent(foreign)} and {_percent(use.figures.foreign_fraction)} "
        f"({use.attribution.value}). The stranger is process "
        f"{stranger.pid}; the driver names {list(use.foreign_pids) or 'nobody'}. Bursts of two processes take turns, "
        "so each lasts longer than its kernels."
    )
    return Part(title="Whose kernels", text=text, raw=raw)


def out_of_memory(place: Place) -> Part:
    """Message of the framework when the GPU's memory is used up, and the ending that it gets."""
    done = _ran(place, _OUT_OF_MEMORY)
    trial_exit = TrialExit(started_s=0.0, ended_s=1.0, exit_code=done.returncode, stop=None, stderr_tail=done.stderr)
    ending, detail = ending_of(trial_exit, ())
    raw = {"exit": done.returncode, "ending": ending.value, "detail": detail, "stderr": done.stderr[-2000:]}
    return Part(title="Out of memory", text=f"Named `{ending.value}`: {detail}", raw=raw)


def fork_before_cuda(place: Place) -> Part:
    """A fork of a process that has imported the framework and touched nothing, with CUDA in the child: the zygote."""
    done = _ran(place, {module: _FORK.format(module=module, work=work) for module, work in _WORK.items()})
    raw: dict[str, Any] = {"exit": done.returncode, "stderr": done.stderr[-2000:]}
    if done.returncode:
        return Part(title="Fork before CUDA", text=f"It does not work: exit status {done.returncode}.", raw=raw)
    raw |= json.loads(done.stdout.splitlines()[-1])
    text = f"The child has its first result {raw['first_result_s']:.2f} s after the fork; the parent had "
    text += f"{raw['threads_before']} threads."
    return Part(title="Fork before CUDA", text=text, raw=raw)


def _ran(place: Place, programs: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the program of the framework to its end."""
    process = place.begin(programs[str(place.framework)])
    try:
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


@contextmanager
def _load(place: Place, busy_ms: float, idle_ms: float, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A load that has begun."""
    argv = [str(_LOAD), str(place.framework), str(busy_ms), str(idle_ms), str(file)]
    with place.begin(_LOADING.format(argv=argv)) as process:
        try:
            until(lambda: _bursts(file) or process.poll() is not None, "the load does not begin")
            assert process.poll() is None, "the load has ended"
            yield process
        finally:
            process.kill()


def _watched(place: Place, busy_ms: float, idle_ms: float) -> tuple[DeviceUsage, tuple[float, float], float]:
    """Return the usage that the collector's process gives of a load, from when to when, and the truth.

    It is watched for two cycles at least: over a part of one the driver's windows at both ends tell too much.
    """
    with tempfile.TemporaryDirectory() as name:
        lines, bursts = Path(name, "samples.jsonl"), Path(name, "bursts")
        with _load(place, busy_ms, idle_ms, bursts) as load, _reading(lines, place.gpu.uuid, place.env):
            began_s = time.monotonic()
            ended_s = began_s + max(place.loaded_s, _BESIDES_S + 2e-3 * (busy_ms + idle_ms))
            until(lambda: any(record.t_s > ended_s for record in _records_of(lines)), "the collector is silent")
            known = GpuTimeline([place.gpu.uuid], since_s=began_s)
            for record in _records_of(lines):
                known.add(record)
        t0_s, t1_s = began_s + 1.0, ended_s + 1.0 - _BESIDES_S
        (use,) = known.between(t0_s, t1_s, own_pids={load.pid}, started_s=began_s).devices
        return use, (t0_s, t1_s), _busy_fraction(bursts, t0_s, t1_s)


@contextmanager
def _reading(file: Path, uuid: str, env: Mapping[str, str]) -> Iterator[None]:
    """A collector at work; it must not have ended by itself, nor have complained."""
    command = [sys.executable, "-P", "-m", collector.__name__, uuid]
    with (
        file.open("ab") as stdout,
        subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.PIPE) as process,
    ):
        try:
            yield
            assert process.poll() is None
        finally:
            process.kill()
        assert process.communicate()[1] == b""


def _whole_lines(file: Path) -> list[str]:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith("\n")]


def _records_of(file: Path) -> list[Record]:
    """Return the collector's records so far."""
    return [record for record in map(of_line, _whole_lines(file)) if record is not None]


def _bursts(file: Path) -> list[tuple[float, float]]:
    return [(begin_s, end_s) for begin_s, end_s in map(json.loads, _whole_lines(file)[1:])]


def _busy_fraction(file: Path, t0_s: float, t1_s: float) -> float:
    inside = ((max(begin_s, t0_s), min(end_s, t1_s)) for begin_s, end_s in _bursts(file))
    return sum(max(0.0, end_s - begin_s) for begin_s, end_s in inside) / (t1_s - t0_s)


def _numbers(use: DeviceUsage) -> dict[str, Any]:
    names = (
        "utilization covered_fraction own_fraction foreign_fraction foreign_pids sm_activity tensor_activity "
        "dram_activity power_w sm_clock_mhz temperature_start_c temperature_end_c throttled_fraction "
        "clock_reasons peak_memory_bytes lost absent"
    )
    every = {**vars(use), **vars(use.figures)}
    return {**{name: every[name] for name in names.split()}, "attribution": use.attribution.value}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    high = quantiles(values, n=20)[-1]
    return {"median": median(values), "least": min(values), "p95": high, "most": max(values), "count": len(values)}


def _words(spread: Mapping[str, float], unit: str) -> str:
    return f"{spread['median']:.3f} {unit} ({spread['least']:.3f} to {spread['most']:.3f})" if spread else "unknown"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
