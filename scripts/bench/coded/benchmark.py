"""Benchmark of what stands in the code: six trainers without a config, tuned in the same time by us and by others.

Each tool says what it gained; then each one's code is trained plainly, in turn with the code as it was. The interpreter
that trains needs what the trainers import: PyTorch, loadtune, optuna, fournex and lightning; TensorFlow; Transformers
and accelerate.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from scripts.bench.results import Commands, markdown_table

_HERE = Path(__file__).parent
_BEST_OF_LOADTUNE = re.compile(r"best overall: (.*) — ([\d.]+)x baseline")
_BATCH_OF_LIGHTNING = re.compile(r"Batch size (\d+) succeeded")
_LOADER = "batch_size=16)\n"
_GRACE_S = 20  # for what counts its time itself: imports, and what is under way, come on top


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trainer of this benchmark.

    Attributes:
        file: Its script in this folder.
        tools: Names of what tunes it, beside autotune.
        today: What its code is to begin with: texts of the script and what stands in their place.
    """

    file: str
    tools: tuple[str, ...]
    today: Mapping[str, str] = field(default_factory=dict)


_OF_TORCH = ("loadtune", "fournex", "Lightning's Tuner", "Optuna script")
TRAINERS = {
    "disk": Trainer(file="torch_trainer.py", tools=_OF_TORCH),
    "augmentation": Trainer(file="torch_trainer.py", tools=_OF_TORCH),
    "latency": Trainer(file="torch_trainer.py", tools=_OF_TORCH),
    "images": Trainer(file="tensorflow_trainer.py", tools=("tf.data AUTOTUNE",)),
    "text": Trainer(file="transformers_trainer.py", tools=("auto_find_batch_size",)),
    "right": Trainer(
        file="torch_trainer.py",
        tools=_OF_TORCH,
        today={
            _LOADER: "batch_size=16, num_workers=2, persistent_workers=True)\n",
            "    model = make_model(": "    torch.set_num_threads(1)\n    model = make_model(",
        },
    ),
}


def _run(arguments: argparse.Namespace) -> None:
    rows = []
    for name in arguments.trainers:
        trainer = TRAINERS[name]
        with tempfile.TemporaryDirectory() as top:
            folders = {tool: Path(top, tool) for tool in ("today", "autotune", *trainer.tools)}
            for folder in folders.values():
                folder.mkdir()
                _replace(_HERE / trainer.file, folder / "train.py", trainer.today)
            claims = {}
            claims["autotune"], env = _autotune(folders["autotune"], name, arguments)
            for tool in trainer.tools:
                gain = _TOOLS[tool](folders[tool], name, arguments)
                claims[tool] = "" if gain is None else f"{gain:.2f}x"
            speeds: dict[str, list[float]] = {tool: [] for tool in folders}
            for _ in range(arguments.rounds):
                for tool, folder in folders.items():
                    speeds[tool].append(_plain(folder, name, arguments, env if tool == "autotune" else {}))
            for tool, claim in claims.items():
                true = [one / today for one, today in zip(speeds[tool], speeds["today"], strict=True)]
                spread = f"{median(true):.2f}x ({min(true):.2f} to {max(true):.2f})"
                changed = _changed(folders["today"] / "train.py", folders[tool] / "train.py")
                rows.append((name, tool, claim, spread, changed))
                print(*rows[-1], flush=True)
    print(markdown_table(("trainer", "tool", "told", "true", "code"), rows))


def _replace(source: Path, target: Path, texts: Mapping[str, str]) -> None:
    text = source.read_text()
    for old, new in texts.items():
        assert old in text, f"{source} has no {old!r}"
        text = text.replace(old, new, 1)
    target.write_text(text)


def _changed(before: Path, after: Path) -> str:
    lines = set(before.read_text().splitlines())
    return "; ".join(f"`{line.strip()}`" for line in after.read_text().splitlines() if line not in lines) or "as it was"


def _autotune(folder: Path, name: str, arguments: argparse.Namespace) -> tuple[str, Mapping[str, str]]:
    """Return what a search claims, and the variables that belong to its answer; the code is written."""

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "autotune", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout

    config = ("--config", "tune.yaml", "--state-dir", str(folder / "state"))
    call("init", *config, "--from-flags", "--yes", "--", arguments.python, "train.py", name)
    answer = json.loads(call("search", *config, "--budget", f"{arguments.seconds}s", "--no-apply", "--json"))
    if answer["verdict"] != "better":
        return "no change", {}
    call("apply", *config, "--code", "--all", "--force")
    env = yaml.safe_load((folder / "tune.yaml").read_text())["autotune"].get("env", {})
    gain = answer["speedup"]
    return f"{gain['ratio']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})", env


def _loadtune(folder: Path, name: str, arguments: argparse.Namespace) -> float:
    words = ["-m", "loadtune.cli", "tune", "train.py", "--steps", str(arguments.steps), "--no-plots"]
    done = _tool(folder, name, arguments, *words)
    found = _BEST_OF_LOADTUNE.search(done.stdout + done.stderr)
    if found is None:
        return 1.0
    knobs = dict(one.partition("=")[::2] for one in found[1].split(", "))  # `persistent` stands there without a value
    _write(folder, {**knobs, "persistent": str("persistent" in knobs)})
    return float(found[2])


