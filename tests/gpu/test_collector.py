"""Promises of a search's GPU collector: each trial has its readings, and whatever happens to it the search goes on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.clock import SystemClock
from autotune.measure.gpu.driver import remedy_of
from autotune.measure.gpu.records import of_line
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.trial.gpu_collector import SILENCE_S, GpuCollector
from autotune.trial.guard import Guard
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Scenario, Square

UUID = "GPU-00000000-0000-4000-8000-000000000000"
RUN = TrialGpus(uuids=(UUID,))
WAVE = Gpu(busy_percent=Square(10, 90, period_s=0.5))


class ShiftedClock(SystemClock):
    """The machine's clock, in a hurry where a test says so."""

    ahead_s = 0.0

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return super().now_s() + self.ahead_s


class Stage:
    """A collector of a search on a machine with fake GPUs.

    Attributes:
        collector: The collector.
        clock: Its clock.
        guard: Its guard.
        folder: Where its files are.
    """

    def __init__(self, guard: Guard, folder: Path) -> None:
        self.guard = guard
        self.folder = folder
        self.clock = ShiftedClock()
        self.collector = GpuCollector(guard, [UUID], folder, self.clock)
        self.kept = folder / "samples.jsonl"

    def open(self) -> None:
        """A trial begins."""
        self.collector.open(self.kept)

    def lost(self) -> str | None:
        """Return the loss that a look at the collector finds."""
        return self.collector.lost(RUN)

    def use(self, trial: TrialGpus = RUN, length_s: float = 2.0) -> GpuUsage:
        """Return the usage of the last seconds."""
        now_s = time.monotonic()
        use = self.collector.between(now_s - length_s, now_s, trial, own_pids=(), started_s=now_s - 60.0)
        assert use is not None
        return use

    def pids(self) -> list[int]:
        """The collectors that live."""
        below = psutil.Process(self.guard.pid).children()
        return [process.pid for process in below if process.status() != psutil.STATUS_ZOMBIE]

    def until(self, condition: Callable[[], object]) -> None:
        """Looks at the collector, as a trial does, until something holds."""
        deadline_s = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline_s, "it took too long"
            self.lost()
            threading.Event().wait(0.05)

    def until_measured(self) -> None:
        """Comes back when there are readings."""
        self.until(lambda: self.use(length_s=0.5).utilization is not None)


