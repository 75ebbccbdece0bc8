"""Benchmark of training that stops and goes: what searches say of a change whose worth plain training has shown.

A trainer's data come from one of two storages, and the search may choose. Each is trained plainly first; then searches
are made, each with a record of its own, by the command as a user types it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from scripts.bench.results import Commands, markdown_table

_TRAINER = Path(__file__).with_name("stalling_trainer.py")
_WAITS_S: Mapping[str, Mapping[float, float]] = {
    "torch": {1.0: 0.02, 1.1: 0.02 / 1.1, 2.0: 0.01},
    "tensorflow": {1.0: 1.0, 1.1: 0.8, 2.0: 0.0},
}
"""What the other storage takes, by the ratio of speeds that it makes, about; the first is as fast as today's."""


def _run(arguments: argparse.Namespace) -> None:
    rows = []
    today = _plain(arguments, 1.0, "one")
    for ratio in arguments.ratios:
        true = 1.0 if ratio == 1.0 else _plain(arguments, ratio, "two") / today
        for number in range(arguments.searches):
            rows.append((f"{true:.3f}x", str(number), *_search(arguments, ratio, true)))
            print(*rows[-1], flush=True)
    print(markdown_table(("true", "search", "verdict", "told", "interval", "holds"), rows))


def _plain(arguments: argparse.Namespace, ratio: float, storage: str) -> float:
    """Return the samples per second of plain training."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), arguments, ratio, storage)
        command = [arguments.python, str(_TRAINER), str(config), "--seconds", str(arguments.seconds)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _search(arguments: argparse.Namespace, ratio: float, true: float) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), arguments, ratio, "one")
        command = [sys.executable, "-m", "autotune", "search", "--config", str(config), "--budget", arguments.budget]
        done = subprocess.run(
            [*command, "--no-apply", "--json"], cwd=folder, capture_output=True, text=True, check=False
        )
    answer = json.loads(done.stdout)
    told = answer.get("speedup")
    if told is None:
        return answer.get("verdict") or str(answer.get("error")), "-", "-", "-"
    holds = told["low"] <= true <= told["high"]
    return (
        answer["verdict"],
        f"{told['ratio']:.3f}x",
        f"{told['low']:.3f} to {told['high']:.3f}",
        "yes" if holds else "no",
    )


def _config(folder: Path, arguments: argparse.Namespace, ratio: float, storage: str) -> Path:
    waits_s = _WAITS_S[arguments.framework]
    document = {
        "framework": arguments.framework,
        "data": {"storage": storage},
        "waits_s": {"one": waits_s[1.0], "two": waits_s[ratio]},
        "autotune": {
            "command": f"{arguments.python} {_TRAINER} {{config}}",
            "knobs": {"data.storage": ["one", "two"]},
        },
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    return config


def add_stalls(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("stalls", help="searches of trainers that stop and go, against plain training")
    parser.add_argument("framework", choices=_WAITS_S)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has it (this one)")
    parser.add_argument("--ratios", type=float, nargs="+", choices=(1.0, 1.1, 2.0), default=(1.0, 1.1, 2.0))
    parser.add_argument("--searches", type=int, default=10, help="of each ratio (10)")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of a plain training (300)")
    parser.add_argument("--budget", default="2m", help="of a search (2m)")
    parser.set_defaults(run=_run)
