"""Promises of the GPU collector when the driver fails: every kind of error at every call that it makes."""

import pynvml
import pytest

from autotune.measure.gpu.driver import FATAL_NAMES, UNFIT_LIBRARY, Trouble, trouble
from autotune.measure.gpu.records import Capability
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, Process, Scenario
from tests.gpu.stage import STAGE

KNOWN = sorted({getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")} | {4711})
CODES = list({(trouble(code), FATAL_NAMES.get(code)): code for code in KNOWN}.values())
"""One code of each kind that is told apart."""

OF_THE_DRIVER = ("nvmlInitWithFlags", "nvmlSystemGetDriverVersion")
OF_A_DEVICE = {
    "nvmlDeviceGetName": Capability.NAME,
    "nvmlDeviceGetMemoryInfo": Capability.MEMORY,
    "nvmlDeviceGetSamples": Capability.SAMPLES,
    "nvmlDeviceGetPowerUsage": Capability.POWER,
    "nvmlDeviceGetTotalEnergyConsumption": Capability.ENERGY,
    "nvmlDeviceGetTemperature": Capability.TEMPERATURE,
    "nvmlDeviceGetClockInfo": Capability.CLOCK,
    "nvmlDeviceGetCurrentClocks*": Capability.REASONS,
    "nvmlDeviceGetComputeRunningProcesses_v3": Capability.HOLDERS,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": Capability.HOLDERS,
    "nvmlDeviceGetProcessUtilization": Capability.SHARES,
    "nvmlGpmQueryDeviceSupport": Capability.ACTIVITY,
    "nvmlGpmSampleAlloc": Capability.ACTIVITY,
    "nvmlGpmSampleGet": Capability.ACTIVITY,
    "nvmlGpmMetricsGet": Capability.ACTIVITY,
}
HANDLE = "nvmlDeviceGetHandleByUUID"
RATES = "nvmlDeviceGetUtilizationRates"  # asked where there are no samples
NO_ANSWER = ("nvmlGpmSampleFree", "nvmlShutdown")  # what only gives back
FUNCTIONS = (*OF_THE_DRIVER, HANDLE, RATES, *OF_A_DEVICE)
LENGTH_S = 20  # of the scenario, for each case; the collector runs for 4 of them


@pytest.fixture(scope="module")
def outcomes(nvml_library, tmp_path_factory):
    """Outcome where one call always failed with one code: by function and code."""
    cases = [(function, code) for function in (*FUNCTIONS, *NO_ANSWER) for code in CODES]
    faults = tuple(
        Fault(function=function, code=code, from_s=place * LENGTH_S, until_s=(place + 1) * LENGTH_S)
        for place, (function, code) in enumerate(cases, start=1)
    )
    faults += tuple(
        Fault(function="nvmlDeviceGetSamples", code=3, from_s=fault.from_s, until_s=fault.until_s)
        for fault in faults
        if fault.function == RATES
    )
    gpu = Gpu(busy_percent=50, processes=(Process(pid=4242, share=1.0),))
    scenario = Scenario(gpus=(gpu,), faults=faults)
    machine = FakeGpu(nvml_library, tmp_path_factory.mktemp("machine"), scenario, at_s=0, began_s_ago=0)
    told = machine.run(
        STAGE
        + f"""
told = []
for place in range(1, {len(cases)} + 1):
    start_s = place * {LENGTH_S} + 5
    lines = sample(start_s, start_s + 4.1)
    device = readings(lines).between(ORIGIN_S + start_s + 1, ORIGIN_S + start_s + 3, own_pids={{4242}}).devices[0]
    told.append({{
        "lost": [(row["uuid"], row["name"]) for row in map(json.loads, lines) if row["k"] == "lost"],
        "absent": list(device.absent),
        "utilization": device.figures.utilization,
        "power_w": device.figures.power_w,
        "foreign": device.figures.foreign_fraction,
    }})
tell(told)
""",
        timeout_s=120,
    )
    return dict(zip(cases, told, strict=True))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_fatal_code_ends_by_its_name(outcomes, function):
    """A lost GPU, a missing driver or a mismatch is told under that name, whichever call met it."""
    for code, name in FATAL_NAMES.items() - {(UNFIT_LIBRARY, FATAL_NAMES[UNFIT_LIBRARY])}:  # no call's answer
        if function == "nvmlSystemGetDriverVersion" and trouble(code) is Trouble.DEVICE_LOST:
            continue  # no device was asked
        lost = outcomes[function, code]["lost"]
        assert {said for _, said in lost} == {name}, (function, code)  # again, if it came back in between
        about_a_device = trouble(code) is Trouble.DEVICE_LOST and function not in OF_THE_DRIVER
        assert (lost[0][0] is not None) == about_a_device, (function, code)


@pytest.mark.parametrize(("function", "capability"), OF_A_DEVICE.items())
def test_other_codes_cost_what_they_are_about_and_nothing_else(outcomes, function, capability):
    """Not supported: off; nothing new: nothing; in passing: nothing. All other numbers stay."""
    for code in CODES:
        kind, told = trouble(code), outcomes[function, code]
        if kind.is_fatal:
            continue
        assert told["lost"] == [], code
        off = kind is Trouble.CAPABILITY_OFF and "Graphics" not in function  # there are GPUs that only compute
        assert told["absent"] == ([capability] if off else []), code
        sampled = capability != Capability.SAMPLES or kind is Trouble.CAPABILITY_OFF  # polled then
        assert (told["utilization"] == pytest.approx(0.5, abs=0.01)) if sampled else told["utilization"] is None
        assert told["power_w"] == pytest.approx(370.0)


def test_a_polled_device_fails_in_the_same_way(outcomes):
    """Without samples and without rates there is no utilization, and everything else."""
    for code in CODES:
        kind, told = trouble(code), outcomes[RATES, code]
        if not kind.is_fatal:
            off = [Capability.RATES] if kind is Trouble.CAPABILITY_OFF else []
            assert told["absent"] == [Capability.SAMPLES, *off], code
            assert (told["utilization"], told["power_w"]) == (None, pytest.approx(370.0)), code


def test_a_gpu_that_cannot_be_had_is_told_after_a_while(outcomes):
    """Whatever the code: no number, and a name."""
    for code in CODES:
        lost = outcomes[HANDLE, code]["lost"]
        assert {name for _, name in lost} <= {*FATAL_NAMES.values(), "GPU not found", "GPU fails"}
        assert lost, code
        assert outcomes[HANDLE, code]["utilization"] is None


def test_what_is_given_back_may_fail(outcomes):
    """An error at the very end costs no number."""
    for function in NO_ANSWER:
        for code in CODES:
            told = outcomes[function, code]
            assert (told["lost"], told["absent"]) == ([], []), (function, code)
            assert told["utilization"] == pytest.approx(0.5, abs=0.01)