def _fournex(folder: Path, name: str, arguments: argparse.Namespace) -> float:
    shutil.copy(_HERE / "fournex_script.py", folder / "instrumented.py")
    command = [arguments.python, "instrumented.py", name]
    _tool(folder, name, arguments, "-m", "fournex", "tune", "--measure-steps", str(arguments.steps), "--", *command)
    report = next(folder.glob("runs/*/autopilot_report.json"), None)
    best = json.loads(report.read_text())["winner"] if report else None
    if best is None:
        return 1.0
    keys = {"workers": "FRX_NUM_WORKERS", "prefetch": "FRX_PREFETCH_FACTOR", "pinned": "FRX_PIN_MEMORY"}
    knobs = {knob: best["env_vars"][key] for knob, key in keys.items() if key in best["env_vars"]}
    _write(folder, {**knobs, "persistent": "True"})
    return 1.0 + float(best["throughput_delta"])


def _lightning(folder: Path, name: str, arguments: argparse.Namespace) -> None:
    """Write the largest batch that ran in this time; nothing is claimed."""
    shutil.copy(_HERE / "lightning_script.py", folder / "tune.py")
    done = _tool(folder, name, arguments, "tune.py", name)
    for batch in _BATCH_OF_LIGHTNING.findall(done.stdout + done.stderr)[-1:]:
        _write(folder, {"batch": batch})


def _optuna(folder: Path, name: str, arguments: argparse.Namespace) -> float:
    shutil.copy(_HERE / "optuna_script.py", folder / "tune.py")
    done = _tool(folder, name, arguments, "tune.py", str(arguments.seconds))
    found = json.loads(done.stdout.splitlines()[-1])
    _write(folder, {key: str(value) for key, value in found["best"].items()})
    return float(found["gain"])


def _tool(folder: Path, name: str, arguments: argparse.Namespace, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a tool; one that does not end by itself is ended when its time is over."""
    environ = {**os.environ, "LIMIT": name, "PYTHONUNBUFFERED": "1"}
    command = [arguments.python, *words]
    tool = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    limit_s = arguments.seconds + _GRACE_S
    try:
        out, err = tool.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(tool)
        out, err = tool.communicate()
    return subprocess.CompletedProcess(command, tool.returncode, out, err)


def _write(folder: Path, knobs: Mapping[str, str]) -> None:
    """Write into the code of a loader of PyTorch what a tool recommends, as it says itself."""
    workers = int(knobs.get("workers", 0))
    given = [f"batch_size={knobs.get('batch', 16)}", f"num_workers={workers}"]
    given += ["pin_memory=True"] if knobs.get("pinned") == "true" else []
    if workers:
        given += ["persistent_workers=True"] if knobs.get("persistent") == "True" else []
        given += [f"prefetch_factor={knobs['prefetch']}"] if "prefetch" in knobs else []
    path = folder / "train.py"
    text = re.sub(r"(= DataLoader\(.*)batch_size=16.*\)\n", rf"\1{', '.join(given)})\n", path.read_text())
    if "threads" in knobs:
        text = re.sub(r"    torch\.set_num_threads\(\d+\)\n", "", text)
        text = text.replace(
            "    model = make_model(", f"    torch.set_num_threads({knobs['threads']})\n    model = make_model("
        )
    path.write_text(text)


def _as_documented(texts: Mapping[str, str]) -> Callable[[Path, str, argparse.Namespace], float | None]:
    """Return a tool that is a change of the code, and claims nothing."""

    def write(folder: Path, _name: str, _arguments: argparse.Namespace) -> None:
        _replace(folder / "train.py", folder / "train.py", texts)

    return write


_TOOLS: Mapping[str, Callable[[Path, str, argparse.Namespace], float | None]] = {
    "loadtune": _loadtune,
    "fournex": _fournex,
    "Lightning's Tuner": _lightning,
    "Optuna script": _optuna,
    "tf.data AUTOTUNE": _as_documented(
        {
            ".map(prepare)": ".map(prepare, num_parallel_calls=tf.data.AUTOTUNE)",
            ".batch(16)": ".batch(16).prefetch(tf.data.AUTOTUNE)",
        }
    ),
    "auto_find_batch_size": _as_documented({"max_steps=": "auto_find_batch_size=True, max_steps="}),
}


def _plain(folder: Path, name: str, arguments: argparse.Namespace, env: Mapping[str, str]) -> float:
    """Return the samples per second of plain training."""
    command = [arguments.python, "train.py", name, "--seconds", str(arguments.plain)]
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
    _end(trainer)  # workers of its loader may still be there
    return float((folder / "speed").read_text().split()[-1])


def _end(leader: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


def add_code(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "code", help="what stands in the code of six trainers, tuned by autotune and by others"
    )
    parser.add_argument("--python", required=True, help="interpreter with what the trainers import")
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--seconds", type=int, default=90, help="budget of a search (90)")
    parser.add_argument("--steps", type=int, default=100, help="of each trial of loadtune (100)")
    parser.add_argument("--plain", type=float, default=20.0, help="seconds of a plain training (20)")
    parser.add_argument("--rounds", type=int, default=3, help="plain trainings of each, in turn (3)")
    parser.set_defaults(run=_run)
