"""Promises of the fake GPU: the unmodified `pynvml`, and monitors that nobody here wrote, see what a scenario says."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_nvml import busy_writer
from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.library import build
from tests.fake_nvml.scenario import (
    ANY_TENSOR_UTIL,
    DRAM_BW_UTIL,
    SM_OCCUPANCY,
    SM_UTIL,
    Bursts,
    Constant,
    Fault,
    Gpu,
    MigInstance,
    Noise,
    OfBusy,
    Process,
    ProcessKind,
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


def test_no_gpu_is_a_machine_too(fake_gpu):
    """A driver without a GPU counts none."""
    assert fake_gpu(Scenario(gpus=())).run("nvmlInit(); tell(nvmlDeviceGetCount())") == 0


def test_nothing_answers_before_init_and_after_shutdown(fake_gpu):
    """Each init wants its own shutdown, as with the real library."""
    told = fake_gpu().run("""
nvmlInit(); nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
codes = []
for _ in range(2):
    nvmlShutdown()
    codes.append(code_of(nvmlDeviceGetName, gpu))
tell(codes)
""")
    assert told == [0, 1]


def test_a_scenario_that_cannot_be_read_says_which_line(fake_gpu):
    """A slip in a test shows at once, with its place, not as a strange number."""
    machine = fake_gpu()
    Path(machine.env["AUTOTUNE_FAKE_NVML"]).write_text("window_s 0.2\ngpu\nbusy_percent wobble low=1\n")
    with pytest.raises(AssertionError, match=r':3: cannot read "busy_percent wobble low=1"'):
        machine.run("nvmlInit()")


# ---- Utilization ----


def test_a_constant_fills_the_ring_with_stamps_one_window_apart(fake_gpu):
    """After a minute the driver's last 100 windows are there, oldest first, the newest just ended."""
    told = fake_gpu(busy(37, window_s=0.25), at_s=60.1).run(SAMPLES + "tell(samples())")
    stamps = [stamp for stamp, _ in told]
    assert [percent for _, percent in told] == [37] * 100
    assert {later - earlier for earlier, later in itertools.pairwise(stamps)} == {250_000}
    assert stamps[-1] == (1_893_456_000 + 60) * 1_000_000


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


def test_a_step_within_a_window_is_weighted_by_time(fake_gpu):
    """90 % for three quarters of a window and 10 % for the rest are 70 %; before the first point its value holds."""
    timeline = Timeline(((0.5, 90), (1.75, 10), (2.5, 100)))
    assert fake_gpu(busy(timeline, window_s=1.0), at_s=4).run(PERCENTS) == [90, 70, 55, 100]


def test_a_ramp_is_averaged_exactly(fake_gpu):
    """The mean over a stretch of a straight line is the value in its middle."""
    assert fake_gpu(busy(Ramp(20, 80, 1.0, 3.0), window_s=1.0), at_s=5).run(PERCENTS) == [20, 35, 65, 80, 80]


def test_signals_add_up_and_stay_between_0_and_100(fake_gpu):
    """A wave with noise on it never leaves the scale."""
    signal = (Square(0, 100, period_s=2.0), Noise(-20, 20, period_s=0.25, seed=5))
    percents = fake_gpu(busy(signal, window_s=0.25), at_s=25).run(PERCENTS)
    low, high = [p for p in percents if p < 50], [p for p in percents if p >= 50]
    assert min(percents) == 0
    assert max(percents) == 100
    assert len(set(percents)) > 20
    assert max(low) <= 20
    assert min(high) >= 80


def test_noise_is_the_same_for_everybody_and_new_with_each_seed(fake_gpu):
    """Two processes read the same series; another seed gives another."""
    machine = fake_gpu(busy(Noise(20, 60, period_s=0.5, seed=1), window_s=0.5), at_s=50)
    first, second = machine.run(PERCENTS), machine.run(PERCENTS)
    other = fake_gpu(busy(Noise(20, 60, period_s=0.5, seed=2), window_s=0.5), at_s=50).run(PERCENTS)
    assert first == second
    assert first != other
    assert all(20 <= percent <= 60 for percent in first)
    assert sum(first) / 100 == pytest.approx(40, abs=4)


