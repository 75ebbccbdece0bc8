"""Readings of a monitor: on screens of all sizes, in log files, for scripts, and the summary."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from autotune.daemon.monitor import MonitorReading, ShownGpu, ShownProcess, ShownVerdict
from autotune.daemon.monitor_display import log_lines, screen

BEAT = "the step waits for data at a regular beat: more prefetch, more workers or a cache"
CYCLIC = ShownVerdict(
    pattern="cyclic", low=0.02, high=0.4, mean=0.21, period_s=2.0, text="2-40 % cyclic, period 2.0 s", meaning=BEAT
)
STARVED = ShownGpu(
    label="GPU 0",
    uuid="GPU-0",
    name="NVIDIA H100 80GB HBM3",
    utilization=0.4,
    minute_utilization=0.21,
    memory_total_bytes=80 << 30,
    throttled_fraction=0.0,
    sm_activity=0.1,
    memory_used_bytes=int(12.4 * 2**30),
    power_w=190.4,
    temperature_c=54,
    sm_clock_mhz=1980,
    clock_reasons=("power limit",),
    verdict=CYCLIC,
    windows=[(place / 2, 0.5, 0.02 if place // 2 % 2 else 0.4) for place in range(1, 121)],
)
PROCESS = ShownProcess(pid=4711, steps_per_s=12.34, samples_per_s=394.9, data_wait_fraction=0.623, silent_s=0.1)


def seen(*gpus: ShownGpu, process: ShownProcess | None = None, notes: tuple[str, ...] = ()) -> MonitorReading:
    """A reading after a bit more than a minute."""
    return MonitorReading(
        t_s=1065.25,
        utc=datetime(2030, 1, 1, 12, 1, 33, tzinfo=UTC),
        watched_s=65.25,
        driver="565.57.01",
        gpus=gpus,
        process=process,
        notes=notes,
    )


def texts(reading: MonitorReading, *, width: int = 80, height: int = 24) -> list[str]:
    """The screen without its styles."""
    return [text for text, _ in screen(reading, width=width, height=height)]


def test_a_starved_gpu_on_an_ordinary_terminal() -> None:
    """Figures, the last minute as a line, the verdict and what it means."""
    assert texts(seen(STARVED)) == [
        "12:01:33 UTC  watched for 1m05s  driver 565.57.01  ^C ends it",
        "",
        "GPU 0  NVIDIA H100 80GB HBM3",
        "  40 % now   21 % in the last minute   12.4 of 80.0 GiB   190 W   54 °C",
        "  1980 MHz (power limit)",
        texts(seen(STARVED))[5],
        "  2-40 % cyclic, period 2.0 s",
        "  the step waits for data at a regular beat: more prefetch, more workers or a",
        "  cache",
    ]
    drawn = texts(seen(STARVED))[5]
    assert len(drawn) == 80
    assert drawn.endswith(" 60 s")
    assert {"▁", "▄"} <= set(drawn)


def test_what_is_not_measured_is_never_nought() -> None:
    """Without utilization there is no percentage, but the reason, and the figures that are known instead."""
    bare = ShownGpu(
        label="GPU 0 MIG 0",
        uuid="MIG-0",
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        memory_total_bytes=10 << 30,
        sm_activity=0.31,
        why_no_utilization="it does not report utilization (Not Supported); the activity of its units is known",
        memory_used_bytes=0,
        absent=("power (Not Supported)",),
    )
    shown = texts(seen(bare), width=100)
    assert shown[2:] == [
        "GPU 0 MIG 0  NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "  utilization not measured   31 % of its multiprocessors   0.0 of 10.0 GiB",
        "  it does not report utilization (Not Supported); the activity of its units is known",
        "  not reported: power (Not Supported)",
    ]
    assert " 0 %" not in "\n".join([*shown, *log_lines(seen(bare))])


def test_a_name_cannot_steer_the_terminal() -> None:
    """The name of a device is text from outside."""
    shown = "\n".join(texts(seen(replace(STARVED, name="A\x1b[2JB\nC"))))
    assert "AB C" in shown
    assert "\x1b" not in shown


def test_a_script_gets_plain_values() -> None:
    """With a version and both clocks; the driver windows themselves stay out; absent is null."""
    document = json.loads(json.dumps(seen(STARVED, process=PROCESS).document()))
    assert (document["format"], document["kind"]) == (1, "reading")
    assert (document["utc"], document["monotonic_s"]) == ("2030-01-01T12:01:33.000+00:00", 1065.25)
    (gpu,) = document["gpus"]
    assert (gpu["utilization"], gpu["minute_utilization"]) == (0.4, 0.21)
    assert gpu["verdict"]["pattern"] == "cyclic"
    assert gpu["verdict"]["period_s"] == 2.0
    assert gpu["own_fraction"] is None
    assert gpu["clock_reasons"] == ["power limit"]
    assert document["process"]["samples_per_s"] == 394.9
    assert seen(STARVED).document()["process"] is None
