"""Promises of a search's GPU collector: each trial has its readings, and whatever happens to it the search goes on."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock, VirtualClock
from autotune.measure.gpu.driver import remedy_of
from autotune.measure.gpu.records import (
    BusyWindows,
    Capability,
    CapabilityOff,
    GpuFound,
    GpuLost,
    Record,
    StreamStarted,
    to_line,
)
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.trial.instruments import SILENCE_S, START_S, GpuCollector
from autotune.trial.launch import Guard
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario, Square
from tests.gpu.conftest import UUID
from tests.until import until

OURS = UUID.format(0)
TRIAL = TrialGpus(uuids=(OURS,))
GIVEN_UP = "GPU utilization is no longer measured in this search: "


class FakeGuard:
    """Guard whose sidecars do nothing: the test writes what a collector would.

    Attributes:
        pid: Process id; another one if it was replaced.
        log: What the latest sidecar writes into.
        running: Names of the sidecars that were not stopped.
    """

    def __init__(self) -> None:
        self.pid = 1
        self.log: Path
        self.running: list[str] = []

    def start(self) -> None:
        """See `Guard.start`."""

    def start_sidecar(self, name: str, program: dict[str, object], *, log: Path) -> None:
        """See `Guard.start_sidecar`."""
        self.log = log
        self.running.append(name)

    def stop_sidecar(self, name: str) -> None:
        """See `Guard.stop_sidecar`."""
        self.running = [other for other in self.running if other != name]


class Stage:
    """A collector in virtual time, and what its process says."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.guard = FakeGuard()
        self.remarks: list[str] = []
        self.collector = GpuCollector(self.guard, [OURS], folder, self.clock, self.remarks.append)  # type: ignore[arg-type]
        self.kept = folder / "samples.jsonl"

    def says(self, *records: Record) -> None:
        """Let the process write these."""
        with self.guard.log.open("ab") as file:
            file.writelines(map(to_line, records))

    def begins(self) -> None:
        """Let the process say that it has a driver with the GPU."""
        now_s = self.clock.now_s()
        self.says(
            StreamStarted(t_s=now_s, v=1, pid=1, driver="565"),
            GpuFound(t_s=now_s, uuid=OURS, name="H100", memory_bytes=80),
        )

    def trains(self, seconds: int) -> None:
        """Let time pass in which the GPU is busy for half of it."""
        for _ in range(seconds):
            self.clock.wait(1.0)
            now_s = self.clock.now_s()
            windows = tuple((now_s - 0.5 * (1 - half), 0.5, float(half)) for half in range(2))
            self.says(BusyWindows(t_s=now_s, uuid=OURS, source=Capability.SAMPLES, windows=windows))

    def waits(self, seconds: float) -> str | None:
        """Let time pass in which nothing is said; return the loss that a look finds then."""
        self.clock.wait(seconds)
        return self.lost()

    def loses(self, name: str, uuid: str | None = OURS) -> None:
        """Let the GPU, or the driver, be lost."""
        self.says(GpuLost(t_s=self.clock.now_s(), uuid=uuid, name=name, why=f"{name}: gone."))

    def lost(self) -> str | None:
        """Return the loss that a look at the collector finds."""
        return self.collector.lost(TRIAL)

    def next_trial(self) -> None:
        """End a trial, and begin another."""
        self.collector.close()
        self.collector.open(self.kept)

    def use(self, trial: TrialGpus = TRIAL) -> GpuUsage:
        """Return the usage of the last seconds."""
        now_s = self.clock.now_s()
        use = self.collector.between(now_s - 4.0, now_s, trial, own_pids=(), started_s=now_s - 4.0)
        return use


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A collector whose process has just been started, in a trial."""
    stage = Stage(tmp_path)
    with stage.collector:
        stage.collector.open(stage.kept)
        yield stage
    assert stage.guard.running == []


def test_a_run_has_its_readings_and_keeps_what_was_said(stage: Stage) -> None:
    """Utilization of its time, also of a later trial; the collector's own words are in the folder of the first."""
    stage.begins()
    stage.trains(6)
    assert stage.use().utilization == pytest.approx(0.5)
    stage.collector.close()
    assert [json.loads(line)["k"] for line in stage.kept.read_text().splitlines()] == ["start", "gpu", *["busy"] * 6]
    stage.next_trial()
    stage.trains(6)
    assert (stage.use().utilization, stage.use().devices[0].figures.name) == (pytest.approx(0.5), "H100")


