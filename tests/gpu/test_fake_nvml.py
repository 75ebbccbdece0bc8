"""Promises of the fake GPU: the unmodified `pynvml`, and monitors that nobody here wrote, see what a scenario says."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.fake_nvml import busy_writer
from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.library import build
from tests.fake_nvml.scenario import (
    SM_UTIL,
    Fault,
    Gpu,
    MigInstance,
    OfBusy,
    Process,
    Ramp,
    Scenario,
    Square,
    Timeline,
)

NOT_FOUND, NOT_SUPPORTED, LOST = 6, 3, 15

SAMPLES = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)

def samples(since=0, kind=NVML_GPU_UTILIZATION_SAMPLES):
    value_type, rows = nvmlDeviceGetSamples(gpu, kind, since)
    assert value_type == NVML_VALUE_TYPE_UNSIGNED_INT
    return [(row.timeStamp, row.sampleValue.uiVal) for row in rows]
"""
PERCENTS = SAMPLES + "tell([percent for stamp, percent in samples()])"


def busy(signal, **options):
    """A machine's scenario with one GPU that is as busy as that."""
    return Scenario(gpus=(Gpu(busy_percent=signal),), **options)


def square_mean(square, t0_s, t1_s):
    """Mean of a square wave by adding up fine steps: another way than that of the library."""
    steps = 10_000
    times_s = (t0_s + (t1_s - t0_s) * (step + 0.5) / steps for step in range(steps))
    high = sum((t_s - square.phase_s) % square.period_s < square.duty * square.period_s for t_s in times_s)
    return square.low + (square.high - square.low) * high / steps


def test_the_library_compiles_without_a_warning(tmp_path):
    """The C sources are plain C11 to the compiler of this machine."""
    build(tmp_path / "library.so", "-Werror")


# ---- Devices ----


def test_every_gpu_is_found_by_index_uuid_and_bus(fake_gpu):
    """Three GPUs with their own names keep them apart, whichever way they are asked for."""
    gpus = (
        Gpu(name="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0), memory_total_bytes=40 << 30),
        Gpu(uuid="GPU-cafe", pci_bus_id="00000001:C1:00.0"),
        Gpu(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), serial="123"),
    )
    told = fake_gpu(Scenario(gpus=gpus, driver_version="570.1", cuda_version=(12, 8))).run("""
nvmlInit()
gpus = [nvmlDeviceGetHandleByIndex(index) for index in range(nvmlDeviceGetCount())]
second = nvmlDeviceGetHandleByUUID("GPU-cafe")
tell({
    "names": [nvmlDeviceGetName(gpu) for gpu in gpus],
    "architectures": [nvmlDeviceGetArchitecture(gpu) for gpu in gpus],
    "capability": nvmlDeviceGetCudaComputeCapability(gpus[2]),
    "memory": nvmlDeviceGetMemoryInfo(gpus[0]).total,
    "bus": nvmlDeviceGetPciInfo(second).busId,
    "by_uuid": nvmlDeviceGetIndex(second),
    "by_bus": nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId("1:c1:0")),
    "unknown": [code_of(nvmlDeviceGetHandleByUUID, "GPU-none"), code_of(nvmlDeviceGetHandleByIndex, 3)],
    "serials": [code_of(nvmlDeviceGetSerial, gpus[0]), nvmlDeviceGetSerial(gpus[2])],
    "versions": [nvmlSystemGetDriverVersion(), nvmlSystemGetCudaDriverVersion()],
})
""")
    assert told == {
        "names": ["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"],
        "architectures": [7, 9, 8],
        "capability": [8, 9],
        "memory": 40 << 30,
        "bus": "00000001:C1:00.0",
        "by_uuid": 1,
        "by_bus": 1,
        "unknown": [NOT_FOUND, 2],
        "serials": [NOT_SUPPORTED, "123"],
        "versions": ["570.1", 12080],
    }