@pytest.fixture
def stage(
    fake_gpu: Callable[..., FakeGpu], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """Makes the collector of a machine that has been up for a while."""
    with Guard() as guard:

        def make(*faults: Fault, gpu: Gpu = WAVE) -> Stage:
            machine = fake_gpu(Scenario(gpus=(gpu,), faults=faults), began_s_ago=60.0)
            for name in ("LD_LIBRARY_PATH", "AUTOTUNE_FAKE_NVML", "AUTOTUNE_FAKE_NVML_CLOCK"):
                monkeypatch.setenv(name, machine.env[name])
            return Stage(guard, tmp_path)

        yield make


def test_a_run_has_its_readings_and_keeps_what_was_said(stage):
    """Utilization of its window, and the collector's own words in its folder, from the first line on what it needs."""
    on = stage()
    with on.collector:
        on.open()
        on.until_measured()
        use = on.use()
        on.collector.close()
        assert use.utilization == pytest.approx(0.5, abs=0.1)
        assert use.devices[0].figures.covered_fraction > 0.7
        first = [row["k"] for row in map(json.loads, on.kept.read_text().splitlines())]
        assert first[:2] == ["start", "gpu"]
        assert {"busy", "state"} <= set(first)
        on.open()  # the next trial: what the collector said once, before it began, holds for it too
        on.until_measured()
        assert on.use().devices[0].figures.name == WAVE.name
        on.collector.close()
    assert list(on.folder.iterdir()) == [on.kept]


def test_a_killed_collector_is_replaced_once(stage):
    """Readings come again; after the second time the search goes on without them, and says so once."""
    on = stage()
    with on.collector:
        on.open()
        on.until_measured()
        first = on.pids()
        os.kill(first[0], signal.SIGKILL)
        on.until(lambda: on.pids() == [])
        on.clock.ahead_s = SILENCE_S + 1.0
        on.until(lambda: on.pids() not in ([], first))
        on.clock.ahead_s = 0.0
        assert not on.collector.remarks
        on.until_measured()
        os.kill(on.pids()[0], signal.SIGKILL)
        on.until(lambda: on.pids() == [])
        on.clock.ahead_s = SILENCE_S + 1.0
        on.until(lambda: on.collector.remarks)
        assert on.lost() is None
        use = on.use(length_s=0.1)
        assert use.utilization is None
        assert "nothing was heard of the GPUs for" in use.remark
        (remark,) = on.collector.remarks
        assert remark.startswith("GPU utilization is not measured any more in this search: nothing was heard of")
        assert on.pids() == []


def test_a_collector_that_cannot_start_says_why(stage, monkeypatch):
    """At once, and nobody waits for it; it has the packages that autotune itself has from PYTHONPATH."""
    on = stage()
    (on.folder / "msgspec.py").write_text("raise ImportError('no such machine')")
    monkeypatch.setenv("PYTHONPATH", str(on.folder))
    with on.collector:
        on.open()
        on.until(lambda: on.lost() is None and on.collector.remarks)
        why = "the GPU collector failed (ImportError: no such machine)"
        assert on.collector.remarks == deque([f"GPU utilization is not measured any more in this search: {why}"])
        assert on.use().remark == f"GPU utilization not measured: {why}"


def test_a_driver_call_that_hangs_stops_nobody(stage):
    """The trial goes on without readings and knows why; a collector that hangs is killed and replaced."""
    on = stage(Fault(function="nvmlDeviceGetMemoryInfo*", after_calls=4, delay_s=3600.0))
    with on.collector:
        on.open()
        first: list[int] = []
        on.until(lambda: first or first.extend(on.pids()))
        on.until(lambda: "nothing was heard of the GPUs for" in on.use(length_s=0.1).remark)
        assert on.lost() is None
        assert on.pids() == first  # for a while it may come back
        on.clock.ahead_s = SILENCE_S + 1.0
        on.until(lambda: on.pids() not in ([], first))
    on.guard.close()
    assert not psutil.pid_exists(first[0])


def test_a_lost_gpu_is_told_and_so_is_that_it_is_back(stage):
    """As long as it is lost, a trial that begins hears of it too."""
    on = stage(Fault(code=15, gpu=0, from_s=64.0, until_s=67.0))
    with on.collector:
        on.open()
        on.until(on.lost)
        assert "GPU lost" in on.lost()
        on.collector.close()
        on.open()
        assert "GPU lost" in on.lost()
        on.until(lambda: on.lost() is None)
        on.until_measured()


def test_a_driver_that_is_gone_is_asked_once_more(stage):
    """By a new collector, when the next trial begins; after that it stays lost for this search."""
    on = stage(Fault(function="nvmlDeviceGet*", code=9, from_s=64.0))
    with on.collector:
        on.open()
        on.until(on.lost)
        assert "driver not loaded" in on.lost()
        on.collector.close()
        on.open()
        on.until(on.lost)
        on.collector.close()
        on.open()
        assert "driver not loaded" in on.lost()
        said, given_up = on.collector.remarks
        assert said == "driver not loaded: the NVIDIA driver says: Driver Not Loaded. " + remedy_of("driver not loaded")
        assert given_up.startswith("GPU utilization is not measured any more in this search: driver not loaded")
        on.until(lambda: on.pids() == [])


def test_gpus_are_known_by_how_they_begin(stage):
    """A trainer may report what CUDA_VISIBLE_DEVICES says; a GPU that nobody watches is named as such."""
    on = stage()
    with on.collector:
        on.open()
        on.until_measured()
        assert on.use(TrialGpus(uuids=("GPU-0000",), reported=True)).devices[0].figures.uuid == UUID
        use = on.use(TrialGpus(uuids=("GPU-ffff",), reported=True))
        assert use.utilization is None
        assert "the trainer uses GPU-ffff, which this search does not see" in use.remark


def test_the_process_imports_next_to_nothing():
    """It starts in the time of a bare interpreter: nothing of numpy, the driver's bindings or the rest of autotune."""
    code = (
        "import sys, autotune.measure.gpu.collector; "
        "heavy = {'numpy', 'psutil', 'rich', 'optuna', 'yaml', 'autotune.records', 'pynvml'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""


def test_the_process_ends_with_the_reason_where_there_is_no_driver(fake_gpu):
    """The reader hears of it, and nobody else does."""
    env = fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=9),))).env
    command = [sys.executable, "-P", "-m", "autotune.measure.gpu.collector", UUID]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert of_line(done.stdout).name == "driver not loaded"
