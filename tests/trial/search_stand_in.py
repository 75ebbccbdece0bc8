"""A search of one trial, which it waits for: ``search_stand_in.py <trial folder> [--warm] <trainer's words>``."""

import sys
from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from autotune.trial.warm import ZygoteRunner

folder, *words = sys.argv[1:]
folder = Path(folder)
runner_type = ProcessRunner
if words[0] == "--warm":
    words, runner_type = words[1:], ZygoteRunner
clock = SystemClock()
told = False


def watch(events: object) -> None:
    """Tell the test once that the trainer is ready, and the process id of its guard."""
    global told
    if not told and (folder / "ready").exists():
        told = True
        print(guard.pid, flush=True)


with Guard() as guard:
    trainer = str(Path(__file__).with_name("trainer.py"))
    plan = TrialPlan(
        trial_id=folder.name,
        folder=folder,
        argv=(sys.executable, trainer, *words),
        cwd=folder.parent,
        env={},
        config_text="",
    )
    ended = runner_type(guard, clock).run(plan, watch, clock.now_s() + 120.0)
    print(ended.stop, ended.exit_code, flush=True)