# ---- Utilization ----


@pytest.mark.parametrize(
    "square",
    [
        Square(10, 90, period_s=2.0),
        Square(0, 100, period_s=0.1, duty=0.3),
        Square(5, 80, period_s=0.7, duty=0.8, phase_s=0.4),
        Square(0, 100, period_s=3.0, duty=0.0),
    ],
)
def test_a_square_wave_is_averaged_over_each_driver_window(fake_gpu, square):
    """Whatever period and phase do to the windows, each sample is the mean of the true function."""
    percents = fake_gpu(busy(square, window_s=1 / 6), at_s=10.01).run(PERCENTS)
    wanted = [square_mean(square, window / 6, (window + 1) / 6) for window in range(60)]
    assert percents == pytest.approx(wanted, abs=0.52)


def test_each_sample_is_given_once(fake_gpu):
    """Asking from the newest stamp on, again and again, gives every window once and in order."""
    told = fake_gpu(busy(Ramp(0, 100, 0, 100), window_s=1.0), at_s=0.5).run(
        SAMPLES
        + """
seen = [code_of(samples)]
since = 0
for t_s in (3.2, 3.9, 4.0, 30.0, 100.0):
    at(t_s)
    new = samples(since) if code_of(samples, since) == 0 else []
    since = new[-1][0] if new else since
    seen += [percent for stamp, percent in new]
tell(seen)
"""
    )
    assert told == [NOT_FOUND, *range(1, 101)]


# ---- Memory, power, heat, clocks ----


def test_readings_follow_their_signals(fake_gpu):
    """A GPU that gets too hot: clocks fall and the reason stands beside; a quantity that is None is not supported."""
    hot = Gpu(
        busy_percent=100,
        power_mw=(50_000, OfBusy(4_000)),
        temperature_c=Timeline(((0, 60), (10, 88))),
        sm_clock_mhz=Timeline(((0, 1_980), (10, 1_200))),
        event_reasons=Timeline(((0, 0), (10, 0x40))),
        fan_percent=35,
    )
    code = """
nvmlInit(); gpu, other = (nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
def readings():
    return [nvmlDeviceGetTemperature(gpu, NVML_TEMPERATURE_GPU), nvmlDeviceGetTemperatureV(gpu, NVML_TEMPERATURE_GPU),
            nvmlDeviceGetClockInfo(gpu, NVML_CLOCK_SM), nvmlDeviceGetCurrentClocksEventReasons(gpu),
            nvmlDeviceGetCurrentClocksThrottleReasons(gpu), nvmlDeviceGetPowerUsage(gpu), nvmlDeviceGetFanSpeed(gpu)]
before = readings()
at(12.0)
energy = nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 82])
tell([before, readings(), nvmlDeviceGetTotalEnergyConsumption(gpu), energy[0].value.ullVal, energy[1].nvmlReturn,
      [code_of(nvmlDeviceGetFanSpeed, other), code_of(nvmlDeviceGetPowerUsage, other),
       code_of(nvmlDeviceGetTotalEnergyConsumption, other)]])
"""
    told = fake_gpu(Scenario(gpus=(hot, Gpu(fan_percent=None, power_mw=None))), at_s=5).run(code)
    before, after, energy_mj, same_energy_mj, no_such_field, no_fan_nor_power = told
    assert before == [60, 60, 1_980, 0, 0, 450_000, 35]
    assert after == [88, 88, 1_200, 0x40, 0x40, 450_000, 35]
    assert energy_mj == same_energy_mj == 450_000 * 12
    assert no_such_field == NOT_SUPPORTED
    assert no_fan_nor_power == [NOT_SUPPORTED] * 3


# ---- Processes ----


USE = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)

def use(since=0):
    return [[row.pid, row.smUtil, row.timeStamp] for row in nvmlDeviceGetProcessUtilization(gpu, since)]