def test_bursts_keep_their_duty_without_a_period(fake_gpu):
    """One burst in every period, each at another place: the mean is known, the gaps are not equal."""
    signal = Bursts(0, 100, period_s=1.0, length_s=0.25, seed=3)
    percents = fake_gpu(busy(signal, window_s=0.05, ring=400), at_s=20).run(PERCENTS)
    assert sum(percents) / len(percents) == pytest.approx(25, abs=0.5)
    starts = [index for index in range(1, 400) if percents[index] and not percents[index - 1]]
    assert len({later - earlier for earlier, later in itertools.pairwise(starts)}) > 3


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


def test_what_the_ring_no_longer_holds_is_lost(fake_gpu):
    """A drain that comes too late misses samples, as with a driver."""
    told = fake_gpu(busy(Ramp(0, 100, 0, 100), window_s=1.0, ring=5), at_s=10).run(PERCENTS)
    assert told == [6, 7, 8, 9, 10]


def test_utilization_rates_repeat_the_last_window(fake_gpu):
    """Between two ends of windows polling gives the same number again; before the first there is nothing but 0."""
    told = fake_gpu(busy(Timeline(((0, 80), (1, 30))), window_s=0.5), at_s=0.1).run(
        SAMPLES
        + """
rates = []
for t_s in (0.1, 0.5, 0.7, 1.4, 1.5, 1.9):
    at(t_s)
    rates.append(nvmlDeviceGetUtilizationRates(gpu).gpu)
tell(rates)
"""
    )
    assert told == [0, 80, 80, 80, 30, 30]


def test_a_window_can_be_published_late(fake_gpu):
    """With a delay of 0.3 s the newest window is the one that ended at least so long ago."""
    scenario = busy(Timeline(((0, 80), (1, 30))), window_s=0.5, publish_delay_s=0.3)
    code = SAMPLES + "rate = lambda t_s: (at(t_s), nvmlDeviceGetUtilizationRates(gpu).gpu)[1]\n"
    assert fake_gpu(scenario, at_s=0).run(code + "tell([rate(1.79), rate(1.8)])") == [80, 30]


def test_stamps_count_from_boot_on_some_drivers(fake_gpu):
    """The same windows, stamped on the monotonic clock."""
    scenario = busy(50, window_s=0.5, stamps_since_boot=True)
    told = fake_gpu(scenario, at_s=1.2).run(SAMPLES + "tell([stamp for stamp, percent in samples()])")
    assert told == [1_000_500_000, 1_001_000_000]


def test_stamps_match_the_clocks_of_the_machine(fake_gpu):
    """Unless time is frozen, the newest window ended just now, by the wall clock and by the clock since boot."""
    for since_boot, clock in ((False, "time.time()"), (True, "time.monotonic()")):
        machine = fake_gpu(busy(50, stamps_since_boot=since_boot), began_s_ago=30)
        ages = machine.run(SAMPLES + f"tell([{clock} - stamp / 1e6 for stamp, percent in samples()][-1])")
        assert -0.01 <= ages < 60


def test_an_idle_driver_may_write_nothing(fake_gpu):
    """Samples run dry where nothing runs; the rates still say 0."""
    scenario = busy(Timeline(((0, 60), (2, 0), (4, 70))), window_s=1.0, dry_when_idle=True)
    told = fake_gpu(scenario, at_s=3.5).run(
        SAMPLES
        + """
first = samples()
told = [first, code_of(samples, first[-1][0]), nvmlDeviceGetUtilizationRates(gpu).gpu]
at(6.0)
tell([*told, samples(first[-1][0])])
"""
    )
    (first, code, rate, rest) = told
    assert [percent for _, percent in first] == [60, 60]
    assert (code, rate) == (NOT_FOUND, 0)
    assert [percent for _, percent in rest] == [70, 70]


def test_garbage_stands_among_the_samples_of_some_drivers(fake_gpu):
    """Every seventh value is one that no percentage can have."""
    percents = fake_gpu(busy(40, window_s=0.5, garbage=True), at_s=10).run(PERCENTS)
    assert set(percents) == {40, 2147483632}
    assert percents.count(2147483632) == 2


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


