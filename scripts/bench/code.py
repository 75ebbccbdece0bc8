"""Benchmark of what stands in the code: trainers without a config, tuned in the same time by autotune and by loadtune.

Each tool says what it gained; then each one's code is trained plainly, in turn with the code as it was. The interpreter
that trains needs PyTorch and loadtune (0.3.0).
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

import yaml

from scripts.bench.results import Commands, markdown_table

_TRAINER = Path(__file__).with_name("coded_trainer.py")
_LIMITS = ("latency", "augmentation", "step")
_BEST = re.compile(r"best overall: (.*) — ([\d.]+)x baseline")


def _run(arguments: argparse.Namespace) -> None:
    rows = []
    for limit in arguments.limits:
        with tempfile.TemporaryDirectory() as top:
            folders = {name: Path(top, name) for name in ("today", "autotune", "loadtune")}
            for folder in folders.values():
                folder.mkdir()
                shutil.copy(_TRAINER, folder / "train.py")
            told = {"today": 1.0}
            told["autotune"], env = _autotune(folders["autotune"], limit, arguments)
            told["loadtune"] = _loadtune(folders["loadtune"], limit, arguments)
            speeds: dict[str, list[float]] = {name: [] for name in folders}
            for _ in range(arguments.rounds):
                for name, folder in folders.items():
                    speeds[name].append(_plain(folder, limit, arguments, env if name == "autotune" else {}))
            for name in ("autotune", "loadtune"):
                true = median(speeds[name]) / median(speeds["today"])
                (written,) = re.findall(r"DataLoader\(Samples.*", (folders[name] / "train.py").read_text())
                rows.append((limit, name, f"{told[name]:.2f}x", f"{true:.2f}x", f"`{written}`"))
                print(*rows[-1], flush=True)
    print(markdown_table(("limit", "tool", "told", "true", "code"), rows))


def _autotune(folder: Path, limit: str, arguments: argparse.Namespace) -> tuple[float, Mapping[str, str]]:
    """Return what a search claims, and the variables that belong to its answer; the code is written."""

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "autotune", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout

    config = ("--config", "tune.yaml", "--state-dir", str(folder / "state"))
    call("init", *config, "--from-flags", "--yes", "--", arguments.python, "train.py", limit)
    answer = json.loads(call("search", *config, "--budget", f"{arguments.seconds}s", "--no-apply", "--json"))
    call("apply", *config, "--code", "--all", "--force")
    env = yaml.safe_load((folder / "tune.yaml").read_text())["autotune"].get("env", {})
    return answer["speedup"]["ratio"] if answer.get("speedup") else 1.0, env


def _loadtune(folder: Path, limit: str, arguments: argparse.Namespace) -> float:
    """Return what loadtune claims; what it recommends is written into the code, as its snippets say."""
    command = [
        arguments.python,
        "-m",
        "loadtune.cli",
        "tune",
        "train.py",
        "--steps",
        str(arguments.steps),
        "--no-plots",
    ]
    environ = {**os.environ, "LIMIT": limit}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    found = _BEST.search(done.stdout + done.stderr)
    if found is None:
        return 1.0
    knobs = dict(one.partition("=")[::2] for one in found[1].split(", "))
    given = [f"num_workers={knobs['workers']}", *(["persistent_workers=True"] if "persistent" in knobs else [])]
    given += [f"prefetch_factor={knobs['prefetch']}"] if "prefetch" in knobs else []
    text = (
        (folder / "train.py").read_text().replace("batch_size=16)\n", f"{', '.join(['batch_size=16', *given])})\n", 1)
    )
    if "threads" in knobs:
        model = "    model = make_model("
        text = text.replace(model, f"    torch.set_num_threads({knobs['threads']})\n{model}")
    (folder / "train.py").write_text(text)
    return float(found[2])


def _plain(folder: Path, limit: str, arguments: argparse.Namespace, env: Mapping[str, str]) -> float:
    """Return the samples per second of plain training."""
    command = [arguments.python, "train.py", limit, "--seconds", str(arguments.plain)]
    with (folder / "speed").open("w") as out:
        trainer = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **env},
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        trainer.wait()
    with suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGKILL)  # workers of its loader may still be there
    return float((folder / "speed").read_text().split()[-1])


def add_code(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("code", help="what stands in the code of a trainer, tuned by autotune and by loadtune")
    parser.add_argument("--python", required=True, help="interpreter with PyTorch and loadtune")
    parser.add_argument("--limits", nargs="+", choices=_LIMITS, default=_LIMITS)
    parser.add_argument("--seconds", type=int, default=90, help="budget of a search (90)")
    parser.add_argument("--steps", type=int, default=100, help="of each trial of loadtune (100)")
    parser.add_argument("--plain", type=float, default=20.0, help="seconds of a plain training (20)")
    parser.add_argument("--rounds", type=int, default=3, help="plain trainings of each, in turn (3)")
    parser.set_defaults(run=_run)
