"""A search of one trial, which it waits for: ``search_stand_in.py <trial folder> [--warm] <trainer's words>``."""

import sys
from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.folders import TEMPORARY_VARIABLE, temporary_folder
from autotune.trial.launch import Guard, ProcessRunner
from autotune.trial.warm import ZygoteRunner

folder, *words = sys.argv[1:]
folder = Path(folder)
is_warm = words[0] == "--warm"
words = words[is_warm:]
clock = SystemClock()
told = False


def watch(events: object) -> None:
    """Tell the test once that the trainer is ready, and the process id of its guard."""
    global told
    if not told and (folder / "ready").exists():
        told = True
        print(guard.pid, flush=True)


def plan(*words: str, name: str = "") -> TrialPlan:
    """Plan a trial of the trainer."""
    return TrialPlan(
        trial_id=folder.name,
        folder=folder.with_name(folder.name + name),
        argv=(sys.executable, str(Path(__file__).with_name("numpy_trainer.py" if is_warm else "trainer.py")), *words),
        cwd=folder.parent,
        env={TEMPORARY_VARIABLE: str(temporary_folder(folder.with_name(folder.name + name)))},
        config_text="",
    )


with Guard() as guard:
    runner = (ZygoteRunner if is_warm else ProcessRunner)(guard, clock)
    if is_warm:  # the first one shows its imports
        runner.run(plan("trains", "1", name="-first"), lambda _: None, clock.now_s() + 120.0)
    ended = runner.run(plan(*words), watch, clock.now_s() + 120.0)
    print(ended.stop, ended.exit_code, flush=True)