def test_energy_is_the_integral_of_power(fake_gpu):
    """Two seconds at 100 W and three at 300 W are 1,100 J."""
    gpu = Gpu(power_mw=Timeline(((0, 100_000), (2, 300_000))))
    code = "nvmlInit(); tell(nvmlDeviceGetTotalEnergyConsumption(nvmlDeviceGetHandleByIndex(0)))"
    assert fake_gpu(Scenario(gpus=(gpu,)), at_s=5).run(code) == 1_100_000


def test_memory_counts_what_processes_hold(fake_gpu):
    """The first version of the call counts the driver's own share as used, the second sets it apart."""
    gpu = Gpu(
        memory_total_bytes=1_000,
        memory_reserved_bytes=100,
        memory_used_bytes=20,
        processes=(Process(pid=1, memory_bytes=300), Process(pid=2, memory_bytes=5, kind=ProcessKind.GRAPHICS)),
    )
    told = fake_gpu(Scenario(gpus=(gpu,))).run("""
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
v1, v2 = nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2)
tell([[v1.total, v1.used, v1.free], [v2.total, v2.reserved, v2.used, v2.free],
      code_of(lambda: nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2 + 1))])
""")
    assert told == [[1_000, 425, 575], [1_000, 100, 325, 575], 25]


# ---- Processes ----


def test_processes_stand_in_the_list_of_their_kind_while_they_live(fake_gpu):
    """They come and go at their times, in every version of the call."""
    gpu = Gpu(
        processes=(
            Process(pid=11, memory_bytes=1 << 20),
            Process(pid=12, memory_bytes=2 << 20, from_s=5, until_s=10),
            Process(pid=13, kind=ProcessKind.GRAPHICS),
        )
    )
    told = fake_gpu(Scenario(gpus=(gpu,)), at_s=0).run("""
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
def pids(call):
    return [[row.pid, row.usedGpuMemory >> 20, row.gpuInstanceId] for row in call(gpu)]
def at_times(call):
    return [(at(t_s), pids(call))[1] for t_s in (4.9, 5.0, 9.9, 10.0)]
tell([at_times(nvmlDeviceGetComputeRunningProcesses), at_times(nvmlDeviceGetComputeRunningProcesses_v2),
      pids(nvmlDeviceGetGraphicsRunningProcesses), pids(nvmlDeviceGetMPSComputeRunningProcesses)])
""")
    none = 0xFFFFFFFF
    one, two = [11, 1, none], [12, 2, none]
    assert told == [[[one], [one, two], [one, two], [one]]] * 2 + [[[13, 0, none]], []]


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


@pytest.mark.parametrize(("empty_size_is_success", "code"), [(False, NOT_FOUND), (True, 0)])
def test_no_process_rows_is_an_error_of_one_of_two_kinds(fake_gpu, empty_size_is_success, code):
    """The bindings raise either way: not found, or an error whose code is success."""
    scenario = Scenario(empty_size_is_success=empty_size_is_success)
    told = fake_gpu(scenario, at_s=10).run(
        USE
        + """
try:
    use()
except NVMLError as error:
    tell(error.value)
"""
    )
    assert told == code


def test_garbage_stands_among_the_process_rows_of_some_drivers(fake_gpu):
    """A row of process 0 and one that is busier than can be, beside the true one."""
    gpu = Gpu(busy_percent=50, processes=(Process(pid=11, share=1.0),))
    told = fake_gpu(Scenario(gpus=(gpu,), garbage=True), at_s=10).run(USE + "tell([row[:2] for row in use()])")
    assert told == [[11, 50], [0, 2147483632], [11, 2147483632]]


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


def test_a_past_window_is_exact_and_the_same_for_every_reader(fake_gpu):
    """Kernels that begin and end anywhere, and cross windows, are counted to the nanosecond by all who look."""
    machine = fake_gpu(followed(), at_s=20)
    writer = BusyWriter(machine.tenants, 1, pid=21)
    spans = [(0.1 + 0.7 * n, 0.1 + 0.7 * n + 0.05 * (n % 11)) for n in range(28)]
    for start_s, end_s in reversed(spans):
        writer.kernel(ORIGIN_S + start_s, ORIGIN_S + end_s)
    writer.close()
    wanted = [100 * sum(max(0.0, min(end_s, w + 1) - max(start_s, w)) for start_s, end_s in spans) for w in range(20)]
    code = PERCENTS.replace("ByIndex(0)", "ByIndex(1)")
    first, second = machine.run(code), machine.run(code)
    assert first == second == pytest.approx(wanted, abs=0.51)


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