"""


def test_utilization_by_process_is_its_share_since_a_stamp(fake_gpu):
    """One row a process, averaged over the windows since, stamped with the last in which it ran."""
    gpu = Gpu(
        busy_percent=Timeline(((0, 80), (5, 40))),
        processes=(Process(pid=11, share=0.75), Process(pid=12, share=0.25, until_s=5), Process(pid=13)),
    )
    told = fake_gpu(Scenario(gpus=(gpu,), window_s=1.0), at_s=10).run(
        USE
        + """
rows = use()
tell([rows, use(rows[1][2]), code_of(use, rows[0][2]),
      [[row.pid, row.smUtil] for row in nvmlDeviceGetProcessesUtilizationInfo(gpu, 0)]])
"""
    )
    epoch_us = 1_893_456_000_000_000
    assert told[0] == [[11, 45, epoch_us + 10_000_000], [12, 10, epoch_us + 5_000_000]]
    assert told[1] == [[11, 30, epoch_us + 10_000_000]]
    assert told[2] == NOT_FOUND
    assert told[3] == [[11, 45], [12, 10]]


# ---- Following what fake trainers write ----

ORIGIN_S = 1_000.0


def followed(**options):
    """A scenario in which two GPUs do what tenants write, with driver windows of one second."""
    return Scenario(gpus=(Gpu(), Gpu()), follow=True, window_s=1.0, **options)


def test_two_trainers_share_a_gpu(fake_gpu):
    """The GPU is busy when either runs, each process has its own share, and the other GPU stays idle."""
    machine = fake_gpu(followed(), at_s=10)
    one, two = BusyWriter(machine.tenants, pid=21), BusyWriter(machine.tenants, pid=22)
    for second in range(10):
        start_s = ORIGIN_S + second
        one.kernel(start_s, start_s + 0.4)
        two.kernel(start_s + 0.3, start_s + 0.5)
        two.kernel(start_s + 0.9, start_s + 1.1)
    one.close()
    two.close()
    told = machine.run(USE + "tell([[row[:2] for row in use()], nvmlDeviceGetUtilizationRates(gpu).gpu])")
    assert sorted(told[0]) == [[21, 40], [22, 39]]
    assert told[1] == 60
    assert machine.run(PERCENTS) == [60] * 10
    assert set(machine.run(PERCENTS.replace("ByIndex(0)", "ByIndex(1)"))) == {0}


TRAINER = """
import sys, time
from busy_writer import BusyWriter
writer = BusyWriter(sys.argv[1], memory_bytes=100 << 20)
writer.memory(300 << 20)
writer.kernel(float(sys.argv[2]), float(sys.argv[2]) + 5)
print("writing", flush=True)
sys.stdin.read()
"""


def test_a_process_holds_its_memory_until_it_is_killed(fake_gpu, tmp_path):
    """A real trainer, which has only the one file beside it, vanishes from the list when it dies; its past stays."""
    shutil.copy(busy_writer.__file__, tmp_path)
    (tmp_path / "trainer.py").write_text(TRAINER)
    machine = fake_gpu(followed(pid_offset=1_000_000), at_s=10)
    code = """
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
tell([[[row.pid, row.usedGpuMemory >> 20] for row in nvmlDeviceGetComputeRunningProcesses(gpu)],
      nvmlDeviceGetMemoryInfo(gpu).used >> 20, [row.smUtil for row in nvmlDeviceGetProcessUtilization(gpu, 0)]])
