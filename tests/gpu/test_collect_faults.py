"""Promises of the collector's process: whatever one call of the driver does, the others go on, or the end has a name.

All codes at all calls: errors of one device on a machine that has a GPU for each of them, errors of the driver in a
process for each.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.measure.gpu.driver import FATAL_NAMES, Trouble, trouble
from autotune.measure.gpu.samples import CallBlocked, Capability, GpuLost, ReadingCounts
from autotune.measure.gpu.timeline import GpuTimeline
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Process, Scenario
from tests.gpu.collector_process import DEADLINE_S, reading, records_of, until
from tests.gpu.conftest import UUID

OF_A_DEVICE = {
    "nvmlDeviceGetName": Capability.NAME,
    "nvmlDeviceGetSamples": Capability.SAMPLES,
    "nvmlDeviceGetUtilizationRates": Capability.RATES,
    "nvmlDeviceGetMemoryInfo*": Capability.MEMORY,
    "nvmlDeviceGetPowerUsage": Capability.POWER,
    "nvmlDeviceGetTotalEnergyConsumption": Capability.ENERGY,
    "nvmlDeviceGetTemperature*": Capability.TEMPERATURE,
    "nvmlDeviceGetClockInfo": Capability.CLOCK,
    "nvmlDeviceGetCurrentClocksEventReasons": Capability.REASONS,
    "nvmlDeviceGetComputeRunningProcesses*": Capability.HOLDERS,
    "nvmlDeviceGetGraphicsRunningProcesses*": Capability.HOLDERS,
    "nvmlDeviceGetProcessUtilization": Capability.SHARES,
    "nvmlGpmQueryDeviceSupport": Capability.ACTIVITY,
    "nvmlGpmSampleGet": Capability.ACTIVITY,
}
"""The calls that concern a device, and what is lost with each."""

OF_THE_DRIVER = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetHandleByUUID",
    "nvmlGpmSampleAlloc",
    "nvmlGpmMetricsGet",
)

CODES = {
    "no such function": 13,
    "not supported": 3,
    "no permission": 4,
    "not found": 6,
    "insufficient size": 7,
    "timeout": 10,
    "unknown": 999,
    "a code of the future": 4711,
    "GPU is lost": 15,
    "reset required": 16,
}
NO_SAMPLES = CODES["not supported"]  # only then are rates asked for
FATAL = {"uninitialized": 1, "driver not loaded": 9, "library not found": 12, "version mismatch": 18}


@pytest.fixture(scope="module")
def known(nvml_library, tmp_path_factory):
    """Usage that one collector has read in a few seconds on a machine on which every GPU has another fault."""
    cases = list(itertools.product(OF_A_DEVICE, CODES))
    faults = [Fault(function=call, code=CODES[code], gpu=place) for place, (call, code) in enumerate(cases)]
    polled = [place for place, (call, _) in enumerate(cases) if OF_A_DEVICE[call] is Capability.RATES]
    faults += [Fault(function="nvmlDeviceGetSamples", code=NO_SAMPLES, gpu=place) for place in polled]
    gpu = Gpu(busy_percent=50, processes=(Process(pid=77, share=1.0, memory_bytes=3 << 30),))
    folder = tmp_path_factory.mktemp("machine")
    scenario = Scenario(gpus=(gpu,) * (len(cases) + 1), faults=tuple(faults))
    machine = FakeGpu(nvml_library, folder, scenario, at_s=None, began_s_ago=30.0)
    uuids = [UUID.format(place) for place in range(len(cases) + 1)]  # the last one is healthy
    file = folder / "samples.jsonl"
    with reading(file, uuids, env=machine.env):

        def has_read_for_a_while() -> bool:
            told = [record for record in records_of(file) if isinstance(record, ReadingCounts)]
            return sum(record.uuid == uuids[-1] for record in told) >= 4

        until(has_read_for_a_while, "the healthy GPU was not read")
        now_s = time.monotonic()
    readings = GpuTimeline(uuids, since_s=now_s)
    for record in records_of(file):
        readings.add(record)
    devices = readings.between(now_s - 12.0, now_s - 0.5).devices
    return {"healthy": devices[-1], **dict(zip(cases, devices, strict=False))}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", OF_A_DEVICE)
def test_what_one_call_cannot_tell_costs_nothing_else(known, call, code):
    """A reading is off with its reason, or failed and counted, or the GPU is lost under its name; the rest is there."""
    seen, healthy, lost = known[call, code], known["healthy"], OF_A_DEVICE[call]
    means = trouble(CODES[code])
    if means is Trouble.DEVICE_LOST:
        assert seen.lost == FATAL_NAMES[CODES[code]]
        return
    assert (seen.lost, healthy.lost) == (None, None)
    # Of the calls for clock reasons there is an older one, and a card that draws nothing has no graphics processes.
    can_do_without = (call.endswith("Reasons") and code == "no such function") or "Graphics" in call
    absent = [lost] if means is Trouble.CAPABILITY_OFF and not can_do_without else []
    assert list(seen.absent) == ([Capability.SAMPLES, *absent] if lost is Capability.RATES else absent)
    assert list(seen.failed) == ([lost] if means is Trouble.PASSING else [])
    if lost not in (Capability.SAMPLES, Capability.RATES):
        assert seen.figures.utilization == healthy.figures.utilization == pytest.approx(0.5)
        assert seen.invalid is None
    elif lost is Capability.SAMPLES and means is Trouble.CAPABILITY_OFF:
        assert seen.polled
        assert seen.figures.utilization == pytest.approx(0.5)
    else:
        # Where no sample ever comes, the driver is asked for its rates after some seconds.
        assert seen.polled if seen.figures.utilization is not None else seen.why_no_utilization
        assert (seen.figures.utilization is None) or lost is Capability.SAMPLES
        assert (seen.invalid is not None) == (means is Trouble.PASSING)
    told = {
        Capability.MEMORY: seen.figures.peak_memory_bytes,
        Capability.TEMPERATURE: seen.temperature_end_c,
        Capability.CLOCK: seen.sm_clock_mhz,
        Capability.REASONS: seen.figures.throttled_fraction,
        Capability.SHARES: seen.foreign_pids or None,
        Capability.ACTIVITY: seen.figures.sm_activity,
    }
    assert {capability for capability, value in told.items() if value is None} <= {lost, Capability.SHARES}


FORKS = """
import sys
from autotune.measure.gpu.process import collect
for scenario, file in json.load(sys.stdin):
    if os.fork() == 0:
        os.environ["AUTOTUNE_FAKE_NVML"] = scenario
        collect(file, [{uuid!r}])
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.fixture
def collectors(fake_gpu, tmp_path):
    """Starts a collector for each fault, each on a machine of its own; gives the process above them and their files."""
    started = []

    def start(faults: list[Fault]) -> tuple[subprocess.Popen[str], list[Path]]:
        machines = []
        for fault in faults:
            polls = OF_A_DEVICE.get(fault.function) is Capability.RATES
            both = (fault, Fault(function="nvmlDeviceGetSamples", code=NO_SAMPLES)) if polls else (fault,)
            machines.append(fake_gpu(Scenario(gpus=(Gpu(busy_percent=50),), faults=both), began_s_ago=30))
        files = [tmp_path / f"samples.{place}.jsonl" for place in range(len(faults))]
        jobs = [(machine.env["AUTOTUNE_FAKE_NVML"], str(file)) for machine, file in zip(machines, files, strict=True)]
        process = subprocess.Popen(
            [sys.executable, "-c", "import json, os" + FORKS.format(uuid=UUID.format(0))],
            env=machines[0].env,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(jobs))
        process.stdin.close()
        return process, files

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def test_a_lost_driver_ends_the_collector_whichever_call_meets_it(collectors):
    """With the driver's own name for it as the last word, and nothing on stderr."""
    calls = [*OF_THE_DRIVER, *OF_A_DEVICE]
    cases = list(itertools.product(calls, FATAL))
    process, files = collectors([Fault(function=call, code=FATAL[code]) for call, code in cases])
    assert process.wait(timeout=DEADLINE_S) == 0
    assert process.stderr.read() == ""
    for (call, code), file in zip(cases, files, strict=True):
        last = records_of(file)[-1]
        assert isinstance(last, GpuLost), (call, code)
        assert (last.uuid, last.name) == (None, FATAL_NAMES[FATAL[code]]), (call, code)
        assert FATAL_NAMES[FATAL[code]] in last.why or code == "library not found", (call, code)