def test_a_process_gives_its_gpu_back_before_it_ends(fake_gpu):
    """A closed writer holds nothing, though its process lives on."""
    machine = fake_gpu(followed(), at_s=10)
    code = """
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
tell([row.pid for row in nvmlDeviceGetComputeRunningProcesses(gpu)])
"""
    writer = BusyWriter(machine.tenants)
    assert machine.run(code) == [os.getpid()]
    writer.close()
    writer.close()
    assert machine.run(code) == []


def test_a_torn_record_is_not_read(fake_gpu):
    """A trainer that was killed within a write leaves all that it wrote before."""
    machine = fake_gpu(followed(), at_s=2)
    BusyWriter(machine.tenants, pid=21).kernel(ORIGIN_S, ORIGIN_S + 1)
    with (machine.tenants / "21.busy").open("ab") as file:
        file.write(b"\0" * 13)
    (machine.tenants / "notes.txt").write_text("not a tenant")
    assert machine.run(PERCENTS) == [100, 0]


# ---- Faults ----


@pytest.mark.parametrize("code", [9, 18, 4])
def test_init_can_fail(fake_gpu, code):
    """No driver loaded, a driver of another version, no permission: each by its code."""
    machine = fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=code),)))
    assert machine.run("tell(code_of(nvmlInit))") == code


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


def test_a_fault_can_wait_for_its_switch(fake_gpu):
    """It fails while the switch is on, for all processes: a fault at a moment that nobody knows beforehand."""
    machine = fake_gpu(Scenario(faults=(Fault(function="nvmlDeviceGetName", code=LOST, switch="pulled"),)))
    code = "nvmlInit(); tell(code_of(nvmlDeviceGetName, nvmlDeviceGetHandleByIndex(0)))"
    told = [machine.run(code)]
    for on in (True, False):
        machine.switch("pulled", on=on)
        told.append(machine.run(code))
    assert told == [0, LOST, 0]


def test_a_call_can_hang_while_others_go_on(fake_gpu):
    """The delay is real time, and holds no other thread up."""
    scenario = Scenario(faults=(Fault(function="nvmlDeviceGetMemoryInfo*", delay_s=0.5, code=10),))
    told = fake_gpu(scenario).run("""
import threading
nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)
told = []
def slow():
    start_s = time.monotonic()
    told.append([code_of(nvmlDeviceGetMemoryInfo, gpu), time.monotonic() - start_s >= 0.5])
thread = threading.Thread(target=slow)
thread.start()
quick = 0
while thread.is_alive():
    quick += nvmlDeviceGetName(gpu) != ""
thread.join()
tell([told, quick > 1])
""")
    assert told == [[[10, True]], True]


def test_many_threads_read_the_same_samples(fake_gpu):
    """Threads that drain at once, and count calls for a fault, don't disturb each other."""
    scenario = busy(
        Noise(0, 100, period_s=0.1), faults=(Fault(function="nvmlDeviceGetName", code=10, after_calls=799),)
    )
    told = fake_gpu(scenario, at_s=30).run(
        SAMPLES
        + """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    series = list(pool.map(lambda _: samples(), range(80)))
    codes = list(pool.map(lambda _: code_of(nvmlDeviceGetName, gpu), range(800)))
tell([all(one == series[0] for one in series), len(series[0]), codes.count(0)])
"""
    )
    assert told == [True, 100, 799]


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


