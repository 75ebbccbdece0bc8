"""Trainer for tests that puts something else in the place of autotune's files: ``... <config> <kind> <victim>``.

It "trains" by waiting. As soon as steps are seen it replaces every file of its trial, prepares the folder of the next
trial with the same things, and replaces the files of the search, too. What a link leads to is named by the victim.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import yaml

from autotune.trainee import step

NAMES = (
    "config.yaml",
    "imports.jsonl",
    "read.test",
    "result.json",
    "samples.jsonl",
    "stderr.log",
    "stdout.log",
    "steps.1.0.jsonl",
    "unfit.txt",
    "zygote.log",
)


def _replace(path: Path, kind: str, victim: str) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim)


def _spoil(trial: Path, kind: str, victim: str) -> None:
    for name in NAMES:
        _replace(trial / name, kind, victim)
    number = re.search(r"[0-9]+$", trial.name)
    assert number, trial
    following = trial.with_name(f"{trial.name[: number.start()]}{int(number[0]) + 1:0{len(number[0])}d}")
    if kind != "folder" and not following.exists():
        (following / "inject" / "_autotune_trainee").mkdir(parents=True)
        shutil.copy(trial / ".autotune-trial", following)
        for name in (*NAMES, "inject/sitecustomize.py", "inject/_autotune_trainee/loop.py"):
            _replace(following / name, kind, victim)
    for path in (trial.parents[2] / "searches").iterdir():
        _replace(path, kind, victim)


def main() -> None:
    """Train for ever."""
    path, kind, victim = sys.argv[1:]
    size = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["data"]["batch_size"]
    print("Traceback: nothing of this is true", file=sys.stderr, flush=True)
    for count in range(1_000_000):
        time.sleep(0.008 + 0.0004 * size)
        step(samples=size)
        if count == 10:
            _spoil(Path(os.environ["AUTOTUNE_TRIAL_DIR"]), kind, victim)


if __name__ == "__main__":
    main()