def test_what_concerns_no_device_may_fail_too(collectors):
    """The GPU is read all the same where the driver's version, or GPM's memory, cannot be had."""
    calls = ("nvmlSystemGetDriverVersion", "nvmlGpmSampleAlloc", "nvmlGpmMetricsGet")
    cases = [(call, code) for call, code in itertools.product(calls, CODES) if not trouble(CODES[code]).is_fatal]
    _, files = collectors([Fault(function=call, code=CODES[code]) for call, code in cases])
    now_s = time.monotonic()
    for (call, code), file in zip(cases, files, strict=True):
        readings = GpuTimeline([UUID.format(0)], since_s=now_s)

        def is_read(file: Path = file, readings: GpuTimeline = readings) -> bool:
            for record in records_of(file):
                readings.add(record)
            (device,) = readings.between(now_s - 10.0, now_s).devices
            return device.figures.utilization is not None

        until(is_read, f"{call}: {code}")


def test_a_call_that_blocks_is_told_of_and_the_collector_can_be_killed(collectors):
    """The process says itself which question has no answer, whichever it is."""
    calls = [*OF_THE_DRIVER, *OF_A_DEVICE]
    process, files = collectors([Fault(function=call, delay_s=600.0) for call in calls])

    def all_said_so() -> bool:
        return all(any(isinstance(record, CallBlocked) for record in records_of(file)) for file in files)

    until(all_said_so, "a call that blocks was not told of")
    for call, file in zip(calls, files, strict=True):
        (blocked,) = (record for record in records_of(file) if isinstance(record, CallBlocked))
        assert blocked.capability == OF_A_DEVICE.get(call, blocked.capability), call
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=DEADLINE_S)