"""
    command = [sys.executable, tmp_path / "trainer.py", machine.tenants, str(ORIGIN_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "writing\n"
        assert machine.run(code) == [[[trainer.pid + 1_000_000, 300]], 300, [50]]
        trainer.kill()
        os.waitid(os.P_PID, trainer.pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet reaped
        assert machine.run(code) == [[], 0, [50]]


# ---- Faults ----


def test_a_fault_can_wait_for_some_calls_and_pass(fake_gpu):
    """Two calls are good, three fail, then it is over; other functions never notice."""
    fault = Fault(function="nvmlDeviceGetPowerUsage", code=10, after_calls=2, calls=3)
    told = fake_gpu(Scenario(faults=(fault,))).run("""
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
tell([[code_of(nvmlDeviceGetPowerUsage, gpu), code_of(nvmlDeviceGetName, gpu)] for _ in range(7)])
""")
    assert told == [[code, 0] for code in (0, 0, 10, 10, 10, 0, 0)]


def test_a_gpu_can_disappear_and_come_back(fake_gpu):
    """From 10 s to 15 s one GPU is lost, handle and all, and the other goes on."""
    scenario = Scenario(gpus=(Gpu(), Gpu()), faults=(Fault(code=LOST, gpu=1, from_s=10, until_s=15),))
    told = fake_gpu(scenario, at_s=0).run("""
nvmlInit(); gpus = [nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
told = []
for t_s in (9.9, 10.0, 14.9, 15.0):
    at(t_s)
    told.append([code_of(nvmlDeviceGetUtilizationRates, gpu) for gpu in gpus]
                + [code_of(nvmlDeviceGetHandleByIndex, 1), nvmlDeviceGetCount()])
tell(told)
""")
    assert told == [[0, 0, 0, 2], [0, LOST, LOST, 2], [0, LOST, LOST, 2], [0, 0, 0, 2]]


# ---- GPM and MIG ----

GPM = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)

def gpm(first_s, second_s, ids, take=lambda sample: nvmlGpmSampleGet(gpu, sample), version=1):
    get = c_nvmlGpmMetricsGet_t(version=version, numMetrics=len(ids))
    for index, number in enumerate(ids):
        get.metrics[index].metricId = number
    get.metrics[len(ids)].value = 4711.0
    get.sample1, get.sample2 = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()
    for t_s, sample in ((first_s, get.sample1), (second_s, get.sample2)):
        at(t_s)
        take(sample)
    try:
        nvmlGpmMetricsGet(get)
    finally:
        nvmlGpmSampleFree(get.sample1)
        nvmlGpmSampleFree(get.sample2)
    assert get.metrics[len(ids)].value == 4711.0, "wrote beyond numMetrics"
    return [[metric.value, metric.nvmlReturn] for metric in get.metrics[:len(ids)]]
"""


def test_mig_reports_utilization_through_gpm_alone(fake_gpu):
    """In MIG mode NVML's own utilization is off, for the GPU and its instances; each instance has its GPM."""
    instances = (
        MigInstance(gpu_instance=7, busy_percent=20),
        MigInstance(gpu_instance=9, uuid="MIG-nine", busy_percent=90, processes=(Process(pid=11, memory_bytes=5),)),
    )
    told = fake_gpu(Scenario(gpus=(Gpu(mig=True, mig_instances=instances), Gpu())), at_s=10).run(
        GPM
        + f"""
nine = nvmlDeviceGetHandleByUUID("MIG-nine")
take = lambda sample: nvmlGpmMigSampleGet(gpu, 9, sample)
tell({{
    "count": nvmlDeviceGetCount(),
    "modes": [nvmlDeviceGetMigMode(nvmlDeviceGetHandleByIndex(index))[0] for index in (0, 1)],
    "off": [code_of(call, device) for device in (gpu, nine) for call in (
        nvmlDeviceGetUtilizationRates, lambda device: nvmlDeviceGetSamples(device, 1, 0),
        lambda device: nvmlDeviceGetProcessUtilization(device, 0))],
    "instances": [nvmlDeviceGetGpuInstanceId(nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)) for index in (0, 1)],
    "no_third": code_of(nvmlDeviceGetMigDeviceHandleByIndex, gpu, 2),
    "parent": nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nine)),
    "process": [[row.pid, row.gpuInstanceId] for row in nvmlDeviceGetComputeRunningProcesses(nine)],
    "memory": nvmlDeviceGetMemoryInfo(nine).used,
    "gpm": gpm(10, 12, [{SM_UTIL}], take),
}})
"""
    )
    assert told == {
        "count": 2,
        "modes": [1, 0],
        "off": [NOT_SUPPORTED] * 6,
        "instances": [7, 9],
        "no_third": NOT_FOUND,
        "parent": 0,
        "process": [[11, 9]],
        "memory": 5,
        "gpm": [[pytest.approx(72.0), 0]],
    }


# ---- Clients that nobody here wrote, and our own ----


def monitor(name):
    """The path of a GPU monitor in this environment."""
    path = shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)
    return path or pytest.skip(f"{name} is not installed")


