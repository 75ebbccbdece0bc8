"""Benchmark of loaders: how much of the best of a wide grid a short search finds, whatever limits the training.

Each trainer is limited by something else: samples that wait for a storage, the processor, memory, the step itself. The
grid goes far beyond the machine's cores, and is trained plainly; then the answer of one search is, in the same way.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

import yaml

from autotune.records import Scalar
from scripts.bench.results import Commands, markdown_table

_TRAINER = Path(__file__).with_name("loading_trainer.py")
_LIMITS = ("latency", "cpu", "memory", "step")
_TODAY: Mapping[str, Mapping[str, Scalar]] = {
    "torch": {"num_workers": 0, "prefetch_factor": 2},
    "tensorflow": {"num_workers": 1, "prefetch": 1, "num_private_threads": 0},
}
_WIDE: Mapping[str, Mapping[str, Sequence[Scalar]]] = {
    "torch": {"num_workers": (0, 1, 2, 4, 8, 16, 32), "prefetch_factor": (2, 8)},
    "tensorflow": {"num_workers": (1, 2, 4, 8, 16, 32), "prefetch": (1, 8), "num_private_threads": (0, 2, 8, 32)},
}


def _run(arguments: argparse.Namespace) -> None:
    framework, rows = arguments.framework, []
    for limit in arguments.limits:
        grid = [dict(zip(_WIDE[framework], values, strict=True)) for values in product(*_WIDE[framework].values())]
        speeds = {json.dumps(data): _plain(arguments, limit, data) for data in grid}
        best = max(speeds, key=speeds.__getitem__)
        for number in range(arguments.searches):
            found = _search(arguments, limit)
            speed = _plain(arguments, limit, found)
            again = _plain(arguments, limit, json.loads(best))  # in turn with it: the best of many was lucky
            rows.append((limit, str(number), best, f"{again:.0f}/s", json.dumps(found), f"{speed / again:.0%}"))
            print(*rows[-1], flush=True)
    print(markdown_table(("limit", "search", "best of the grid", "its speed", "found", "share"), rows))


def _plain(arguments: argparse.Namespace, limit: str, data: Mapping[str, Scalar]) -> float:
    """Return the samples per second of plain training."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), arguments, limit, data)
        command = [arguments.python, str(_TRAINER), str(config), "--seconds", str(arguments.seconds)]
        printed = Path(folder) / "speed"
        with printed.open("w") as out:
            trainer = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, start_new_session=True)
            trainer.wait()
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)  # workers of its loader may still be there
        words = printed.read_text().split()
    return float(words[-1]) if trainer.returncode == 0 and words else 0.0


def _search(arguments: argparse.Namespace, limit: str) -> Mapping[str, Scalar]:
    """Return the values under ``data`` that a search finds."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), arguments, limit, _TODAY[arguments.framework])
        command = [sys.executable, "-m", "autotune", "search", "--config", str(config), "--budget", arguments.budget]
        done = subprocess.run(
            [*command, "--no-apply", "--json"], cwd=folder, capture_output=True, text=True, check=True
        )
    best = json.loads(done.stdout)["best"]["values"]
    return {name: best[f"data.{name}"] for name in _TODAY[arguments.framework]}


def _config(folder: Path, arguments: argparse.Namespace, limit: str, data: Mapping[str, Scalar]) -> Path:
    document = {
        "framework": arguments.framework,
        "limit": limit,
        "data": dict(data),
        "autotune": {"command": f"{arguments.python} {_TRAINER} {{config}}"},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    return config


def add_loaders(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("loaders", help="searches of loaders with different limits, against a wide grid")
    parser.add_argument("framework", choices=_TODAY)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has it (this one)")
    parser.add_argument("--limits", nargs="+", choices=_LIMITS, default=_LIMITS)
    parser.add_argument("--searches", type=int, default=1, help="of each (1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a plain training (5)")
    parser.add_argument("--budget", default="90s", help="of a search (90s)")
    parser.set_defaults(run=_run)