def test_gpm_averages_between_two_samples(fake_gpu):
    """Exact means, whatever the driver windows; NaN stays NaN; what the GPU has not is said metric by metric."""
    gpu = Gpu(
        busy_percent=Timeline(((0, 100), (2, 50))),
        gpm={
            SM_UTIL: OfBusy(0.5),
            SM_OCCUPANCY: 30.5,
            ANY_TENSOR_UTIL: Timeline(((0, 0), (1, 80))),
            DRAM_BW_UTIL: Constant(math.nan),
        },
    )
    told = fake_gpu(Scenario(gpus=(gpu,)), at_s=0).run(
        GPM + f"tell(gpm(0.5, 4.5, [{SM_UTIL}, {SM_OCCUPANCY}, {ANY_TENSOR_UTIL}, {DRAM_BW_UTIL}, 20]))"
    )
    assert told[:3] == [[pytest.approx(34.375), 0], [pytest.approx(30.5), 0], [pytest.approx(70.0), 0]]
    assert math.isnan(told[3][0])
    assert told[4] == [0.0, NOT_SUPPORTED]


def test_gpm_samples_that_are_too_close_give_no_number(fake_gpu):
    """Below 100 ms there is nothing to divide by."""
    code = GPM + f"tell([gpm(1.0, end_s, [{SM_UTIL}])[0] for end_s in (1.09, 1.1)])"
    told = fake_gpu(busy(50), at_s=0).run(code)
    assert math.isnan(told[0][0])
    assert told[1] == [pytest.approx(40.0), 0]


def test_gpm_checks_versions_and_permission(fake_gpu):
    """A struct of another version, and a user who may not, are refused with NVML's own codes."""
    denied = Fault(function="nvmlGpmSampleGet", code=4, from_s=10)
    code = GPM + f"tell([code_of(gpm, 0, 1, [{SM_UTIL}], version=2), "
    code += f"code_of(gpm, 10, 11, [{SM_UTIL}]), nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice])"
    assert fake_gpu(Scenario(faults=(denied,)), at_s=0).run(code) == [25, 4, 1]


def test_gpm_is_a_matter_of_the_architecture(fake_gpu):
    """Ampere says that it has none, and takes no samples."""
    code = GPM + "tell([nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice, code_of(gpm, 0, 1, [2])])"
    ampere = Scenario(gpus=(Gpu(compute_capability=(8, 0)),))
    assert fake_gpu(ampere, at_s=0).run(code) == [0, NOT_SUPPORTED]


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


@pytest.mark.parametrize("since_boot", [False, True])
def test_the_poller_measures_a_wave(fake_gpu, since_boot):
    """Autotune's own collector finds the mean of the true function, with either sort of stamps."""
    wave = Square(10, 90, period_s=0.5)
    gpu = Gpu(busy_percent=wave, memory_used_bytes=7 << 30)
    machine = fake_gpu(Scenario(gpus=(Gpu(name="other"), gpu), stamps_since_boot=since_boot), began_s_ago=60)
    names, use, lost = machine.run(POLLER)
    assert names == ["other", "NVIDIA H100 80GB HBM3"]
    assert lost == []
    utilization, covered, memory_bytes = use
    assert utilization == pytest.approx(0.5, abs=0.02)
    assert covered > 0.9
    assert memory_bytes == 7 << 30


def test_the_poller_says_when_a_gpu_is_lost(fake_gpu):
    """A GPU that fell off its bus is not measured, and the reason is the driver's."""
    fault = Fault(function="nvmlDeviceGetSamples", code=LOST)
    machine = fake_gpu(Scenario(faults=(fault,)), began_s_ago=60)
    _, use, lost = machine.run(POLLER)
    assert use[0] is None
    assert "GPU is lost" in lost[0]


def test_the_poller_sees_what_a_tenant_writes(fake_gpu):
    """A trainer that starves its GPU every other quarter of a second leaves it half idle, to the collector too."""
    machine = fake_gpu(Scenario(follow=True), began_s_ago=30)
    writer = BusyWriter(machine.tenants, memory_bytes=1 << 30)
    for quarter in range(0, 600, 2):
        writer.kernel(machine.origin_s + quarter / 4, machine.origin_s + quarter / 4 + 0.25)
    _, use, _ = machine.run(POLLER)
    writer.close()
    utilization, _, memory_bytes = use
    assert utilization == pytest.approx(0.5, abs=0.02)
    assert memory_bytes == 1 << 30
