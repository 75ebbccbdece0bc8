"""Live display of a search."""

from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from autotune.clock import VirtualClock
from autotune.events import Event, IncumbentChanged, PhaseChanged, SearchEnded, TrialProgress, TrialStarted
from autotune.records import GpuRole, Purpose
from autotune.report.live import SearchDisplay
from tests.report.conftest import BASELINE, MakeEnded
from tests.runs import measured


def drawn(*events: Event, width: int, **options: Any) -> str:
    """Return what a display has written after these events."""
    file = StringIO()
    console = Console(file=file, width=width, **options)
    with SearchDisplay(console, VirtualClock(), started_s=0.0, budget_s=60.0) as display:
        for event in events:
            display(event)
    return file.getvalue()


def test_a_log_file_gets_lines_and_nothing_else(trial_ended: MakeEnded) -> None:
    """One for each thing worth knowing, in order, without escape sequences or half-drawn bars."""
    clock, file = VirtualClock(1000.0), StringIO()
    console = Console(file=file, width=40)
    with SearchDisplay(console, clock, started_s=998.0, budget_s=60.0) as display:
        display(PhaseChanged(phase="exploring", why="looking for better values"))
        display(TrialStarted(number=3, purpose=Purpose.EXPLORE, changes={"data.cache": "[memory]"}))
        for steps in range(50):
            clock.wait(0.1)
            display(TrialProgress(number=3, elapsed_s=0.1 * steps, steps=steps))
        display(trial_ended(changes={"data.cache": "[memory]"}))
        display(IncumbentChanged(values=BASELINE, changes={"data.cache": "[memory]"}, speedup=1.5))
        display(SearchEnded(verdict=None, trials=1, elapsed_s=5.0))
    shown = file.getvalue()
    lines = shown.splitlines()
    assert [line.partition("] ")[0] for line in lines] == ["[  2.0s", "[  7.0s", "[  7.0s"]
    assert [line.partition("] ")[2].split(" ")[0] for line in lines] == ["exploring:", "trial", "best"]
    assert "\x1b" not in shown
    assert "cache=[memory]" in lines[1]


def test_a_long_line_stays_one_line(trial_ended: MakeEnded) -> None:
    """In a log file a trial is found by `grep`, however much it changes."""
    ended = trial_ended(changes={f"section.knob_{i}": i for i in range(20)})
    assert len(drawn(ended, width=40).splitlines()) == 1


def test_a_terminal_sees_what_runs_now() -> None:
    """The same lines scroll by; below them time, phase, the best and the present run are drawn, and go in the end."""
    clock, file = VirtualClock(1000.0), StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    with SearchDisplay(console, clock, started_s=990.0, budget_s=60.0) as display:
        display(PhaseChanged(phase="exploring", why="looking for better values"))
        display(IncumbentChanged(values=BASELINE, changes={"data.cache": "[memory]"}, speedup=1.5))
        display(TrialStarted(number=3, purpose=Purpose.CONFIRM, changes={"data.batch_size": 32}, pair=3))
        clock.wait(5.0)
        display(TrialProgress(number=3, elapsed_s=5.0, steps=17))
    shown = file.getvalue()
    assert "[   10s] best so far: 1.50x today's speed with cache=[memory]" in shown
    last = shown.rpartition("best   ")
    assert "15s of 1m 0 trials exploring at most 45s left" in last[0]
    assert last[2].startswith("1.50x today  cache=[memory]\nnow    trial 3 pair 4: batch_size=32  17 steps\n")
    assert last[2].endswith("\x1b[2K")


def test_a_terminal_sees_how_busy_the_gpus_were(trial_ended: MakeEnded) -> None:
    """Of the last trial, nothing where that was not measured; those of data and model while a trial goes on."""

    def last_drawn(*events: Event) -> str:
        return drawn(*events, width=120, force_terminal=True, color_system=None).rpartition("0.0s of 1m")[2]

    busy = trial_ended(measurement=replace(measured(61.5), gpu_utilization=0.41))
    assert "1 trials, last GPU 41 % starting" in last_drawn(busy)
    assert "2 trials starting" in last_drawn(busy, trial_ended())
    started = TrialStarted(number=3, purpose=Purpose.EXPLORE, changes={"model_gpu": 1})
    both = {GpuRole.MODEL: 0.91, GpuRole.DATA: 0.624}
    shown = last_drawn(started, TrialProgress(number=3, elapsed_s=5.0, steps=17, utilization=both))
    assert "trial 3 explore: model_gpu=1  17 steps  data GPU 62 %, model GPU 91 %" in shown
