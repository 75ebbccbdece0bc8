"""Check of the GPUs, on machines with the fake driver."""

import json

from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Process, Scenario

LOOK = """
from autotune.clock import SystemClock
from autotune.diagnose.machine_checks import check_hardware
from autotune.diagnose.subject import Subject
result = check_hardware(Subject(problem=None, clock=SystemClock()))
tell([result.sentence, [[str(issue.severity), issue.place, issue.sentence] for issue in result.issues]])
"""


def look(machine):
    """Return the sentence, and severity, place and sentence of each issue."""
    return machine.run(LOOK)


def test_a_healthy_gpu_is_told_and_nothing_is_wrong(fake_gpu):
    """Its name, memory and driver."""
    sentence, issues = look(fake_gpu(Scenario(gpus=(Gpu(), Gpu(name="NVIDIA A100-SXM4-80GB")))))
    assert sentence == "NVIDIA H100 80GB HBM3 (80 GiB), NVIDIA A100-SXM4-80GB (80 GiB); driver 565.57.01"
    assert issues == []


HELD_BACK = [
    (Gpu(event_reasons=0x40, temperature_c=93), "warning", "throttled now at 93 °C: heat (hardware)."),
    (Gpu(event_reasons=0x80), "warning", "power brake"),
    (Gpu(power_limit_mw=350_000), "note", "is 350 W; its default is 700 W"),
    (Gpu(pcie_width=4), "warning", "uses 4 of 16 possible PCIe lanes"),
    (Gpu(persistence=0), "note", "is unloaded when unused"),
    (Gpu(mig=True, mig_instances=(MigInstance(),)), "note", "has 1 MIG instances"),
    (Gpu(processes=(Process(pid=4711, memory_bytes=1 << 30),)), "warning", "is in use by process 4711"),
]


def test_what_holds_a_gpu_back_is_named(fake_gpu):
    """Each by itself, on the GPU that it is about; idle clocks and a power cap under load are none of it."""
    _, issues = look(fake_gpu(Scenario(gpus=(*(gpu for gpu, *_ in HELD_BACK), Gpu(event_reasons=0x5)))))
    assert len(issues) == len(HELD_BACK)
    for number, (_, severity, said) in enumerate(HELD_BACK):
        ((weight, sentence),) = [
            (weight, text) for weight, place, text in issues if place.startswith(f"GPU-{number:08}")
        ]
        assert weight == severity
        assert said in sentence


def test_a_driver_that_does_not_work_is_a_warning_with_its_reason(fake_gpu):
    """A GPU that is lost, and a driver that differs from its library."""
    _, issues = look(fake_gpu(Scenario(gpus=(Gpu(), Gpu()), faults=(Fault(code=15, gpu=1),))))
    assert ["GPU 1 cannot be used" in sentence for _, _, sentence in issues] == [True]
    sentence, issues = look(fake_gpu(Scenario(faults=(Fault(function="nvmlInit*", code=18),))))
    assert "driver and library differ in version" in json.dumps([sentence, issues])
    assert issues[0][0] == "warning"


def test_gpus_that_say_little_are_no_issue(fake_gpu):
    """A device that answers none of the questions beyond its name."""
    silent = ("nvmlDeviceGetPo*", "nvmlDeviceGetPers*", "nvmlDeviceGetCurr*", "nvmlDeviceGetMax*", "nvmlDeviceGetTemp*")
    scenario = Scenario(faults=tuple(Fault(function=name, code=3) for name in silent))
    assert look(fake_gpu(scenario))[1] == []