def watched():
    """Two GPUs, one with a process that exists."""
    process = Process(pid=os.getpid(), memory_bytes=3 << 30, share=1.0)
    busy_gpu = Gpu(busy_percent=73, temperature_c=61, power_mw=321_000, fan_percent=44, processes=(process,))
    return Scenario(gpus=(busy_gpu, Gpu(name="NVIDIA A100-SXM4-40GB", compute_capability=(8, 0))))


def test_gpustat_shows_the_fake(fake_gpu):
    """Names, numbers and the process, as of a real machine."""
    command = [monitor("gpustat"), "--json"]
    machine = fake_gpu(watched(), began_s_ago=30)
    done = subprocess.run(command, env=machine.env, capture_output=True, text=True, timeout=60, check=True)
    shown = json.loads(done.stdout)
    first, second = shown["gpus"]
    assert shown["driver_version"] == "565.57.01"
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert (first["utilization.gpu"], first["temperature.gpu"], first["fan.speed"]) == (73, 61, 44)
    assert (first["power.draw"], first["enforced.power.limit"]) == (321, 700)
    assert (first["memory.used"], first["memory.total"]) == (3 * 1024, 80 * 1024)
    assert [process["pid"] for process in first["processes"]] == [os.getpid()]
    assert second["name"] == "NVIDIA A100-SXM4-40GB"
    assert (second["utilization.gpu"], second["fan.speed"], second["processes"]) == (0, None, [])


def test_nvitop_shows_the_fake(fake_gpu):
    """The same of another monitor, which also complains about every symbol that a driver should have."""
    command = [monitor("nvitop"), "--once", "--ascii"]
    machine = fake_gpu(watched(), began_s_ago=30)
    done = subprocess.run(
        command, env={**machine.env, "COLUMNS": "79"}, capture_output=True, text=True, timeout=60, check=True
    )
    first = next(line for line in done.stdout.splitlines() if "3072MiB" in line or "3.00GiB" in line)
    for figure in ("44%", "61C", "321W / 700W", "73%"):
        assert figure in first
    assert "Driver Version: 565.57.01" in done.stdout
    assert "A100-SXM4-40GB" in done.stdout
    assert str(os.getpid()) in done.stdout
    assert "FunctionNotFound" not in done.stderr


POLLER = """
import math
from autotune.clock import SystemClock
from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.process import GpuPoller
from autotune.measure.gpu.driver import gpus
inventory = gpus()
uuid, now_s = inventory.gpus[-1].uuid, time.monotonic()
readings = GpuTimeline([uuid], since_s=now_s)
lost = []
def take(record):
    readings.add(record)
    if record.kind == "lost":
        lost.append(record.why)
poller = GpuPoller([uuid], take, SystemClock())
deadline_s = now_s + 30.0
while True:
    wait_s = poller.step()
    use = readings.between(now_s - 12.0, now_s - 0.5, started_s=-math.inf).devices[0].figures
    if use.covered_fraction >= 0.9 or lost or time.monotonic() > deadline_s:
        break
    time.sleep(wait_s)
tell([[gpu.name for gpu in inventory.gpus], [use.utilization, use.covered_fraction, use.peak_memory_bytes],
      lost])
poller.close()
"""
