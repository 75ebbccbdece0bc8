"""Misbehaving trainers: ``python -m tests.soak trainers`` searches with each, and measures what comes of it.

Of each search: how long its process took beyond the budget, its exit code, whether ``--json`` gave one object, what was
left running, and whether the user's own files are as they were.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from autotune.trial.deletion import delete_tree
from tests.commands.conftest import CONFIG
from tests.soak_moods import MOODS

MOST_OVERRUN_S = 2.0
TRAINER = Path(__file__).with_name("soak_moods.py")
WEIGHTS = b"the weights of two weeks"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one search."""

    mood: str
    over_s: float
    code: int | None
    said: str
    bad: tuple[str, ...]


def main(arguments: list[str]) -> int:
    """Search with each kind of trainer."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak trainers", description=__doc__)
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", choices=MOODS, help="may be given several times")
    wanted = parser.parse_args(arguments)
    with ThreadPoolExecutor(wanted.jobs) as pool:
        outcomes = []
        for outcome in pool.map(lambda mood: searched(mood, wanted.budget), wanted.only or MOODS):
            outcomes.append(outcome)
            print(
                f"{outcome.mood:<32} {outcome.over_s:+7.2f} s, exit {outcome.code}  {outcome.said:<24} "
                f"{'; '.join(outcome.bad)}",
                flush=True,
            )
    bad = [outcome for outcome in outcomes if outcome.bad]
    worst = max(outcomes, key=lambda outcome: outcome.over_s)
    print(
        f"{len(outcomes)} trainers, worst overrun {worst.over_s:.2f} s ({worst.mood}), {len(bad)} not as they should be"
    )
    return 1 if bad else 0


def searched(mood: str, budget_s: float) -> Outcome:
    """Search in a project of its own, with a checkpoint and a folder of the user's in it."""
    project = Path(tempfile.mkdtemp(prefix="autotune soak "))
    text = (CONFIG % TRAINER).replace("out:", f"mood: {json.dumps(mood)}\nfeatures: features\nout:")
    (project / "config.yaml").write_text(text)
    (project / "model.ckpt").write_bytes(WEIGHTS)
    (project / "features").mkdir()
    (project / "features" / "mine.txt").write_text("x")
    command = [sys.executable, "-m", "autotune", "search", "--config", "config.yaml", "--budget", f"{budget_s:g}s"]
    started_s = time.monotonic()
    with (project / "out").open("wb") as out, (project / "err").open("wb") as err:
        search = subprocess.Popen(
            [*command, "--json"], cwd=project, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = search.wait(budget_s + 120)
        except subprocess.TimeoutExpired:
            search.kill()
            search.wait()
            code = None
    over_s = time.monotonic() - started_s - budget_s
    bad = [] if over_s <= MOST_OVERRUN_S else [f"{over_s:.1f} s too late"]
    if code not in (0, 1):
        bad.append(f"exit code {code}")
    try:
        answer = json.loads((project / "out").read_bytes())
        said = answer.get("verdict") or answer["error"]["kind"]
        if "error" in answer:
            said += f" ({answer['error']['message'][:60]})"
    except (ValueError, KeyError) as error:
        said = ""
        bad.append(f"no JSON: {error}")
    if b"\x1b" in (project / "out").read_bytes() + (project / "err").read_bytes():
        bad.append("an escape sequence was printed")
    if left := _left_running(project):
        bad.append(f"left running: {left}")
    if (project / "config.yaml").read_text() != text:
        bad.append("the config was changed")
    if not (project / "model.ckpt").is_file() or (project / "model.ckpt").read_bytes() != WEIGHTS:
        bad.append("the checkpoint is lost")
    for mount in [
        line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if project.name.split()[-1] in line
    ]:
        subprocess.run(["umount", "--lazy", mount.replace("\\040", " ")], check=False)
    subprocess.run(["chattr", "-R", "-i", str(project)], check=False, capture_output=True)
    if not bad:
        delete_tree(project)
    else:
        bad.append(f"see {project}")
        shutil.rmtree(project / "features", ignore_errors=True)
    return Outcome(mood=mood, over_s=over_s, code=code, said=said, bad=tuple(bad))


def _left_running(project: Path) -> list[str]:
    """List what a trial has left: it carries the trial's folder in its environment, or works in the project."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            place = os.readlink(f"/proc/{pid}/cwd")
            environ = Path("/proc", pid, "environ").read_bytes()
            name = Path("/proc", pid, "comm").read_text().strip()
        except OSError:
            continue
        if place.startswith(str(project)) or f"AUTOTUNE_TRIAL_DIR={project}".encode() in environ:
            found.append(f"{name} ({pid})")
    return found
