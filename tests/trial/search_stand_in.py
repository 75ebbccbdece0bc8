"""A search that makes one run and waits for its end: ``python search_stand_in.py <run folder> <trainer's words>``."""

import sys
from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import RunPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner

folder = Path(sys.argv[1])
clock = SystemClock()
told = False


def watch(events: object) -> None:
    """Tells the test once that the trainer is ready, and who guards it."""
    global told
    if not told and (folder / "ready").exists():
        told = True
        print(guard.pid, flush=True)


with Guard() as guard:
    trainer = str(Path(__file__).with_name("trainer.py"))
    plan = RunPlan(
        run_id=folder.name,
        folder=folder,
        argv=(sys.executable, trainer, *sys.argv[2:]),
        cwd=folder.parent,
        env={},
        config_text="",
    )
    ended = ProcessRunner(guard, clock).run(plan, watch, clock.now_s() + 120.0)
    print(ended.stop, ended.exit_code, flush=True)