def test_the_last_driver_windows_are_waited_for_once(stage: Stage) -> None:
    """For a moment, in which they come or not."""
    stage.begins()
    stage.trains(4)
    times_s = []
    for _ in range(2):
        began_s = stage.clock.now_s()
        stage.collector.between(began_s - 4.0, began_s + 0.5, TRIAL, own_pids=(), started_s=began_s - 4.0)
        times_s.append(stage.clock.now_s() - began_s)
    assert times_s == [pytest.approx(0.6, abs=0.1), 0.0]


@pytest.mark.parametrize(("limit_s", "begins"), [(START_S, False), (SILENCE_S, True)])
def test_a_collector_that_is_silent_is_replaced_once(stage: Stage, limit_s: float, begins: bool) -> None:
    """After the second time the search goes on without readings, and says so once; trials go on all the while."""
    for number in (1, 2):
        if begins:
            stage.begins()
        assert stage.waits(limit_s) is None
        assert stage.guard.running == [f"gpu collector {number}"]
        assert not stage.remarks
        assert stage.waits(1.0) is None
    (remark,) = stage.remarks
    assert remark.startswith(
        GIVEN_UP + ("no readings from the GPU collector for" if begins else "the GPU collector has not")
    )
    assert stage.guard.running == []
    assert stage.use().utilization is None
    assert remark.removeprefix(GIVEN_UP) in stage.use().remark


def test_a_trial_knows_soon_why_it_has_no_readings(stage: Stage) -> None:
    """Long before the collector is replaced, which may only wait for a driver's call."""
    stage.begins()
    stage.waits(4.0)
    assert "GPU utilization not measured: no readings from the GPU collector for " in stage.use().remark
    assert stage.guard.running == ["gpu collector 1"]


def test_a_collector_goes_with_its_guard_and_comes_with_the_next(stage: Stage) -> None:
    """A guard that was replaced has taken it along."""
    stage.guard.pid, stage.guard.running = 2, []
    assert stage.lost() is None
    assert stage.guard.running == ["gpu collector 2"]


def test_a_lost_gpu_is_told_and_so_is_that_it_is_back(stage: Stage) -> None:
    """As long as it is lost, a trial that begins hears of it too; what helps is said once."""
    stage.begins()
    stage.loses("GPU lost")
    assert stage.lost() == "GPU lost: gone."
    stage.next_trial()
    assert stage.lost() == "GPU lost: gone."
    assert stage.remarks == [f"GPU lost: gone. {remedy_of('GPU lost')}"]
    stage.begins()
    assert stage.lost() is None
    stage.trains(5)
    assert stage.use().utilization == pytest.approx(0.5)


def test_a_hiccup_is_no_loss(stage: Stage) -> None:
    """A GPU that fails in passing costs no trial, and is none of the user's business."""
    stage.begins()
    stage.loses("GPU fails")
    assert stage.lost() is None
    assert not stage.remarks


def test_a_driver_that_is_gone_is_asked_once_more(stage: Stage) -> None:
    """By a new collector, when the next trial begins; after that it stays lost for this search."""
    stage.begins()
    for number in (1, 2):
        stage.loses("driver not loaded", None)
        assert stage.lost() == "driver not loaded: gone."
        assert stage.guard.running == [f"gpu collector {number}"]
        stage.next_trial()
    assert stage.lost() == "driver not loaded: gone."
    said, given_up = stage.remarks
    assert said == f"driver not loaded: gone. {remedy_of('driver not loaded')}"
    assert given_up == f"{GIVEN_UP}driver not loaded: gone."


def test_a_gpu_that_may_not_be_asked_is_said_once(stage: Stage) -> None:
    """Utilization is absent and never 0, each trial has the reason, and the user hears whom to ask."""
    stage.begins()
    now_s = stage.clock.now_s()
    for capability in (Capability.SAMPLES, Capability.RATES):
        stage.says(CapabilityOff(t_s=now_s, uuid=OURS, capability=capability, why="Insufficient Permissions"))
    for _ in range(2):
        use = stage.use()
        assert use.utilization is None
        assert "does not report utilization (Insufficient Permissions)" in use.remark
    (remark,) = stage.remarks
    assert "ask your administrator" in remark


def test_gpus_are_known_by_how_they_begin(stage: Stage) -> None:
    """A trainer may report what CUDA_VISIBLE_DEVICES says; a GPU that nobody watches is named as such."""
    stage.begins()
    stage.trains(4)
    assert stage.use(TrialGpus(uuids=("GPU-0000",), reported=True)).devices[0].figures.uuid == OURS
    use = stage.use(TrialGpus(uuids=("GPU-ffff",), reported=True))
    assert use.utilization is None
    assert "the trainer uses GPU-ffff, which this search does not see" in use.remark


# Its process


@pytest.fixture
def remarks() -> list[str]:
    """What the collector has said to the user."""
    return []


@pytest.fixture
def collector(
    remarks: list[str], fake_gpu: Callable[..., FakeGpu], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GpuCollector]:
    """A real collector on a machine that has been up for a while, with its guard."""
    machine = fake_gpu(Scenario(gpus=(Gpu(busy_percent=Square(10, 90, period_s=0.5)),)), began_s_ago=60.0)
    for name in ("LD_LIBRARY_PATH", "AUTOTUNE_FAKE_NVML", "AUTOTUNE_FAKE_NVML_CLOCK"):
        monkeypatch.setenv(name, machine.env[name])
    with Guard() as guard:
        yield GpuCollector(guard, [OURS], tmp_path, SystemClock(), remarks.append)


def test_the_process_reads_the_driver_and_leaves_nothing(collector: GpuCollector, tmp_path: Path) -> None:
    """What it says comes through the guard, and into the trial's folder."""
    clock = SystemClock()
    with collector:
        collector.open(tmp_path / "kept")

        def utilization() -> float | None:
            now_s = clock.now_s()
            use = collector.between(now_s - 2.0, now_s, TRIAL, own_pids=(), started_s=now_s - 2.0)
            return use and use.utilization

        assert until(utilization) == pytest.approx(0.5, abs=0.2)
        collector.close()
    rows = [json.loads(line)["k"] for line in (tmp_path / "kept").read_text().splitlines()]
    assert rows[:2] == ["start", "gpu"]
    assert {"busy", "state"} <= set(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_process_that_cannot_start_says_why(
    collector: GpuCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remarks: list[str]
) -> None:
    """It has the packages that autotune itself has from PYTHONPATH; a second one is tried, and no third."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('no such machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with collector:
        collector.open(tmp_path / "kept")
        until(lambda: collector.lost(TRIAL) is None and remarks)
        why = "the GPU collector failed (ImportError: no such machine)"
        assert remarks == [GIVEN_UP + why]


def test_the_process_imports_next_to_nothing() -> None:
    """It starts in the time of a bare interpreter: nothing of numpy, the driver's bindings or the rest of autotune."""
    code = (
        "import sys, autotune.measure.gpu.collector; "
        "heavy = {'numpy', 'psutil', 'rich', 'optuna', 'yaml', 'autotune.records', 'pynvml'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr.strip() == ""
